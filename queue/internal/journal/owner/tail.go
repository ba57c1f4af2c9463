package owner

import (
	"errors"
	"maps"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// suspectSlot is an empty slot, at, behind which acknowledged slots are known or suspected. If it is still
// empty when it is read again, it is missing; see LogWalk.ProveAcked.
type suspectSlot struct {
	at, until uint64
	why       error
}

// logListed handles a page of the keys of the log.
func (m *Machine) logListed(r Result) {
	t := m.takeover
	last := ""
	for _, e := range r.Entries {
		if slot, ok := format.ParseSlotKey(e.Key); ok {
			t.Slots = append(t.Slots, slot)
		}
		last = e.Key
	}
	if r.More && last != "" {
		m.call(&Call{Op: List, Key: format.LogPrefix, Cursor: last})
		return
	}
	t.listing = false
	m.advance()
}

// isLogEnd reports whether the log ends at slot At, which was empty when it was read. If that is not
// known yet, or not so, advance is called again.
func (m *Machine) isLogEnd() bool {
	t := m.takeover
	if t.listing || t.suspectSlot != nil {
		return false
	}
	if t.salvageEnd == t.At {
		return true
	}
	until, why, known := m.acknowledged()
	if !known {
		return false
	}
	if why == nil {
		return true
	}
	// An owner that is still writing may have filled it since.
	t.suspectSlot = &suspectSlot{at: t.At, until: until, why: why}
	delete(t.readAhead, t.At)
	m.sendReadSlot(t.At)
	return false
}

// acknowledged finds out whether slots from the empty slot At on were acknowledged; see LogWalk.ProveAcked.
// known is false while slots are being read that may change the answer.
func (m *Machine) acknowledged() (until uint64, why error, known bool) {
	t := m.takeover
	known = true
	until, why = t.ProveAcked(func(slot uint64) (format.Header, error) {
		switch f := t.readAhead[slot]; {
		case f == nil:
			known = false
			m.sendReadSlot(slot)
		case f.err != nil:
			return format.Header{}, f.err
		case f.segment != nil:
			return f.segment.Header, nil
		case !t.reread[slot]: // it was read before it was listed
			known, t.reread[slot] = false, true
			delete(t.readAhead, slot)
			m.sendReadSlot(slot)
		}
		return format.Header{}, nil
	})
	return until, why, known || until > t.At
}

// suspectReread handles the second read of a slot that should not be empty.
func (m *Machine) suspectReread(r Result) {
	t := m.takeover
	g := t.suspectSlot
	t.suspectSlot = nil
	switch {
	case r.Answer != NotFound:
		t.readAhead[t.At] = &found{segment: r.Segment}
	case g.until == t.At && m.cfg.Salvage && !errors.Is(g.why, ErrNewer):
		// Nobody knows whether the slot was filled. Our fence proves whether it still can
		// be, so it must be created here.
		m.emit(Skipped{Slot: t.At, Next: t.Slots[len(t.Slots)-1] + 1, Err: g.why})
		t.salvageEnd, t.readAhead[t.At] = t.At, &found{}
	case !m.skipOrFail(g.until, g.why):
		return
	}
	m.advance()
}

// skipOrFail handles a slot that is missing or has a segment that does not belong there. until is as for
// LogWalk.Skip. It reports whether the takeover continues behind it.
func (m *Machine) skipOrFail(until uint64, why error) bool {
	t := m.takeover
	if !m.cfg.Salvage || errors.Is(why, ErrNewer) {
		m.suspect(why)
		return false
	}
	from := t.At
	t.Skip(until)
	m.emit(Skipped{Slot: from, Next: t.At, Err: why})
	maps.DeleteFunc(t.readAhead, func(slot uint64, _ *found) bool { return slot < t.At })
	return true
}

// unreadable handles a segment that cannot be read. It matters only when it is its turn, because
// its slot may be void.
func (m *Machine) unreadable(c *Call, r Result) {
	t := m.takeover
	delete(t.reading, c.slot)
	if t.suspectSlot != nil && c.slot == t.suspectSlot.at {
		t.suspectSlot = nil
	}
	if t.refusedFence != nil && c.slot == t.At { // no fence can be created where it is
		t.refusedFence = nil
	}
	if c.slot >= t.At {
		t.readAhead[c.slot] = &found{err: broken(c.Key, r.Err)}
	}
	m.advance()
}
