package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// KeySource says which keys a keyed daemon has.
type KeySource struct {
	// Units returns all keys: the tenants of a table, the partitions of a topic, the feeds of a list. The order does not
	// matter. After an error nothing is changed, and the call is repeated after a growing pause.
	Units func(ctx context.Context) ([]string, error)
	// Every is the pause between two calls; default 10 s. A new key runs that much later at the most, and the store is
	// read once for each call.
	Every time.Duration
	// AllowEmpty accepts an empty list, and removes all keys then. Without it, an empty list is an error: a query
	// that finds nothing is more often a mistake than the end of all tenants.
	AllowEmpty bool
}

// RegisterKeyed is Register for a keyed daemon whose keys come from a source. It declares a second daemon, <ID>:keys, with
// one unit, so that one node of the cluster calls the source. The node makes the daemon's keys in the store equal to
// the list. A process that was paused can change nothing any more, because each change has the unit's fence.
//
// A program that changes keys when they change, as in the request that creates a tenant, needs no source: it calls
// storage.KeyStore, on a node of a group with spec.ID.In(group).
func (c *Coordinator) RegisterKeyed(spec daemon.Spec, agent daemon.Agent, source KeySource) error {
	keys := &keySync{id: c.inGroup(spec).ID, store: c.store, source: source}
	switch _, ok := c.store.(storage.KeyStore); {
	case !spec.Keyed():
		return fmt.Errorf("register %s: instances is %d, want daemon.Keyed", spec.ID, spec.Instances)
	case source.Units == nil:
		return fmt.Errorf("register %s: the source has no Units", spec.ID)
	case source.Every < 0:
		return fmt.Errorf("register %s: the source's Every is %v, want 0 (the default) or more", spec.ID, source.Every)
	case !ok:
		return fmt.Errorf("register %s: the store (%T) is no storage.KeyStore", spec.ID, c.store)
	}
	if err := c.Register(spec, agent); err != nil {
		return err
	}
	err := c.Register(daemon.Spec{ID: spec.ID + sourceSuffix, Requires: spec.Requires, MaxFailures: -1}, keys)
	if err != nil {
		c.Unregister(spec.ID)
	}
	return err
}

// sourceSuffix is what the ID of the daemon that calls a source has after that of the keyed daemon.
const sourceSuffix = ":keys"

// keySync is the agent that makes the keys in the store equal to those of a source.
type keySync struct {
	id     daemon.ID
	store  storage.Store
	source KeySource
}

var errNoKeys = errors.New("the source of keys returns none, and KeySource.AllowEmpty is not set: no key is removed")

// Run implements [daemon.Agent].
func (s *keySync) Run(ctx context.Context, a *daemon.Assignment) error {
	a.Ready()
	for {
		keys, err := s.source.Units(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("read the keys of %s: %w", s.id, err)
		case len(keys) == 0 && !s.source.AllowEmpty:
			return errNoKeys
		}
		change := storage.KeyChange{Daemon: s.id, Fence: a.Fence(), Actor: string(a.Unit.Daemon)}
		if _, err := storage.ReplaceKeys(ctx, s.store, change, keys); err != nil {
			return err
		}
		a.Progress(len(keys))
		pause := time.NewTimer(cmp.Or(s.source.Every, 10*time.Second))
		select {
		case <-pause.C:
		case <-a.Draining():
			pause.Stop()
			return nil
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
}
