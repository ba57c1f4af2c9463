package owner

import (
	"maps"
	"math"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// readAhead reads parts and slots ahead, as far as memory allows.
func (m *Machine) readAhead() {
	t := m.take
	for t.askPart < len(t.objects) && t.askPart < t.nextPart+partsAhead {
		m.call(&Call{Op: ReadPart, Key: t.objects[t.askPart].Key(), part: t.askPart})
		t.askPart++
	}
	end := t.closed
	if end == 0 {
		end = math.MaxUint64
	}
	if t.got[t.At] == nil && t.At < end {
		m.askSlot(t.At)
	}
	for t.ask = max(t.ask, t.At); len(t.asking)+len(t.got) < m.ahead() && t.ask < end; {
		if t.got[t.ask] == nil {
			m.askSlot(t.ask)
		}
		t.ask++
	}
}

// ahead returns how many slots may be in flight or wait.
func (m *Machine) ahead() int {
	t := m.take
	return max(1, min(t.budget, m.cfg.Readahead, m.cfg.ReadBytes/max(t.size, 1)))
}

func (m *Machine) askSlot(slot uint64) {
	if !m.take.asking[slot] {
		m.take.asking[slot] = true
		m.call(slotCall(ReadSlot, slot))
	}
}

func (m *Machine) readPart(c *Call, r Result) {
	t := m.take
	want := format.Run{ID: t.replaced.Checkpoint.ID} // for the list of kept slots
	if c.part >= 0 {
		want = t.objects[c.part]
	}
	switch {
	case r.Answer == NotFound:
		m.doubt(missing(c.Key))
		return
	case r.Segment.Header.PutID != want.ID || !r.Segment.Header.Part || int(r.Segment.Header.Jump) != want.Part:
		m.end(corrupt(c.Key, "it is another part of the checkpoint"))
		return
	case c.part < 0:
		m.readKept(c, r.Segment)
	default:
		t.parts[c.part] = r.Segment
	}
	m.advance()
}

func (m *Machine) readKept(c *Call, s *format.Segment) {
	t := m.take
	for _, b := range s.Batches {
		for record := range b.Records() {
			slots, err := format.DecodeKept(record)
			if err != nil {
				m.end(broken(c.Key, err))
				return
			}
			t.kept = append(t.kept, slots...)
		}
	}
	if t.keptDue = false; len(t.kept) != t.replaced.Checkpoint.Kept {
		m.end(corrupt(c.Key, "it has %d slots, HEAD says %d", len(t.kept), t.replaced.Checkpoint.Kept))
	}
}

func (m *Machine) readSlot(c *Call, r Result) {
	t := m.take
	delete(t.asking, c.slot)
	if t.pending != nil && c.slot == t.At {
		m.reread(r)
		return
	}
	if t.gap != nil && c.slot == t.gap.at {
		m.missed(r)
		return
	}
	if r.Answer == Done {
		t.budget += 2
	}
	if c.slot >= t.At {
		t.got[c.slot] = &found{segment: r.Segment}
	}
	if r.Segment != nil {
		t.size = max(r.Segment.Size, t.size-t.size/16)
	}
	m.advance()
}

// advance restores and replays everything that was read and whose turn it is, and continues with R3
// at the end of the log.
func (m *Machine) advance() {
	t := m.take
	if t.created {
		m.own(1)
		return
	}
	for m.phase == taking && t.parts[t.nextPart] != nil {
		m.emit(Restore{t.parts[t.nextPart]})
		delete(t.parts, t.nextPart)
		t.nextPart++
	}
	for t.nextPart == len(t.objects) && !t.keptDue && m.phase == taking {
		if closed, _ := t.Closed(); closed {
			m.ownClosed()
			return
		}
		f, ok := t.got[t.At]
		if !ok {
			break
		}
		switch {
		case f.err != nil:
			if !m.unfit(t.At+1, f.err) {
				return
			}
			continue
		case f.segment == nil:
			m.firstEmpty()
			return
		}
		if !m.replay(f.segment) {
			return
		}
	}
	if m.phase == taking && t.pending == nil {
		m.readAhead()
	}
}

// replay emits the segment of slot t.At, or continues behind a fence. It reports whether the
// takeover goes on with the next slot.
func (m *Machine) replay(s *format.Segment) bool {
	t, h := m.take, s.Header
	if w := t.barriers[t.At]; w != nil && h.SamePut(w.Header) {
		t.fence = w
		m.verify() // R4
		return false
	}
	// Another process took over after us, or R1 will be refused; HEAD tells.
	if later := t.Later(h); later != nil {
		m.doubt(later)
		return false
	}
	if why := t.Fits(h); why != nil {
		return m.unfit(t.At+1, why)
	}
	m.time = max(m.time, s.Last())
	if !h.Fence {
		m.stats.Slots++
		m.stats.Bytes += int64(s.Size)
		if h.Records > 0 {
			m.emit(Replay{s})
		}
	}
	from := t.At
	for t.Take(h); from < t.At; from++ {
		delete(t.got, from)
	}
	return true
}

// ownClosed ends the takeover after a clean close: nothing can be outstanding, so no fence is
// needed.
func (m *Machine) ownClosed() {
	t := m.take
	if !t.confirmed || t.listing {
		return
	}
	if _, older := t.Closed(); older != nil {
		m.doubt(older)
		return
	}
	m.own(t.At)
}

// firstEmpty sends R3: slot t.At was empty when it was read, and only the creation of the fence
// proves that it still is.
func (m *Machine) firstEmpty() {
	t := m.take
	if t.confirmed && t.pending == nil && !t.verifying && m.ends() {
		t.fence = m.newFence(t.At)
		c := slotCall(CreateSlot, t.At)
		c.Write = t.fence
		t.pending = c
		m.call(c)
	}
}

// newFence makes a fence. It is linked to the segment before it only if it is where the log ends.
func (m *Machine) newFence(slot uint64) *Write {
	t := m.take
	link := t.link
	if slot != t.At {
		link = 0
	}
	jump := t.mine.Window // at least the window of the HEAD that R1 replaced
	return &Write{
		Header: format.Header{Slot: slot, Epoch: t.mine.Epoch, PutID: m.cfg.Rand(), Jump: uint32(jump), Fence: true, Previous: link, Known: t.At - 1},
		Body:   format.NewBody(max(m.time, 0)),
	}
}

// barrier stops an owner that writes so fast that our fence finds slot after slot taken. It creates
// a fence as far ahead as the next owner's fence would void, so that it is void if we are
// interrupted. The slots before it are read, or fenced, as before.
func (m *Machine) barrier() {
	t := m.take
	slot := t.At + uint64(t.mine.Window) - 1
	for s := range t.barriers {
		if s >= t.At { // the last barrier is still ahead
			return
		}
	}
	c := slotCall(CreateSlot, slot)
	c.Write = m.newFence(slot)
	t.barriers[slot] = c.Write
	m.call(c)
}

// fenced handles the answer to R3.
func (m *Machine) fenced(c *Call, r Result) {
	t := m.take
	switch {
	case c.Write != t.fence:
		return // a barrier: its outcome shows when its slot is read
	case r.Answer == Done:
		m.verify() // R4
		return
	}
	// The slot has a late write of an older owner, the fence of an interrupted takeover, or our
	// own fence. The earlier read proves nothing.
	t.pending = c
	m.askSlot(t.At)
}

// reread handles the content of the slot in which the fence could not be created.
func (m *Machine) reread(r Result) {
	t := m.take
	if r.Answer == NotFound { // refused although the slot is empty: some stores do that
		m.again(t.pending, 0)
		return
	}
	t.pending = nil
	if r.Segment.Header.SamePut(t.fence.Header) {
		m.verify()
		return
	}
	// The log continues: read further, and forget which slots were empty.
	maps.DeleteFunc(t.got, func(_ uint64, f *found) bool { return f.segment == nil })
	t.ask = t.At
	t.got[t.At] = &found{segment: r.Segment}
	m.barrier()
	m.advance()
}
