package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
)

// KeyStore is implemented by stores that hold the keys of keyed daemons (daemon.Keyed). All four stores implement it.
//
// A key is the row of its unit. A removed key is a retired row, which stays for a while: its run drains first, and a
// key that comes back goes on with a higher generation.
type KeyStore interface {
	// ChangeKeys adds keys to a daemon and removes others, in one step with one event. A key that is there already
	// is not added again, and one that is not there is not removed, so the call may be repeated. It wakes the
	// leader. ErrTermLost, if KeyChange.Term names a term that no longer leads.
	ChangeKeys(ctx context.Context, change KeyChange) (KeyCounts, error)

	// SweepUnits deletes the oldest units that nobody holds and whose key was removed more than age ago, at most
	// limit, with their fences and states. It returns how many. Generations never repeat: the highest one that was
	// deleted is kept, and a key that comes back gets a higher one. The fence is that of the sweeper.
	SweepUnits(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error)
}

// KeyChange adds keys to a keyed daemon and removes others.
type KeyChange struct {
	Daemon      daemon.ID
	Add, Remove []string // at most MaxKeyChanges together, no key twice
	// Term, if it is set, is the number of the term that must lead.
	Term int64
	// Actor and Reason go into the event.
	Actor, Reason string
}

// MaxKeyChanges is how many keys one call may add and remove.
const MaxKeyChanges = 1000

// KeyCounts says what a KeyChange has changed.
type KeyCounts struct {
	Added, Removed int
}

// Validate reports why the change cannot be made, or nil.
func (c KeyChange) Validate() error {
	if err := c.Daemon.Validate(); err != nil {
		return err
	}
	if n := len(c.Add) + len(c.Remove); n > MaxKeyChanges {
		return fmt.Errorf("%d keys at once, the limit is %d: make several calls", n, MaxKeyChanges)
	}
	var errs []error
	seen := make(map[string]bool, len(c.Add)+len(c.Remove))
	for _, keys := range [][]string{c.Add, c.Remove} {
		for _, key := range keys {
			if err := daemon.ValidateKey(key); err != nil {
				errs = append(errs, err)
			} else if seen[key] {
				errs = append(errs, fmt.Errorf("the key %q is named twice", key))
			}
			seen[key] = true
		}
	}
	return errors.Join(errs[:min(len(errs), 8)]...)
}
