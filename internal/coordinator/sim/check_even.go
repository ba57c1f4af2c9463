package sim

import (
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// checkEvenLoads checks I7 in a cluster that is well: no unit could go to a member whose load would then still be lower than
// the load of its own. It says nothing where units change their nodes by themselves.
func (c *checks) checkEvenLoads(w *world, snap *daemon.Snapshot, members []*process) {
	if w.cfg.MaxMoves < 0 || w.cfg.Faults&Operate != 0 || w.deploying > 0 || w.restless() || w.now < c.roundUntil || c.tried(w, snap) {
		return
	}
	held := w.held(snap)
	for i := range snap.Units {
		r := &snap.Units[i]
		from, u := w.byInc[r.Holder.Incarnation], w.units[w.unitAt[r.Unit]]
		if r.State != daemon.Active || !from.healthy() || u.work.Spec.NoRebalance {
			continue
		}
		weight := u.work.Spec.WithDefaults().Weight
		for _, to := range members {
			if to == from || !w.mayRun(to, u.work) || !to.hasRoom(held, weight) || failedOn(r, to) || looksSick(snap, to) || mayFlap(snap, to) {
				continue
			}
			// (held[to] + weight) / capacity(to) < held[from] / capacity(from)
			if (held[to]+weight)*from.capacity() < held[from]*to.capacity() {
				w.violate("I7", "%s runs on p%02d with load %d/%d; p%02d has %d/%d",
					u.Unit, from.index, held[from], from.capacity(), to.index, held[to], to.capacity())
				return
			}
		}
	}
}

// held returns the weight of the units that each process holds.
func (w *world) held(snap *daemon.Snapshot) map[*process]int {
	held := map[*process]int{}
	for i := range snap.Units {
		r := &snap.Units[i]
		if p := w.byInc[r.Holder.Incarnation]; p != nil && !r.State.IsFree() {
			held[p] += w.units[w.unitAt[r.Unit]].work.Spec.WithDefaults().Weight
		}
	}
	return held
}

// hasRoom reports whether the process's limit allows that much more weight.
func (p *process) hasRoom(held map[*process]int, weight int) bool {
	limit := p.host.advert.Traits.MaxWeight
	return limit == 0 || held[p]+weight <= limit
}

func (p *process) capacity() int { return max(p.host.advert.Traits.Capacity, 1) }

// failedOn reports whether the unit has failed on the process.
func failedOn(r *daemon.Record, p *process) bool {
	return slices.ContainsFunc(r.Embargoes, func(e daemon.Embargo) bool { return e.Incarnation == p.who.Incarnation })
}

// looksSick reports whether several daemons have failed on nodes of that name, so that the plan may give it no more than it
// has (package plan, ledger). Here a start that was not acknowledged in time is such a failure.
func looksSick(snap *daemon.Snapshot, p *process) bool {
	failed := map[daemon.ID]bool{}
	for i := range snap.Units {
		for _, e := range snap.Units[i].Embargoes {
			if e.Node == p.who.Name {
				failed[snap.Units[i].Unit.Daemon] = true
			}
		}
	}
	return len(failed) >= 3
}

// mayFlap reports whether the process, or others of its name, may have been lost so often lately that the plan gives it no
// more than it has.
func mayFlap(snap *daemon.Snapshot, p *process) bool {
	losses := 0
	for i := range snap.Nodes {
		m := &snap.Nodes[i]
		switch {
		case m.Name != p.who.Name:
		case m.Present():
			losses += m.Returns
		case m.EndReason != string(node.Shutdown):
			losses++
		}
	}
	return losses >= 2
}

// restless reports whether units may change their nodes by themselves at any time, so that loads change too.
func (w *world) restless() bool {
	return slices.ContainsFunc(w.works, func(k *Work) bool { return k.flaky() || k.OneByOne > 0 })
}
