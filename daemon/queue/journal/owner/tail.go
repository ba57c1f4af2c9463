package owner

import (
	"fmt"
	"slices"

	"github.com/emitd/emitd/daemon/queue/journal/format"
)

// The log ends at the first slot that is empty; but a slot whose segment was deleted is empty, too. A
// takeover therefore looks beyond it, before it fences. A slot was filled once if
//
//   - HEAD says that every slot below a higher one was acknowledged,
//   - a slot is there that no owner may fill before this one is acknowledged: a window ahead, or
//   - a segment behind it says that every slot up to a higher one was there when it was written.
//
// What is in the slots behind an empty one is otherwise void, as ever.

// gap is why the slot at is missing, not the end of the log, if it is still empty when it is read again.
type gap struct {
	at  uint64
	why error
}

// listedLog takes a page of the keys of the log.
func (m *Machine) listedLog(r Result) {
	t := &m.take
	last := ""
	for _, e := range r.Entries {
		if slot, ok := format.ParseSlotKey(e.Key); ok {
			t.tail = append(t.tail, slot)
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

// ends reports whether the log ends at the slot t.at, which was empty when it was read. If it is not
// known yet, or not so, advance is called again.
func (m *Machine) ends() bool {
	t := &m.take
	if t.listing || t.gap != nil {
		return false
	}
	if t.given == t.at && t.given != 0 {
		return true
	}
	why, known := m.filledOnce()
	if !known {
		return false
	}
	if why == nil || bug(gapIsEnd) {
		return true
	}
	// An owner that is still writing may have filled it since.
	t.gap = &gap{at: t.at, why: &ObjectError{Key: format.SlotKey(t.at), Kind: ErrMissing, Err: why}}
	delete(t.got, t.at)
	m.askSlot(t.at)
	return false
}

// filledOnce says why the slot t.at was filled once; nil: nothing says so. known is false while slots
// are being read that may say so.
func (m *Machine) filledOnce() (why error, known bool) {
	t := &m.take
	if t.at < t.mine.Known {
		return fmt.Errorf("HEAD says that every slot below %d was written", t.mine.Known), true
	}
	known = true
	from, _ := slices.BinarySearch(t.tail, t.at+1)
	for _, slot := range t.tail[from:] {
		if slot >= t.at+uint64(t.mine.Window) {
			return fmt.Errorf("slot %d is there, which nobody may fill before this one is acknowledged", slot), true
		}
		switch f := t.got[slot]; {
		case f == nil:
			m.askSlot(slot)
			known = false
		case f.segment == nil && !t.twice[slot] && f.err == nil: // it was read before it was listed
			t.twice[slot] = true
			delete(t.got, slot)
			m.askSlot(slot)
			known = false
		case f.segment != nil && f.segment.Header.Known >= t.at:
			return fmt.Errorf("slot %d says that every slot up to %d was there when it was written", slot, f.segment.Header.Known), true
		}
	}
	return nil, known
}

// missed takes what stands in a slot that should not be empty.
func (m *Machine) missed(r Result) {
	t := &m.take
	why := t.gap.why
	t.gap = nil
	if r.Answer == NotFound {
		if m.unfit(why) {
			m.advance()
		}
		return
	}
	t.got[t.at] = &found{segment: r.Segment}
	m.advance()
}

// unfit handles a slot that is missing, or whose segment is not what belongs there. It reports whether
// the takeover goes on behind it.
func (m *Machine) unfit(why error) bool {
	t := &m.take
	if !m.cfg.Salvage {
		m.doubt(why)
		return false
	}
	next := t.at + 1
	if from, _ := slices.BinarySearch(t.tail, next); from < len(t.tail) {
		next = t.tail[from]
	} else if t.got[t.at] == nil { // nothing follows: the log ends here now
		m.emit(Lost{Slot: t.at, Next: max(t.mine.Known, next), Err: why})
		t.given = t.at
		t.got[t.at] = &found{}
		return true
	}
	m.emit(Lost{Slot: t.at, Next: next, Err: why})
	for ; t.at < next; t.at++ {
		delete(t.got, t.at)
	}
	t.link = 0
	return true
}

// salvage takes a segment that cannot be read.
func (m *Machine) salvage(c *Call, r Result) {
	t := &m.take
	delete(t.asking, c.slot)
	if t.gap != nil && c.slot == t.gap.at {
		t.gap = nil
	}
	if t.pending != nil && c.slot == t.at { // no fence can be made where it stands
		t.pending = nil
	}
	if c.slot >= t.at {
		t.got[c.slot] = &found{err: broken(c.Key, r.Err)}
	}
	m.advance()
}
