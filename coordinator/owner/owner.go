// Package owner tells any program which node owns a unit, so that a request can be sent there.
//
//	owners := owner.NewDirectory(store)
//	o, err := owners.Owner(ctx, daemon.Unit{Daemon: "acme:tenants", Key: "globex"})
//	// o.Address is where the node of globex listens
//
// An answer is a hint. When it is used, the unit may have moved, or its run may have ended. The fence decides: the node that
// gets the request checks that it has the unit, or passes its own fence (daemon.Assignment.Fence) to what it writes.
// [Owner].Generation tells the runs of a unit apart: a later run has a higher one.
package owner

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/history"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Owner is the node that owns a unit.
type Owner struct {
	Unit daemon.Unit
	// Node is the process that has the unit; zero if none has. Address is what it advertises, such as host:port.
	Node       node.Identity
	Address    string
	Generation int64
	State      daemon.State // assigning, active or revoking; deleted or unassigned if no node owns the unit
}

// Directory finds owners. It reads the whole cluster once, and afterwards only what the history says has changed. It starts
// no goroutine, and its methods may be called from any. It does not close the store.
type Directory struct {
	store storage.Store
	lock  chan struct{} // has the one token of whoever reads or changes the rest: waiting for it ends with a caller's context

	units  map[daemon.Unit]Owner
	nodes  map[node.Incarnation]string // addresses
	freed  int                         // how many times a unit lost its owner since units was read
	newest daemon.Event                // that units includes; only its number is known if it was deleted
	readAt time.Time                   // zero: read the cluster anew
}

// NewDirectory returns a directory of the cluster in the store. It does not read it yet.
func NewDirectory(store storage.Store) *Directory {
	return &Directory{store: store, lock: make(chan struct{}, 1)}
}

// locked calls do alone, unless ctx ends before that is possible: another caller may wait for a slow store.
func (d *Directory) locked(ctx context.Context, do func() error) error {
	select {
	case d.lock <- struct{}{}:
		defer func() { <-d.lock }()
		return do()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// How old an answer may be, and after what time the directory reads the whole cluster again.
const (
	maxAge     = 250 * time.Millisecond
	pollEvery  = 500 * time.Millisecond
	eventsRead = 1000
	// minFreed is how often units must have lost their owners before the directory forgets those that are gone.
	minFreed = 1000
)

// Owner returns who owns a unit; an Owner without a Node if nobody does, or if there is no such unit. The answer is at most
// a quarter of a second old. An error says that the store does not answer, or that ctx has ended.
func (d *Directory) Owner(ctx context.Context, u daemon.Unit) (Owner, error) {
	found := Owner{Unit: u, State: daemon.Unassigned}
	err := d.locked(ctx, func() error {
		if d.readAt.IsZero() || time.Since(d.readAt) > maxAge {
			if err := d.refresh(ctx); err != nil {
				return err
			}
		}
		if o, ok := d.units[u]; ok {
			found = o
		}
		return nil
	})
	if err != nil {
		return Owner{}, fmt.Errorf("owner of %s: %w", u, err)
	}
	return found, nil
}

// Watch yields the present owners of a daemon's units, and then each change, until ctx ends. It polls the history twice a
// second. Changes that are overtaken by later ones may be left out. An error does not end the sequence.
func (d *Directory) Watch(ctx context.Context, id daemon.ID) iter.Seq2[Owner, error] {
	return func(yield func(Owner, error) bool) {
		seen := map[daemon.Unit]Owner{}
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			var changed []Owner
			err := d.locked(ctx, func() error {
				err := d.refresh(ctx)
				changed = d.changes(id, seen)
				return err
			})
			if err != nil && ctx.Err() == nil && !yield(Owner{}, fmt.Errorf("owners of %s: %w", id, err)) {
				return
			}
			for _, o := range changed {
				if !yield(o, nil) {
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}
}

// changes returns what differs from the owners that a watch has seen, and notes it there. A unit that the cluster has no more,
// such as one that a failover has lost, has no owner.
func (d *Directory) changes(id daemon.ID, seen map[daemon.Unit]Owner) (changed []Owner) {
	for u, o := range d.units {
		if u.Daemon == id && seen[u] != o {
			changed, seen[u] = append(changed, o), o
		}
	}
	for u, o := range seen {
		if _, is := d.units[u]; is {
			continue
		}
		delete(seen, u)
		if !o.State.IsFree() {
			changed = append(changed, Owner{Unit: u, State: daemon.Unassigned})
		}
	}
	return changed
}

// refresh brings the directory up to date, by the history if that has no gap.
func (d *Directory) refresh(ctx context.Context) error {
	if d.readAt.IsZero() {
		return d.readAll(ctx)
	}
	for {
		page, err := d.store.Events(ctx, max(d.newest.Seq-1, 0), eventsRead)
		if err != nil {
			return err
		}
		if page.Oldest > d.newest.Seq || history.Replaced(page, &d.newest) {
			d.readAt = time.Time{}
			return d.readAll(ctx) // events are gone, or may be
		}
		for i := range page.Events {
			e := &page.Events[i]
			if e.Seq <= d.newest.Seq || e.Unit.IsZero() {
				continue
			}
			if _, known := d.nodes[e.Incarnation]; !known && e.Kind == daemon.AssignmentAssigned {
				d.readAt = time.Time{}
				return d.readAll(ctx) // a node whose address is not known yet
			}
			d.apply(e)
		}
		if len(page.Events) > 0 {
			d.newest = page.Events[len(page.Events)-1]
		}
		if len(page.Events) == eventsRead {
			continue
		}
		d.readAt = time.Now()
		if d.freed > max(minFreed, len(d.units)/2) {
			d.freed = 0
			_ = d.readAll(ctx) // to forget keys that are gone, which the history does not say; what is known is right without it
		}
		return nil
	}
}

// apply applies an event about a unit.
func (d *Directory) apply(e *daemon.Event) {
	o := d.units[e.Unit]
	o.Unit = e.Unit
	switch e.Kind {
	case daemon.AssignmentAssigned, daemon.AssignmentPostponed:
		o.State = daemon.Assigning
	case daemon.AssignmentActive, daemon.AssignmentResumed:
		o.State = daemon.Active
	case daemon.AssignmentRevoking:
		o.State = daemon.Revoking
	case daemon.AssignmentDeleted, daemon.AssignmentForced, daemon.AssignmentFailed, daemon.AssignmentAbandoned:
		d.freed++
		d.units[e.Unit] = Owner{Unit: e.Unit, Generation: e.Generation, State: daemon.Deleted}
		return
	default:
		return
	}
	o.Node = node.Identity{Name: e.Node, ID: e.NodeID, Incarnation: e.Incarnation}
	o.Address, o.Generation = d.nodes[e.Incarnation], e.Generation
	d.units[e.Unit] = o
}

// readAll reads the whole cluster. An error changes nothing.
func (d *Directory) readAll(ctx context.Context) error {
	snap, err := d.store.Snapshot(ctx)
	if err != nil {
		return err
	}
	page, err := d.store.Events(ctx, max(snap.Head-1, 0), 1)
	if err != nil {
		return err
	}
	d.newest = daemon.Event{Seq: snap.Head}
	if len(page.Events) > 0 && page.Events[0].Seq == snap.Head {
		d.newest = page.Events[0]
	}
	d.freed = 0
	d.units, d.nodes = make(map[daemon.Unit]Owner, len(snap.Units)), make(map[node.Incarnation]string, len(snap.Nodes))
	for i := range snap.Nodes {
		d.nodes[snap.Nodes[i].Incarnation] = snap.Nodes[i].Address
	}
	for i := range snap.Units {
		r := &snap.Units[i]
		o := Owner{Unit: r.Unit, Generation: r.Generation, State: r.State}
		if !r.State.IsFree() {
			o.Node, o.Address = r.Holder, d.nodes[r.Holder.Incarnation]
		}
		d.units[r.Unit] = o
	}
	d.readAt = time.Now()
	return nil
}
