package queue

import (
	"fmt"
	"time"
)

const (
	// A successor has read so much in no time.
	partSlots = 256
	partBytes = 4 << 20
	// partWait is how long a drain waits for a checkpoint.
	partWait = 3 * time.Second
)

// part prepares a drain. If the successor would have much to replay, a checkpoint is written first,
// while everybody is served: what callers wait for is the successor.
func (s *shard) part() {
	s.leave = time.Now()
	if st := s.log.Stats(); st.Slots > partSlots || st.Bytes > max(partBytes, s.ledger.Bytes()/16) {
		s.leave = s.leave.Add(partWait)
		if s.ckpt.log == nil {
			s.beginCheckpoint()
		}
	}
}

// ready reports whether the drain is to begin: the checkpoint counts, or has failed, or is waited
// for too long.
func (s *shard) ready() bool {
	switch {
	case s.leave.IsZero():
		return false
	case !time.Now().Before(s.leave):
		return true
	case s.ckpt.log != nil:
		return false
	}
	select {
	case <-s.prepared():
		return true
	default:
		return s.written == nil
	}
}

// prepared is closed when the checkpoint that a drain waits for is complete.
func (s *shard) prepared() <-chan struct{} {
	if s.leave.IsZero() || s.ckpt.log != nil || s.written == nil {
		return nil
	}
	return s.written.Done()
}

// notOwner says that another broker is to be asked.
func (s *shard) notOwner() *Error { return s.b.notOwner(s.name, s.index) }

// fail refuses a call that this broker may not answer any more.
func (s *shard) fail(c *call) {
	switch {
	case c.wrote:
		c.refuse(unknown("the broker lost the queue before this was durable"))
	case c.take():
		c.refuse(s.notOwner())
	}
}

func unknown(why string) *Error {
	e := Refuse(UnknownOutcome, "%s", why).WithHint("repeat the call with the same IDs, keys or tokens")
	e.RetryAfter = 100 * time.Millisecond
	return e
}

// drain ends the run in order: what was decided is written and answered, everybody else is sent
// away, and the journal is closed so that the successor starts at once.
func (s *shard) drain() {
	s.clock()
	s.drained, s.leave = true, time.Time{}
	s.b.forget(s)
	s.flush()
	s.dismiss()
	s.ckpt.abort()
	s.closing = make(chan error, 1)
	go func() { s.closing <- s.log.Close(s.ctx) }()
}

// dismiss sends everybody away who waits for nothing that is under way.
func (s *shard) dismiss() {
	for _, c := range append(s.again, s.polls...) {
		s.fail(c)
	}
	s.again, s.polls = nil, nil
	for _, w := range s.works {
		for _, c := range w.parked {
			s.fail(c)
		}
		w.parked = nil
	}
	for c, ok := s.calls.get(); ok; c, ok = s.calls.get() {
		s.fail(c)
	}
}

// ended ends the run after the log. What was durable before is acknowledged.
func (s *shard) ended() error {
	err := s.log.Err()
	if s.closing != nil {
		err = <-s.closing
	}
	s.wall = time.Now()
	s.settle()
	if err != nil {
		return fmt.Errorf("serve %s: %w", s.unit, err)
	}
	return nil
}

// shutdown answers whoever still waits.
func (s *shard) shutdown() {
	s.b.forget(s)
	s.drained = true
	s.dismiss()
	works := s.works
	if s.cur != nil {
		works = append(works, s.cur)
	}
	for _, w := range works {
		for _, left := range w.waiters {
			s.fail(left.call)
		}
		for _, c := range w.parked {
			s.fail(c)
		}
	}
	s.ckpt.abort()
	close(s.gone)
	s.dismiss() // who came meanwhile
}
