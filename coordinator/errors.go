package coordinator

import (
	"errors"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// SlowStoreError is returned by Run: the store is too slow for this node's timings and the number of nodes.
type SlowStoreError struct {
	Nodes  int           // in the cluster, this one included
	Change time.Duration // how long one change takes while no other node writes
	// The node's timings, and the least that works with this number of nodes.
	QueryTimeout, NeedQueryTimeout             time.Duration
	AcknowledgeTimeout, NeedAcknowledgeTimeout time.Duration
}

// Error has the figures, and what they would have to be.
func (e *SlowStoreError) Error() string { return (*member.SlowStoreError)(e).Error() }

// runError returns why the member stopped, as this package's own types.
func runError(err error) error {
	if slow := (*member.SlowStoreError)(nil); errors.As(err, &slow) {
		return (*SlowStoreError)(slow)
	}
	return err
}

// CancelledError is the cause with which the context of an agent's run ends.
type CancelledError struct {
	Fence daemon.Fence
	// Cause says why, to people: "trust" when no heartbeat was answered in time, "drain deadline", "lost" when the
	// store no longer lists the run, "acknowledge deadline", "node stopped".
	Cause string
}

// Error names the run and the cause.
func (e *CancelledError) Error() string { return "run " + e.Fence.String() + " cancelled: " + e.Cause }
