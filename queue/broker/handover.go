package broker

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/queue"
)

const (
	// A successor replays this much in negligible time.
	partSlots = 256
	partBytes = 4 << 20
	// partWait is how long a drain waits for its checkpoint.
	partWait = 3 * time.Second
)

// part prepares a drain. If the successor would have much to replay, a checkpoint is written first
// while the shard is still served: callers wait for the successor's replay, not for this.
func (s *shard) part() {
	s.leave = time.Now()
	if st := s.log.Stats(); st.Slots > partSlots || st.Bytes > max(partBytes, s.ledger.Bytes()/16) {
		s.leave = s.leave.Add(partWait)
		s.checkpoints.begin()
	}
}

// ready reports whether the drain can begin: the checkpoint is in force, has failed, or took longer
// than partWait.
func (s *shard) ready() bool {
	switch {
	case s.leave.IsZero():
		return false
	case !time.Now().Before(s.leave):
		return true
	}
	return s.checkpoints.atRest()
}

// prepared returns a channel that is closed when the checkpoint that the drain waits for is
// complete; nil if it waits for none.
func (s *shard) prepared() <-chan struct{} {
	if s.leave.IsZero() {
		return nil
	}
	return s.checkpoints.inForce()
}

// notOwner refuses a call: another broker serves the shard.
func (s *shard) notOwner() *queue.Error { return s.b.notOwner(s.name, s.index) }

// fail refuses a call that this broker may not answer any more. If records of the call were made,
// its outcome is unknown; otherwise another broker can be asked.
func (s *shard) fail(c *call) {
	switch {
	case c.wrote:
		c.refuse(unknownOutcome("the broker lost the shard before this was durable"))
	case c.claimAnswer():
		c.refuse(s.notOwner())
	}
}

// unknownOutcome returns an UnknownOutcome refusal: the caller should repeat the call.
func unknownOutcome(why string) *queue.Error {
	e := queue.Refuse(queue.UnknownOutcome, "%s", why).WithHint("repeat the call with the same IDs, keys or tokens")
	e.RetryAfter = 100 * time.Millisecond
	return e
}

// drain ends the run in order: what was decided is written and answered, all other calls are
// refused, and the journal is closed so that the successor can start at once.
func (s *shard) drain() {
	s.readClock()
	s.drained, s.leave = true, time.Time{}
	s.b.removeShard(s)
	s.commits.appendBatch(s.drained)
	s.dismiss()
	s.checkpoints.current.abort()
	s.closing = make(chan error, 1)
	go func() { s.closing <- s.log.Close(s.ctx) }()
}

// dismiss refuses all calls that do not wait for a batch in flight.
func (s *shard) dismiss() {
	for _, c := range append(s.retries, s.polls...) {
		s.fail(c)
	}
	s.retries, s.polls = nil, nil
	s.commits.releaseParked(s.fail)
	for c, ok := s.calls.get(); ok; c, ok = s.calls.get() {
		s.fail(c)
	}
}

// ended is the end of the run after the log has ended. It still answers the calls whose records
// became durable before.
func (s *shard) ended() error {
	err := s.log.Err()
	if s.closing != nil {
		err = <-s.closing
	}
	s.clock.local = time.Now()
	s.commits.applyDurable()
	if err != nil {
		return fmt.Errorf("serve %s: %w", s.unit, err)
	}
	return nil
}

// shutdown refuses all calls that still wait.
func (s *shard) shutdown() {
	s.b.removeShard(s)
	s.drained = true
	s.dismiss()
	s.commits.releaseAll(s.fail)
	s.checkpoints.current.abort()
	close(s.runEnded)
	s.dismiss() // calls that came between the first dismiss and the close
}
