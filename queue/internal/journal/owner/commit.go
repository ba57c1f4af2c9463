package owner

import (
	"fmt"
	"math"
	"time"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// minTime is before every time of a journal.
const minTime = math.MinInt64

// commits is the pipeline of segments:
//
//	gather ─▶ sealed ─▶ window (outstanding, at most W) ─▶ durable
//
// Slots are numbered in this order without gaps, so the slot of a record is known when it is
// appended.
type commits struct {
	gathering     *format.Body // records of the next segment; nil if there are none
	callers       int          // who wait for gathering
	lastCallers   int          // who waited for the newest segment before it
	sealed        []format.Body
	window        []outstanding // slots durable+1 … next-1
	next          uint64        // the slot of the next segment
	durable       uint64
	pending       int // bytes in gather, sealed and window
	lastSegmentAt time.Duration
	latency       time.Duration // latency of a write, smoothed
	budget        budget
	congestion    congestion
	lastPutID     uint64 // put ID of the newest segment or fence; 0: not known

	// Only the newest segment proves that its records exist, until the next one is written. If
	// none follows, a mark is written: a segment without records.
	unmarked bool          // no mark or segment follows the newest records
	ackedAt  time.Duration // when durable last grew
	markedAt time.Duration // when the newest idle mark was written
	wakeAt   time.Duration // when Tick is requested
}

type outstanding struct {
	write   *Write
	bytes   int
	sentAt  time.Duration // when its write began
	triedAt time.Duration // when its newest attempt was sent, or will be
	written bool
	failed  *Call         // the newest attempt, if it has failed and the next one waits for room
	retryAt time.Duration // the earliest time of that next attempt
}

// overhead is the most bytes that a record takes in a body in addition to its own.
const overhead = 16

// beginOwnership begins the ownership; first is the first slot for records (R5).
func (m *Machine) beginOwnership(first uint64) {
	t := m.takeover
	m.phase, m.head, m.version = owning, t.newHead, t.version
	m.log.next, m.log.durable = first, first-1
	m.log.latency = m.cfg.MaxGap * time.Duration(m.cfg.Window) // until a write was measured
	m.log.congestion = congestion{bound: float64(m.cfg.Window), reducedAt: never}
	m.log.lastPutID = t.previousPutID
	m.collector.kept = t.kept
	m.takeover, m.attemptNonces, m.calls = nil, nil, nil
	m.emit(Owned{})
	m.copyHead()
}

// newestSlot returns the highest slot that has a record.
func (m *Machine) newestSlot() uint64 {
	slot := m.log.next + uint64(len(m.log.sealed))
	if m.log.gathering == nil {
		slot--
	}
	return slot
}

// Append adds records to the segment that is being gathered and returns its slot. callers is how many wait for them. If
// at is before the journal's newest time, that time is used.
func (m *Machine) Append(now time.Duration, at int64, callers int, records [][]byte) (uint64, []Effect, error) {
	size := 0
	for _, r := range records {
		size += len(r) + overhead
	}
	switch {
	case m.phase == ended && m.err != nil:
		return 0, nil, m.err
	case m.phase != owning:
		return 0, nil, ErrClosed
	case len(records) == 0:
		return m.newestSlot(), nil, nil
	case size > m.cfg.MaxCall:
		return 0, nil, fmt.Errorf("%w: about %d bytes, at most %d are allowed", ErrTooLarge, size, m.cfg.MaxCall)
	case m.log.pending > 0 && m.log.pending+size > m.cfg.MaxPending:
		return 0, nil, ErrFull
	}
	l := &m.log
	if l.gathering != nil && l.gathering.Len()+size > m.cfg.MaxSegment {
		m.seal()
	}
	m.time = max(m.time, at)
	fresh := l.gathering == nil
	if fresh {
		b := format.NewBody(m.time)
		l.gathering = &b
	}
	before := l.gathering.Len()
	if fresh {
		before = 0
	}
	l.gathering.Add(m.time, records...)
	l.callers += callers
	l.budget.earn(len(records))
	l.pending += l.gathering.Len() - before
	slot := m.newestSlot()
	if l.gathering.Len() >= m.cfg.MaxSegment {
		m.seal()
	}
	m.writeSegments(now)
	return slot, m.effects(), nil
}

// seal ends the segment that is being gathered, if there is one. It is written as soon as the window
// allows.
func (m *Machine) seal() {
	if m.log.gathering != nil {
		m.log.sealed = append(m.log.sealed, m.gathered())
	}
}

// gathered takes the segment that is being gathered.
func (m *Machine) gathered() format.Body {
	l := &m.log
	body := *l.gathering
	l.gathering, l.callers, l.lastCallers = nil, 0, l.callers
	return body
}

// Tick tells the machine the time.
func (m *Machine) Tick(now time.Duration) []Effect {
	m.log.wakeAt = never
	if m.owns() {
		m.writeSegments(now)
	}
	return m.effects()
}

// writeSegments writes segments while the window has room.
func (m *Machine) writeSegments(now time.Duration) {
	m.repeatWrites(now)
	for l := &m.log; m.windowHasRoom(); {
		switch due := m.nextSegmentAt(); {
		case now < l.congestion.pauseEnds && (len(l.sealed) > 0 || l.gathering != nil):
			m.wakeAt(l.congestion.pauseEnds)
			return
		case len(l.sealed) > 0:
			body := l.sealed[0]
			l.sealed[0] = format.Body{}
			l.sealed = l.sealed[1:]
			m.writeSegment(now, body)
		case l.gathering == nil:
			m.writeIdleMark(now)
			return
		case now >= due || m.phase == closing:
			m.writeSegment(now, m.gathered())
		default:
			m.wakeAt(due)
			return
		}
	}
}

// wakeAt asks for a Tick at a time.
func (m *Machine) wakeAt(at time.Duration) {
	if m.log.wakeAt != at {
		m.log.wakeAt = at
		m.emit(SetTimer{At: at})
	}
}

// writeIdleMark writes a segment without records if the journal has been idle for long enough.
func (m *Machine) writeIdleMark(now time.Duration) {
	l := &m.log
	if !l.unmarked || m.cfg.MarkAfter == 0 || m.phase != owning || len(l.window) > 0 || m.head.AckedBelow > l.durable {
		return
	}
	if due := max(l.ackedAt+m.cfg.MarkAfter, l.markedAt+m.cfg.MarkEvery); now < due {
		m.wakeAt(due)
		return
	}
	body := format.NewBody(m.time)
	body.Add(m.time)
	l.pending += body.Len()
	m.writeSegment(now, body)
	l.unmarked, l.markedAt = false, now
}

// nextSegmentAt returns the earliest time at which the records that are being gathered become a segment.
func (m *Machine) nextSegmentAt() time.Duration {
	l := &m.log
	due := l.budget.nextAt()
	if len(l.window) == 0 && m.cfg.MaxGap > m.cfg.MinGap {
		// Nothing is being written. Callers who were answered together come back together, so the first of them waits for
		// the others, but for no longer than two writes take. One that was alone waits for nobody.
		if l.callers < l.lastCallers {
			due = max(due, l.ackedAt+min(m.cfg.MinGap, 2*l.latency))
		}
		return due
	}
	// Spread over the latency of a write, the segments fill the window exactly. The fewer writes are under
	// way, the sooner the next one begins: callers who were answered together come back together, and the
	// first of them must not make the others wait.
	window := time.Duration(m.cfg.Window)
	gap := l.latency / window * 2 * time.Duration(len(l.window)) / window
	return max(due, l.lastSegmentAt+max(m.cfg.MinGap, min(m.cfg.MaxGap, gap)))
}

// windowHasRoom reports whether another slot may be outstanding. The window counts from the lowest slot that
// is not acknowledged, even if higher ones are written already, because the next owner's fence
// voids exactly that many slots. Writes that have failed come first.
func (m *Machine) windowHasRoom() bool {
	return len(m.log.window) < m.cfg.Window && m.log.congestion.hasRoom() && m.log.congestion.failed == 0
}

// writeSegment gives the next slot to a body and writes it as a segment.
func (m *Machine) writeSegment(now time.Duration, body format.Body) {
	l := &m.log
	w := &Write{
		Header: format.Header{Slot: l.next, Epoch: m.head.Epoch, PutID: m.cfg.Rand(), Previous: l.lastPutID, AckedUpTo: l.durable},
		Body:   body,
	}
	l.lastPutID, l.unmarked = w.Header.PutID, true
	if c := m.ckpt; c != nil && c.upTo == l.next {
		c.ref.LastPutID = l.lastPutID
	}
	l.window = append(l.window, outstanding{write: w, bytes: body.Len(), sentAt: now, triedAt: now})
	l.congestion.underWay++
	m.stats.Segments++
	m.stats.Records += int64(body.Records())
	c := slotCall(CreateSlot, l.next)
	c.Write = w
	l.next++
	l.lastSegmentAt = now
	l.budget.spend(now)
	m.call(c)
}

// writeAnswered handles the answer to the write of a segment or of a part of a checkpoint.
func (m *Machine) writeAnswered(now time.Duration, c *Call, r Result) {
	if r.Answer == Done {
		m.written(now, c)
		return
	}
	// The key is taken, by an earlier attempt of ours or by another process. The header tells.
	m.call(&Call{Op: ReadHeader, Key: c.Key, refusedWrite: c})
}

func (m *Machine) written(now time.Duration, c *Call) {
	if c.Op == CreatePart {
		m.partStored(c)
	} else {
		m.slotWritten(now, c.slot)
	}
}

// headerAnswered handles the header of an object that existed already.
func (m *Machine) headerAnswered(now time.Duration, c *Call, r Result) {
	h, w := r.Header, c.refusedWrite
	switch {
	case r.Answer == NotFound: // refused although the key does not exist: some stores do that
		m.repeat(w, 0)
	case h.SamePut(w.Write.Header):
		m.stats.Recognised++
		m.written(now, w)
	case h.Epoch > m.head.Epoch && w.Op == CreateSlot:
		m.end(fmt.Errorf("slot %d: %w: epoch %d, ours is %d", w.slot, ErrFenced, h.Epoch, m.head.Epoch))
	default:
		m.end(corrupt(w.Key, "epoch %d wrote it, in the window of epoch %d", h.Epoch, m.head.Epoch))
	}
}

// slotWritten marks a slot as written, and acknowledges slots strictly in order.
func (m *Machine) slotWritten(now time.Duration, slot uint64) {
	l := &m.log
	o := &l.window[slot-l.durable-1]
	if o.written {
		return
	}
	o.written = true
	l.congestion.written(now, o, m.cfg.Window)
	m.pauseWrites(now)
	l.latency += (now - o.sentAt - l.latency) / 8
	size := int64(o.write.Size())
	m.stats.Slots++
	m.stats.Bytes += size
	m.stats.SegmentBytes += size
	before := l.durable
	for len(l.window) > 0 && l.window[0].written {
		l.pending -= l.window[0].bytes
		l.window[0] = outstanding{}
		l.window = l.window[1:]
		l.durable++
	}
	if l.durable > before {
		l.ackedAt = now
		m.emit(Ack{Slot: l.durable})
	}
	m.writeSegments(now)
	m.updateHead()
}

// Close accepts no more records, writes what is left, and then marks HEAD as closed.
func (m *Machine) Close(now time.Duration) []Effect {
	switch m.phase {
	case owning:
		m.phase = closing
		if m.change == nil { // otherwise HEAD is about to name it
			m.ckpt = nil
		}
		m.seal()
		m.writeSegments(now)
		m.updateHead()
	case idle, taking:
		m.end(ErrClosed)
	}
	return m.effects()
}
