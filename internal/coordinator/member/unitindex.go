package member

import (
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// unitIndex is what a pass needs to know of all units together. While nothing changes, a store returns the same slice of
// units with each snapshot. A pass over the slice of the pass before then looks only at the units for which time alone
// decides something, whatever number of units there are.
type unitIndex struct {
	units   []daemon.Record // the slice that was read; nil = none
	timed   []int           // positions of the units that start or drain: they have a deadline
	holders map[node.Incarnation]bool
	failing uint64 // hash of the units that failed and are tried again, with their holders
}

// covers reports whether these are the units that were read. Nobody writes to the units of a snapshot.
func (x *unitIndex) covers(units []daemon.Record) bool {
	return len(units) > 0 && len(units) == len(x.units) && &units[0] == &x.units[0]
}

// begin begins to read units.
func (x *unitIndex) begin(units []daemon.Record) {
	*x = unitIndex{units: units, holders: map[node.Incarnation]bool{}, failing: emptyHash}
}

// add reads the unit at a position.
func (x *unitIndex) add(i int) {
	r := &x.units[i]
	if r.State.Known() && !r.State.IsFree() {
		x.holders[r.Holder.Incarnation] = true
	}
	if r.State == daemon.Assigning || r.State == daemon.Revoking {
		x.timed = append(x.timed, i)
	}
	if !r.RetryAt.IsZero() {
		x.failing = mix(mix(x.failing, r.Unit.String()), string(r.Holder.Incarnation))
	}
}

// emptyHash is the hash of no text, and mix the hash of what h is the hash of, and one more text (FNV-1a).
const emptyHash = uint64(14695981039346656037)

func mix(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return (h ^ 0xff) * 1099511628211
}

// evaluateUnits decides which units may be taken from their holders. A unit that runs is taken only if its holder is gone. So
// if the units are those of the pass before, and no holder is gone, only those with a deadline need a look.
func (m *Member) evaluateUnits(now lease.Instant, rows map[node.Incarnation]*node.Member) {
	x, units := &m.leader.index, m.leader.snap.Units
	known := x.covers(units)
	if known && m.holdersPresent(rows) {
		for _, i := range x.timed {
			m.evaluateUnit(now, &units[i], rows[units[i].Holder.Incarnation])
		}
		return
	}
	if !known {
		x.begin(units)
	}
	for i := range units {
		if !known {
			x.add(i)
		}
		m.evaluateUnit(now, &units[i], rows[units[i].Holder.Incarnation])
	}
}

// holdersPresent reports whether each holder of a unit has a row and is not dead.
func (m *Member) holdersPresent(rows map[node.Incarnation]*node.Member) bool {
	for inc := range m.leader.index.holders {
		if rows[inc] == nil || m.leader.nodeStates[inc] == node.Removed {
			return false
		}
	}
	return true
}
