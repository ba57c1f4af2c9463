package owner

import (
	"maps"
	"math"

	"github.com/emitd/emitd/daemon/queue/journal/format"
)

// readAhead asks for parts and slots as far as memory allows.
func (m *Machine) readAhead() {
	t := &m.take
	for t.askPart < len(t.objects) && t.askPart < t.nextPart+partsAhead {
		m.call(&Call{Op: ReadPart, Key: t.objects[t.askPart].Key(), part: t.askPart})
		t.askPart++
	}
	end := t.replaced.Closed
	if end == 0 {
		end = math.MaxUint64
	}
	if t.got[t.at] == nil && t.at < end {
		m.askSlot(t.at)
	}
	for t.ask = max(t.ask, t.at); len(t.asking)+len(t.got) < m.ahead() && t.ask < end; {
		if t.got[t.ask] == nil {
			m.askSlot(t.ask)
		}
		t.ask++
	}
}

// ahead is how many slots may be asked for or wait.
func (m *Machine) ahead() int {
	t := &m.take
	return max(1, min(t.budget, m.cfg.Readahead, m.cfg.ReadBytes/max(t.size, 1)))
}

func (m *Machine) askSlot(slot uint64) {
	if !m.take.asking[slot] {
		m.take.asking[slot] = true
		m.call(slotCall(ReadSlot, slot))
	}
}

func (m *Machine) readPart(c *Call, r Result) {
	t := &m.take
	want := format.Run{ID: t.replaced.Checkpoint.ID} // of the list of kept slots
	if c.part >= 0 {
		want = t.objects[c.part]
	}
	switch {
	case r.Answer == NotFound && c.part >= 0 && c.part < len(t.replaced.Checkpoint.Runs) && bug(missingRunEmpty):
		t.parts[c.part] = &format.Segment{}
	case r.Answer == NotFound:
		m.doubt(missing(c.Key))
		return
	case r.Segment.Header.PutID != want.ID || !r.Segment.Header.Part || int(r.Segment.Header.Jump) != want.Part:
		m.end(corrupt(c.Key, "it is not this part of the checkpoint"))
		return
	case c.part < 0:
		m.readKept(c, r.Segment)
	default:
		t.parts[c.part] = r.Segment
	}
	m.advance()
}

func (m *Machine) readKept(c *Call, s *format.Segment) {
	t := &m.take
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
	t := &m.take
	delete(t.asking, c.slot)
	if t.pending != nil && c.slot == t.at {
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
	if c.slot >= t.at {
		t.got[c.slot] = &found{segment: r.Segment}
	}
	if r.Segment != nil {
		t.size = max(r.Segment.Size, t.size-t.size/16)
	}
	m.advance()
}

// advance restores and replays what is there, in order, and goes on with R3 at the end.
func (m *Machine) advance() {
	t := &m.take
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
		if t.replaced.Closed != 0 && t.at >= t.replaced.Closed {
			m.ownClosed()
			return
		}
		f, ok := t.got[t.at]
		if !ok {
			break
		}
		switch {
		case f.err != nil:
			m.unfit(f.err)
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

// replay adds the segment of slot t.at to the state, or goes on behind a fence. It reports whether
// the takeover goes on with the next slot.
func (m *Machine) replay(s *format.Segment) bool {
	t, h, key := &m.take, s.Header, format.SlotKey(m.take.at)
	switch {
	case h.Slot != t.at || h.Part:
		return m.unfit(corrupt(key, "it says slot %d, part %t", h.Slot, h.Part))
	case !h.Follows(t.link):
		return m.unfit(corrupt(key, "it does not follow what is before it: one of the two is not what was written there"))
	case t.barriers[t.at] != nil && h.SamePut(t.barriers[t.at].Header):
		t.fence = t.barriers[t.at]
		m.verify() // R4
		return false
	case h.Epoch >= t.mine.Epoch:
		// Somebody took over after us, or R1 will be refused; HEAD tells.
		m.doubt(corrupt(key, "epoch %d, HEAD says %d", h.Epoch, t.mine.Epoch))
		return false
	case h.Epoch < t.epoch:
		// Or the slots between were collected, and an interrupted starter's fence fills the gap.
		return m.unfit(corrupt(key, "epoch %d follows epoch %d: an owner wrote beyond its window", h.Epoch, t.epoch))
	}
	t.epoch, t.link = h.Epoch, h.PutID
	m.time = max(m.time, s.Last())
	step := uint64(1)
	if h.Fence {
		step = uint64(h.Jump)
	} else {
		m.stats.Slots++
		m.stats.Bytes += int64(s.Size)
		if h.Records > 0 {
			m.emit(Replay{s})
		}
	}
	for ; step > 0; step-- {
		delete(t.got, t.at)
		t.at++
	}
	return true
}

// ownClosed takes over after a clean close: nothing can be outstanding, no fence is needed.
func (m *Machine) ownClosed() {
	t := &m.take
	if t.at > t.replaced.Closed {
		m.doubt(corrupt(format.HeadKey, "closed at slot %d, but the log goes to %d", t.replaced.Closed, t.at))
		return
	}
	if !t.confirmed || t.listing {
		return
	}
	if n := len(t.tail); n > 0 && t.tail[n-1] >= t.at {
		m.doubt(corrupt(format.HeadKey, "closed at slot %d, but slot %d is there: HEAD is an older copy", t.at, t.tail[n-1]))
		return
	}
	m.own(t.at)
}

// firstEmpty is R3: the slot t.at was empty when it was read. Whether it still is, only the
// creation of the fence tells.
func (m *Machine) firstEmpty() {
	t := &m.take
	switch {
	case t.replaced.Closed != 0:
		m.doubt(missing(format.SlotKey(t.at)))
	case t.confirmed && t.pending == nil && !t.verifying && m.ends():
		t.fence = m.newFence(t.at)
		c := slotCall(CreateSlot, t.at)
		c.Write = t.fence
		t.pending = c
		m.call(c)
	}
}

// newFence makes a fence. What comes before it is known only if it stands where the log ends.
func (m *Machine) newFence(slot uint64) *Write {
	t := &m.take
	link := t.link
	if slot != t.at {
		link = 0
	}
	jump := t.mine.Window // at least the window of the HEAD that R1 replaced
	if bug(jumpOfOwnWindow) {
		jump = m.cfg.Window
	}
	return &Write{
		Header: format.Header{Slot: slot, Epoch: t.mine.Epoch, PutID: m.cfg.Rand(), Jump: uint32(jump), Fence: true, Previous: link, Known: t.at - 1},
		Body:   format.NewBody(max(m.time, 0)),
	}
}

// barrier stops an owner that writes on at full speed, so that our fence comes too late for slot
// after slot: a fence as far ahead as the next owner's fence would void, if we should not get any
// further. The slots before it are read, or fenced, as ever.
func (m *Machine) barrier() {
	t := &m.take
	slot := t.at + uint64(t.mine.Window) - 1
	if bug(barrierTooFar) {
		slot += 2 * uint64(t.mine.Window)
	}
	for s := range t.barriers {
		if s >= t.at { // it is not passed yet
			return
		}
	}
	c := slotCall(CreateSlot, slot)
	c.Write = m.newFence(slot)
	t.barriers[slot] = c.Write
	m.call(c)
}

// fenced takes the answer to R3.
func (m *Machine) fenced(c *Call, r Result) {
	t := &m.take
	switch {
	case c.Write != t.fence:
		return // a barrier: it is met when it is read
	case r.Answer == Done:
		m.verify() // R4
		return
	case bug(staleEmpty): // the prefetch said that the slot is empty: what is there now must be void
		delete(t.got, t.at)
		t.pending = nil
		t.at++
		m.advance()
		return
	}
	// An older owner's late commit, an interrupted starter's fence, or our own. What was read
	// before does not count.
	t.pending = c
	m.askSlot(t.at)
}

// reread takes what stands in the slot in which the fence could not be created.
func (m *Machine) reread(r Result) {
	t := &m.take
	if r.Answer == NotFound { // refused and yet empty: stores do that
		m.again(t.pending, 0)
		return
	}
	t.pending = nil
	if r.Segment.Header.SamePut(t.fence.Header) {
		m.verify()
		return
	}
	// The log goes on after all: look further, and forget which slots were empty.
	maps.DeleteFunc(t.got, func(_ uint64, f *found) bool { return f.segment == nil })
	t.ask = t.at
	t.got[t.at] = &found{segment: r.Segment}
	m.barrier()
	if r.Segment.Header.Fence && bug(fenceAsData) {
		t.got[t.at+1] = &found{}
		m.time = max(m.time, r.Segment.Last())
		delete(t.got, t.at)
		t.at++
	}
	m.advance()
}
