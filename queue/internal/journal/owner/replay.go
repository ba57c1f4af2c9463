package owner

import (
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// readAhead reads parts and slots ahead, as far as memory allows.
func (m *Machine) readAhead() {
	t := m.takeover
	for part := t.nextPart; part < min(len(t.objects), t.nextPart+t.partsAhead); part++ {
		if t.parts[part] == nil && !t.readingParts[part] {
			t.readingParts[part] = true
			m.call(&Call{Op: ReadPart, Key: t.objects[part].Key(), part: part})
		}
	}
	end := t.closed
	if end == 0 {
		end = math.MaxUint64
	}
	if t.readAhead[t.At] == nil && t.At < end {
		m.sendReadSlot(t.At)
	}
	for t.nextAhead = max(t.nextAhead, t.At); len(t.reading)+len(t.readAhead) < m.maxReadAhead() && t.nextAhead < end; {
		if t.readAhead[t.nextAhead] == nil {
			m.sendReadSlot(t.nextAhead)
		}
		t.nextAhead++
	}
}

// maxReadAhead returns how many slots may be in flight or wait.
func (m *Machine) maxReadAhead() int {
	t := m.takeover
	return max(1, min(t.budget, m.cfg.Readahead, m.cfg.ReadBytes/max(t.size, 1)))
}

func (m *Machine) sendReadSlot(slot uint64) {
	if !m.takeover.reading[slot] {
		m.takeover.reading[slot] = true
		m.call(slotCall(ReadSlot, slot))
	}
}

// readFailed handles a read of a part or a slot that has failed. Where the store or the network is too slow for all that is read
// ahead, none of it would arrive within the time of a request, again and again. So less is read ahead, and only what is next is
// read again now; the rest is when its turn comes nearer.
func (m *Machine) readFailed(c *Call, least time.Duration) {
	t := m.takeover
	if c.Op == ReadPart {
		t.partsAhead = max(1, t.partsAhead/2)
		if c.part > t.nextPart && t.readingParts[t.nextPart] {
			delete(t.readingParts, c.part)
			return
		}
	} else {
		t.budget = max(1, t.budget/2)
		if c.slot > t.At && t.reading[t.At] {
			delete(t.reading, c.slot)
			t.nextAhead = min(t.nextAhead, c.slot)
			return
		}
	}
	m.repeat(c, least)
}

func (m *Machine) readPart(c *Call, r Result) {
	t := m.takeover
	delete(t.readingParts, c.part)
	want := format.Run{ID: t.replaced.Checkpoint.ID} // for the list of kept slots
	if c.part >= 0 {
		want = t.objects[c.part]
	}
	switch {
	case r.Answer == NotFound:
		m.suspect(missing(c.Key))
		return
	case r.Segment.Header.PutID != want.ID || !r.Segment.Header.Part || int(r.Segment.Header.Jump) != want.Part:
		m.end(corrupt(c.Key, "it is another part of the checkpoint"))
		return
	case c.part < 0:
		m.readKept(c, r.Segment)
	default:
		t.parts[c.part] = r.Segment
		t.partsAhead = min(t.partsAhead+1, mostPartsAhead)
	}
	m.advance()
}

func (m *Machine) readKept(c *Call, s *format.Segment) {
	slots, err := KeptSlots(s, m.takeover.replaced.Checkpoint.Kept)
	if err != nil {
		m.end(broken(c.Key, err))
		return
	}
	m.takeover.kept, m.takeover.keptDue = slots, false
}

// KeptSlots returns the slots that an object lists as kept; want is how many HEAD says there are.
func KeptSlots(s *format.Segment, want int) ([]uint64, error) {
	var all []uint64
	for _, b := range s.Batches {
		for record := range b.Records() {
			slots, err := format.DecodeKept(record)
			if err != nil {
				return nil, err
			}
			all = append(all, slots...)
		}
	}
	if len(all) != want {
		return nil, fmt.Errorf("%w: it has %d slots, HEAD says %d", format.ErrCorrupt, len(all), want)
	}
	return all, nil
}

func (m *Machine) readSlot(c *Call, r Result) {
	t := m.takeover
	delete(t.reading, c.slot)
	if t.refusedFence != nil && c.slot == t.At {
		m.fenceSlotRead(r)
		return
	}
	if t.suspectSlot != nil && c.slot == t.suspectSlot.at {
		m.suspectReread(r)
		return
	}
	if r.Answer == Done {
		t.budget += 2
	}
	if c.slot >= t.At {
		t.readAhead[c.slot] = &found{segment: r.Segment}
	}
	if r.Segment != nil {
		t.size = max(r.Segment.Size, t.size-t.size/16)
	}
	m.advance()
}

// advance restores and replays everything that was read and whose turn it is, and continues with R3
// at the end of the log.
func (m *Machine) advance() {
	t := m.takeover
	if t.created {
		m.beginOwnership(1)
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
		f, ok := t.readAhead[t.At]
		if !ok {
			break
		}
		switch {
		case f.err != nil:
			if !m.skipOrFail(t.At+1, f.err) {
				return
			}
			continue
		case f.segment == nil:
			m.createFence()
			return
		}
		if !m.replay(f.segment) {
			return
		}
	}
	if m.phase == taking && t.refusedFence == nil {
		m.readAhead()
	}
}

// replay emits the segment of slot t.At, or continues behind a fence. It reports whether the
// takeover goes on with the next slot.
func (m *Machine) replay(s *format.Segment) bool {
	t, h := m.takeover, s.Header
	if w := t.barriers[t.At]; w != nil && h.SamePut(w.Header) {
		t.fence = w
		m.rereadHead() // R4
		return false
	}
	// Another process took over after us, or R1 will be refused; HEAD tells.
	if later := t.CheckHead(h); later != nil {
		m.suspect(later)
		return false
	}
	if why := t.CheckSegment(h); why != nil {
		return m.skipOrFail(t.At+1, why)
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
	for t.Advance(h); from < t.At; from++ {
		delete(t.readAhead, from)
	}
	return true
}

// ownClosed ends the takeover after a clean close: nothing can be outstanding, so no fence is
// needed.
func (m *Machine) ownClosed() {
	t := m.takeover
	if !t.headReplaced || t.listing {
		return
	}
	if _, older := t.Closed(); older != nil {
		m.suspect(older)
		return
	}
	m.beginOwnership(t.At)
}

// createFence sends R3: slot t.At was empty when it was read, and only the creation of the fence
// proves that it still is.
func (m *Machine) createFence() {
	t := m.takeover
	if t.headReplaced && t.refusedFence == nil && !t.verifying && m.isLogEnd() {
		t.fence = m.newFence(t.At)
		c := slotCall(CreateSlot, t.At)
		c.Write = t.fence
		t.refusedFence = c
		m.call(c)
	}
}

// newFence makes a fence. It is linked to the segment before it only if it is where the log ends.
func (m *Machine) newFence(slot uint64) *Write {
	t := m.takeover
	link := t.previousPutID
	if slot != t.At {
		link = 0
	}
	jump := t.newHead.Window // at least the window of the HEAD that R1 replaced
	return &Write{
		Header: format.Header{Slot: slot, Epoch: t.newHead.Epoch, PutID: m.cfg.Rand(), Jump: uint32(jump), Fence: true, Previous: link, AckedUpTo: t.At - 1},
		Body:   format.NewBody(max(m.time, 0)),
	}
}

// createBarrier stops an owner that writes so fast that our fence finds slot after slot taken. It creates
// a fence as far ahead as the next owner's fence would void, so that it is void if we are
// interrupted. The slots before it are read, or fenced, as before.
func (m *Machine) createBarrier() {
	t := m.takeover
	slot := t.At + uint64(t.newHead.Window) - 1
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

// fenceAnswered handles the answer to R3.
func (m *Machine) fenceAnswered(c *Call, r Result) {
	t := m.takeover
	switch {
	case c.Write != t.fence:
		return // a barrier: its outcome shows when its slot is read
	case r.Answer == Done:
		m.rereadHead() // R4
		return
	}
	// The slot has a late write of an older owner, the fence of an interrupted takeover, or our
	// own fence. The earlier read proves nothing.
	t.refusedFence = c
	m.sendReadSlot(t.At)
}

// fenceSlotRead handles the content of the slot in which the fence could not be created.
func (m *Machine) fenceSlotRead(r Result) {
	t := m.takeover
	if r.Answer == NotFound { // refused although the slot is empty: some stores do that
		m.repeat(t.refusedFence, 0)
		return
	}
	t.refusedFence = nil
	if r.Segment.Header.SamePut(t.fence.Header) {
		m.rereadHead()
		return
	}
	// The log continues: read further, and forget which slots were empty.
	maps.DeleteFunc(t.readAhead, func(_ uint64, f *found) bool { return f.segment == nil })
	t.nextAhead = t.At
	t.readAhead[t.At] = &found{segment: r.Segment}
	m.createBarrier()
	m.advance()
}
