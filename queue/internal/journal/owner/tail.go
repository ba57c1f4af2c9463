package owner

import (
	"errors"
	"maps"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// gap is an empty slot, at, behind which acknowledged slots are known or suspected. If it is still
// empty when it is read again, it is missing; see Trail.Acknowledged.
type gap struct {
	at, until uint64
	why       error
}

// listedLog handles a page of the keys of the log.
func (m *Machine) listedLog(r Result) {
	t := m.take
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

// ends reports whether the log ends at slot At, which was empty when it was read. If that is not
// known yet, or not so, advance is called again.
func (m *Machine) ends() bool {
	t := m.take
	if t.listing || t.gap != nil {
		return false
	}
	if t.end == t.At {
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
	t.gap = &gap{at: t.At, until: until, why: why}
	delete(t.got, t.At)
	m.askSlot(t.At)
	return false
}

// acknowledged asks the trail about the empty slot At. known is false while slots are being read
// that may change the answer.
func (m *Machine) acknowledged() (until uint64, why error, known bool) {
	t := m.take
	known = true
	until, why = t.Acknowledged(func(slot uint64) (format.Header, error) {
		switch f := t.got[slot]; {
		case f == nil:
			known = false
			m.askSlot(slot)
		case f.err != nil:
			return format.Header{}, f.err
		case f.segment != nil:
			return f.segment.Header, nil
		case !t.twice[slot]: // it was read before it was listed
			known, t.twice[slot] = false, true
			delete(t.got, slot)
			m.askSlot(slot)
		}
		return format.Header{}, nil
	})
	return until, why, known || until > t.At
}

// missed handles the second read of a slot that should not be empty.
func (m *Machine) missed(r Result) {
	t := m.take
	g := t.gap
	t.gap = nil
	switch {
	case r.Answer != NotFound:
		t.got[t.At] = &found{segment: r.Segment}
	case g.until == t.At && m.cfg.Salvage && !errors.Is(g.why, ErrNewer):
		// Nobody knows whether the slot was filled. Our fence proves whether it still can
		// be, so it must be created here.
		m.emit(Lost{Slot: t.At, Next: t.Slots[len(t.Slots)-1] + 1, Err: g.why})
		t.end, t.got[t.At] = t.At, &found{}
	case !m.unfit(g.until, g.why):
		return
	}
	m.advance()
}

// unfit handles a slot that is missing or has a segment that does not belong there. until is as for
// Trail.Pass. It reports whether the takeover continues behind it.
func (m *Machine) unfit(until uint64, why error) bool {
	t := m.take
	if !m.cfg.Salvage || errors.Is(why, ErrNewer) {
		m.doubt(why)
		return false
	}
	from := t.At
	t.Pass(until)
	m.emit(Lost{Slot: from, Next: t.At, Err: why})
	maps.DeleteFunc(t.got, func(slot uint64, _ *found) bool { return slot < t.At })
	return true
}

// unreadable handles a segment that cannot be read. It matters only when it is its turn, because
// its slot may be void.
func (m *Machine) unreadable(c *Call, r Result) {
	t := m.take
	delete(t.asking, c.slot)
	if t.gap != nil && c.slot == t.gap.at {
		t.gap = nil
	}
	if t.pending != nil && c.slot == t.At { // no fence can be created where it is
		t.pending = nil
	}
	if c.slot >= t.At {
		t.got[c.slot] = &found{err: broken(c.Key, r.Err)}
	}
	m.advance()
}
