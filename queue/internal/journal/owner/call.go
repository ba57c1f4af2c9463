package owner

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue/internal/journal/format"
)

// retries are the pauses before a repeated attempt.
var retries = backoff.Policy{First: 20 * time.Millisecond, Limit: 2 * time.Second}

// maxBrokenReads is how often an object is read again before it counts as corrupt.
const maxBrokenReads = 2

// call emits a call and records it as in flight.
func (m *Machine) call(c *Call) {
	m.lastID++
	c.ID = m.lastID
	m.calls = append(m.calls, c)
	m.emit(c)
}

// take takes a call off those in flight; nil: it is none of them.
func (m *Machine) take(id uint64) *Call {
	at, found := slices.BinarySearchFunc(m.calls, id, func(c *Call, id uint64) int { return cmp.Compare(c.ID, id) })
	if !found {
		return nil
	}
	c := m.calls[at]
	m.calls = slices.Delete(m.calls, at, at+1)
	return c
}

// repeat repeats a call with the same bytes, after a pause.
func (m *Machine) repeat(c *Call, least time.Duration) {
	m.repeatAfter(c, max(m.pause(c.Attempt), least))
}

func (m *Machine) repeatAfter(c *Call, pause time.Duration) {
	next := *c
	next.Attempt++
	next.After = pause
	m.stats.Repeated++
	m.call(&next)
}

// pause returns the pause after an attempt; the first is attempt 0.
func (m *Machine) pause(attempt int) time.Duration { return m.jitter(retries.After(attempt + 1)) }

// jitter makes half of a pause random, so that owners do not retry in step. The random number is the machine's own, because the
// simulator repeats what happened.
func (m *Machine) jitter(p time.Duration) time.Duration {
	return p/2 + time.Duration(m.cfg.Rand()%uint64(p/2))
}

// Result handles the answer to a call.
func (m *Machine) Result(now time.Duration, r Result) []Effect {
	c := m.take(r.ID)
	if c == nil || m.phase == ended {
		return m.effects()
	}
	if c.Op == ReadHead && r.Answer == Done {
		if r.head, r.Err = format.DecodeHead(r.Data); r.Err != nil {
			r.Answer = Undecodable
		}
	}
	switch {
	case r.Answer == Undecodable && (c.undecodable >= maxBrokenReads || errors.Is(r.Err, format.ErrNewer)):
		if c.Op == ReadSlot {
			m.unreadable(c, r)
		} else {
			m.end(broken(c.Key, r.Err))
		}
	case r.Answer == Undecodable: // a read may be torn although the object is whole
		c.undecodable++
		m.repeat(c, r.Retry)
	case c.Op == List || c.Op == Delete:
		m.collected(c, r)
	case c.Op == CopyHead && m.head.Closed != 0:
		m.endClosed()
	case c.Op == CopyHead && c.Attempt >= maxAttempts:
	case (r.Answer == Failed || r.Answer == Unknown) && c.Op == CreateSlot && m.owns():
		m.writeFailed(now, c, r.Retry)
	case r.Answer == Failed && (c.Op == ReadPart || c.Op == ReadSlot):
		m.readFailed(c, r.Retry)
	case r.Answer == Failed, r.Answer == Unknown:
		m.repeat(c, r.Retry)
	case m.phase == taking:
		m.takeoverAnswered(c, r)
	default:
		m.ownerAnswered(now, c, r)
	}
	return m.effects()
}

// takeoverAnswered handles answers during the takeover.
func (m *Machine) takeoverAnswered(c *Call, r Result) {
	switch c.Op {
	case ReadHead:
		m.readHead(r)
	case CreateHead, ReplaceHead:
		m.headAnswered(r)
	case ReadPart:
		m.readPart(c, r)
	case ReadSlot:
		m.readSlot(c, r)
	case CreateSlot:
		m.fenceAnswered(c, r)
	}
}

// ownerAnswered handles answers while the machine owns the journal.
func (m *Machine) ownerAnswered(now time.Duration, c *Call, r Result) {
	switch c.Op {
	case CreateSlot, CreatePart:
		m.writeAnswered(now, c, r)
	case ReadHeader:
		m.headerAnswered(now, c, r)
	case ReplaceHead, ReadHead:
		m.headChangeAnswered(now, c, r)
	}
}

func slotCall(op Op, slot uint64) *Call {
	return &Call{Op: op, Key: format.SlotKey(slot), slot: slot}
}
