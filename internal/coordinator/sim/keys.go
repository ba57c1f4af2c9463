package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// possibleKeys returns the units of all keys that a keyed daemon may ever have.
func possibleKeys(id daemon.ID) []daemon.Unit {
	out := make([]daemon.Unit, 8)
	for i := range out {
		out[i] = daemon.Unit{Daemon: id, Key: fmt.Sprint("key ", i)}
	}
	return out
}

// keys adds and removes keys at random moments, often the same ones again soon, and sweeps in between.
func (d *director) keys() {
	w := d.w
	long := d.lasting()
	for range 1 + w.rng.IntN(8) {
		w.after(w.upTo(long), w.changeKeys)
	}
	d.end(long, w.changeKeys)
}

// changeKeys adds and removes some of the keys, in one step.
func (w *world) changeKeys() {
	if w.server.fork != nil {
		return
	}
	for _, work := range w.works {
		if !work.Spec.Keyed() {
			continue
		}
		change := storage.KeyChange{Daemon: work.Spec.ID, Actor: "sim"}
		for _, u := range possibleKeys(work.Spec.ID) {
			switch w.rng.IntN(3) {
			case 0:
				change.Add = append(change.Add, u.Key)
			case 1:
				change.Remove = append(change.Remove, u.Key)
			}
		}
		w.restartBound("keys")
		if _, err := w.server.store.ChangeKeys(context.Background(), change); err != nil {
			w.violate("I8", "keys: %v", err)
		}
	}
	if w.chance(0.3) {
		if err := w.sweep(2 * w.t.NodeRegistrationTTL); err != nil {
			w.violate("I8", "sweep: %v", err)
		}
	}
}

// sweepKeys deletes the rows of removed keys, soon after they were removed. What the store forgets, the checks remember:
// each generation of a unit is higher than all before.
func (w *world) sweepKeys() error {
	store := w.server.store
	n, err := store.SweepUnits(context.Background(), operator, w.upTo(time.Minute), 100)
	if err != nil || n == 0 {
		return err
	}
	snap, err := store.Snapshot(context.Background())
	if err != nil {
		return err
	}
	there := map[daemon.Unit]bool{}
	for i := range snap.Units {
		there[snap.Units[i].Unit] = true
	}
	w.check.grow(len(w.units))
	for i, u := range w.units {
		if u.Key != "" && !there[u.Unit] {
			w.check.model.units[i] = unitModel{state: daemon.Unassigned}
			w.stats.Deleted++
		}
	}
	return nil
}
