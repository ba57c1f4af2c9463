package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
)

// KeyStore is implemented by stores that hold the keys of keyed daemons (daemon.Keyed). All four stores implement it.
//
// Each key is stored as the row of its unit. The row of a removed key is only marked as retired: its run drains
// first, and if the key comes back, its unit continues with a higher generation.
type KeyStore interface {
	// ChangeKeys adds keys to a daemon and removes others, in one step with one event. A key that is there already is
	// not added again, and one that is not there is not removed, so the call may be repeated. It wakes the leader. It
	// returns daemon.ErrStale if KeyChange.Fence is set and the run of that fence no longer owns its unit.
	ChangeKeys(ctx context.Context, change KeyChange) (KeyCounts, error)

	// SweepUnits deletes the oldest units that nobody holds and whose key was removed more than age ago, at most
	// limit, with their fences and states. It returns how many. Generations never repeat: the store keeps the highest
	// one that it deleted, and a key that comes back gets a higher one. The fence is that of the sweeper.
	SweepUnits(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error)
}

// KeyChange adds keys to a keyed daemon and removes others.
type KeyChange struct {
	Daemon      daemon.ID
	Add, Remove []string // at most MaxKeyChanges together, no key twice
	// Fence is optional: the fence of the run that makes the change, for example of a daemon that copies the keys
	// from another system. The change is refused if that run no longer owns its unit.
	Fence daemon.Fence
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

// Keys returns the keys that a keyed daemon has in the snapshot, sorted.
func Keys(snap *daemon.Snapshot, id daemon.ID) []string {
	var out []string
	for i := range snap.Units {
		if r := &snap.Units[i]; r.Unit.Daemon == id && r.Unit.Key != "" && !r.Retired {
			out = append(out, r.Unit.Key)
		}
	}
	return out
}

// ReplaceKeys adds and removes keys until the daemon has exactly these. The parameter change names the daemon, the
// fence, the actor and the reason. ReplaceKeys reads the cluster once and takes a step for every MaxKeyChanges keys, the
// added ones first. Keys that others add meanwhile stay. After an error, some of the steps may have happened.
func ReplaceKeys(ctx context.Context, store Store, change KeyChange, keys []string) (KeyCounts, error) {
	var all KeyCounts
	writer, ok := store.(KeyStore)
	if !ok {
		return all, fmt.Errorf("replace keys of %.128s: the store (%T) is no storage.KeyStore", change.Daemon, store)
	}
	wanted := make(map[string]bool, len(keys))
	for _, key := range keys {
		if err := daemon.ValidateKey(key); err != nil { // before anything is changed
			return all, fmt.Errorf("replace keys of %.128s: %w", change.Daemon, err)
		}
		wanted[key] = true
	}
	snap, err := store.Snapshot(ctx)
	if err != nil {
		return all, fmt.Errorf("replace keys of %.128s: %w", change.Daemon, err)
	}
	var remove []string
	for _, key := range Keys(snap, change.Daemon) {
		if !wanted[key] {
			remove = append(remove, key)
		}
		delete(wanted, key)
	}
	for part := range slices.Chunk(slices.Sorted(maps.Keys(wanted)), MaxKeyChanges) {
		change.Add, change.Remove = part, nil
		counts, err := writer.ChangeKeys(ctx, change)
		if all.Added += counts.Added; err != nil {
			return all, err
		}
	}
	for part := range slices.Chunk(remove, MaxKeyChanges) {
		change.Add, change.Remove = nil, part
		counts, err := writer.ChangeKeys(ctx, change)
		if all.Removed += counts.Removed; err != nil {
			return all, err
		}
	}
	return all, nil
}
