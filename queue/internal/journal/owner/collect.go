package owner

import (
	"slices"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// collector is the garbage collector. It deletes slots below the previous checkpoint that neither
// checkpoint refers to, and older checkpoints except the runs that one of the two names. A run that
// HEAD does not name is never named again. It never deletes a fence, which a listing recognises by
// its size, nor anything a later owner may have written, because that has higher slots. So it does
// no harm if it runs late, even when its owner has been replaced.
type collector struct {
	kept          []uint64        // slots to which the newest checkpoint refers
	before        []uint64        // slots to which the previous checkpoint refers
	retained      []uint64        // slots below swept that were not deleted
	named         map[string]bool // keys of both checkpoints' runs, when the collection began
	examinedBelow uint64          // slots below it were examined
	bound         uint64          // slots below it are being examined; 0: no collection runs
	newCheckpoint bool            // another checkpoint came into force meanwhile
	prefix        string          // the prefix that is being listed
	more          bool            // there is another page, behind cursor
	cursor        string
	queue         []string // keys to delete
	inFlight      int      // calls in flight
	deleted       int
}

const (
	deletesAtOnce = 16
	maxAttempts   = 5
	// copiesKept is how many copies of HEAD are kept besides the newest.
	copiesKept = 2
)

// collect begins a collection after a checkpoint came into force; kept are the slots to which it
// refers.
func (m *Machine) collect(kept []uint64) {
	g := &m.collector
	g.before, g.kept = g.kept, kept
	if g.bound != 0 {
		g.newCheckpoint = true
		return
	}
	m.beginCollection()
}

func (m *Machine) beginCollection() {
	g := &m.collector
	g.bound, g.newCheckpoint, g.deleted, g.named = m.head.Previous.Slot, false, 0, m.namedRuns()
	if g.bound == 0 {
		return
	}
	var spared []uint64
	for _, slot := range g.retained {
		if m.isReferenced(slot) {
			spared = append(spared, slot)
		} else {
			g.queue = append(g.queue, format.SlotKey(slot))
		}
	}
	g.retained = spared
	g.prefix, g.more, g.cursor = format.LogPrefix, true, ""
	if g.examinedBelow > 0 {
		g.cursor = format.SlotKey(g.examinedBelow - 1)
	}
	m.collectNext()
}

// namedRuns returns the keys of both checkpoints' runs.
func (m *Machine) namedRuns() map[string]bool {
	keys := map[string]bool{}
	for _, c := range []format.Checkpoint{m.head.Checkpoint, m.head.Previous} {
		for _, r := range c.Runs {
			keys[r.Key()] = true
		}
	}
	return keys
}

// isReferenced reports whether one of the two checkpoints refers to a slot.
func (m *Machine) isReferenced(slot uint64) bool {
	_, now := slices.BinarySearch(m.collector.kept, slot)
	_, before := slices.BinarySearch(m.collector.before, slot)
	return now || before
}

// collectNext sends the next requests: deletions first, then the next page of the listing.
func (m *Machine) collectNext() {
	g := &m.collector
	for len(g.queue) > 0 && g.inFlight < deletesAtOnce {
		m.call(&Call{Op: Delete, Key: g.queue[0]})
		g.queue = g.queue[1:]
		g.inFlight++
	}
	switch {
	case g.inFlight > 0:
	case g.more:
		g.inFlight++
		m.call(&Call{Op: List, Key: g.prefix, Cursor: g.cursor})
	case g.prefix == format.LogPrefix:
		g.examinedBelow = g.bound
		g.prefix, g.more, g.cursor = format.CkptPrefix, true, ""
		m.collectNext()
	case g.prefix == format.CkptPrefix:
		g.prefix, g.more, g.cursor = format.CopyPrefix, true, ""
		m.collectNext()
	default:
		m.collectEnd(nil)
	}
}

func (m *Machine) collectEnd(err error) {
	g := &m.collector
	m.emit(Progress{Collected: true, Deleted: g.deleted, Err: err})
	g.bound, g.queue, g.more, g.inFlight = 0, nil, false, 0
	if err != nil { // the next one lists all slots again, also those that this one has not deleted
		g.examinedBelow, g.retained = 0, nil
	}
	m.calls = slices.DeleteFunc(m.calls, func(c *Call) bool { return c.Op == List || c.Op == Delete })
	if g.newCheckpoint && err == nil && m.owns() {
		m.beginCollection()
	}
}

// collected handles the answer to a listing or a deletion.
func (m *Machine) collected(c *Call, r Result) {
	if m.phase == taking {
		if r.Answer != Done {
			m.repeat(c, r.Retry)
			return
		}
		if c.Key == format.LogPrefix {
			m.logListed(r)
		} else {
			m.createIfEmpty(r)
		}
		return
	}
	g := &m.collector
	if r.Answer == Failed || r.Answer == Unknown {
		if c.Attempt < maxAttempts {
			m.repeat(c, r.Retry)
		} else {
			m.collectEnd(r.Err)
		}
		return
	}
	g.inFlight--
	if c.Op == Delete {
		g.deleted++
	} else {
		m.sortPage(r)
	}
	m.collectNext()
}

// sortPage decides which keys of a listing to delete.
func (m *Machine) sortPage(r Result) {
	g := &m.collector
	g.more = r.More
	for _, e := range r.Entries {
		g.cursor = e.Key
		if g.prefix == format.CopyPrefix {
			if serial, ok := format.ParseCopyKey(e.Key); ok && serial+copiesKept < m.head.Serial {
				g.queue = append(g.queue, e.Key)
			}
			continue
		}
		if g.prefix == format.CkptPrefix {
			if c, ok := format.ParsePartKey(e.Key); ok && c.Slot < g.bound && !g.named[e.Key] {
				g.queue = append(g.queue, e.Key)
			}
			continue
		}
		slot, ok := format.ParseSlotKey(e.Key)
		switch {
		case !ok:
		case slot >= g.bound:
			g.more = false
			return
		case e.Size <= format.FenceSize: // for ever; see the package comment of journal
			// A fence stays because a late request could fill its slot again. Example: owner 1's
			// request for slot 7 is held back, and owner 2's fence fills slot 7. If it were deleted, the request
			// would succeed, and owner 1 would acknowledge records that no later owner reads.
		case m.isReferenced(slot):
			g.retained = append(g.retained, slot)
		default:
			g.queue = append(g.queue, e.Key)
		}
	}
}
