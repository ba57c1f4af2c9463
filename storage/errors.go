package storage

import (
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/node"
)

// The answers of a store. Compare with errors.Is.
var (
	ErrTermLost      = errors.New("the term is no longer held")
	ErrStaleSeq      = errors.New("sequence number is not newer than the row's")
	ErrNotRegistered = errors.New("the node is not registered")
	ErrIDInUse       = errors.New("another live process has this node ID")
	ErrTooManyNodes  = errors.New("the store cannot carry another node with these timings")
	ErrOtherCluster  = errors.New("the store belongs to a cluster of another name")
	ErrStoreChanged  = errors.New("the store was replaced since it was read")
	ErrUnavailable   = errors.New("store unavailable")
	ErrFull          = errors.New("the store has no room for more")
	ErrSchema        = errors.New("store schema does not fit")
)

// IDInUseError is an ErrIDInUse that says which process holds the ID.
type IDInUseError struct {
	ID     node.ID
	Holder node.Identity
	SeenAt time.Time // its last heartbeat, by the store's clock
	Host   node.Host // where it runs: a node on that host may find exit evidence
}

// Error names the holder.
func (e *IDInUseError) Error() string {
	return fmt.Sprintf("node id %s is in use by %q (incarnation %s, last heartbeat %s): give each process its own node.id, or leave it empty",
		e.ID, e.Holder.Name, e.Holder.Incarnation, e.SeenAt.UTC().Format(time.RFC3339))
}

// Is makes errors.Is(err, ErrIDInUse) true.
func (e *IDInUseError) Is(target error) bool { return target == ErrIDInUse }

// TooManyNodesError is an ErrTooManyNodes with the figures.
type TooManyNodesError struct {
	Nodes      int           // nodes that would make changes, the refused one included
	ChangeTime time.Duration // how long one change takes
}

// Error names both figures.
func (e *TooManyNodesError) Error() string {
	return fmt.Sprintf("the store makes one change at a time, each in %v, and cannot carry %d nodes with these timings", e.ChangeTime.Round(time.Millisecond), e.Nodes)
}

// Is makes errors.Is(err, ErrTooManyNodes) true.
func (e *TooManyNodesError) Is(target error) bool { return target == ErrTooManyNodes }

// OtherClusterError is an ErrOtherCluster with both names.
type OtherClusterError struct {
	Store string // the name that the store remembers
	Node  string // the name that the node, or the caller of RenameCluster, gave
}

// Error names both clusters.
func (e *OtherClusterError) Error() string {
	return fmt.Sprintf("this store belongs to cluster %q, not to %q", e.Store, e.Node)
}

// Is makes errors.Is(err, ErrOtherCluster) true.
func (e *OtherClusterError) Is(target error) bool { return target == ErrOtherCluster }
