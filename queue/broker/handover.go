package broker

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// handOver is how far a shard's run is on its way to its end. The shard's goroutine owns it.
type handOver struct {
	state     handOverState
	drainAt   time.Time  // while preparing: when to drain at the latest
	closeAt   time.Time  // while draining: when to close the journal at the latest
	logClosed chan error // receives the result of closing the journal; nil: that has not begun
	sealing   bool       // the drain ends with a seal: the shard's jobs move to other shards
}

// handOverState is a step of the hand-over. The steps follow one another in this order; a run may
// leave steps out, for example if another owner has taken the journal.
type handOverState int

const (
	stateServing   handOverState = iota
	statePreparing               // still serving; a checkpoint may be written to shorten the successor's replay
	stateDraining                // no call is decided any more; what was decided becomes durable
	stateEnded
)

const (
	// A successor replays this much in negligible time.
	drainReplaySlots = 256
	drainReplayBytes = 4 << 20
	// drainCheckpointWait is how long a drain waits for its checkpoint, and drainAppendWait how long until the
	// journal has room for the last records.
	drainCheckpointWait = 3 * time.Second
	drainAppendWait     = 3 * time.Second
)

// replayIsLong reports whether a successor would have so much to replay that a checkpoint is written
// before the drain.
func replayIsLong(log journal.Stats, checkpointBytes int64) bool {
	return log.Slots > drainReplaySlots || log.Bytes > max(drainReplayBytes, checkpointBytes/16)
}

// prepare makes the drain begin when no checkpoint is being stored, and at this time at the latest.
func (h *handOver) prepare(drainAt time.Time) {
	if h.state < stateDraining {
		h.state, h.drainAt = statePreparing, drainAt
	}
}

// due reports whether the drain can begin. atRest says that no checkpoint is being stored.
func (h *handOver) due(now time.Time, atRest bool) bool {
	return h.state == statePreparing && (atRest || !now.Before(h.drainAt))
}

// untilDue returns how long it is until the drain begins, or the journal is closed, at the latest; ok is false if
// neither is awaited.
func (h *handOver) untilDue(now time.Time) (wait time.Duration, ok bool) {
	if h.state == stateDraining {
		return max(0, h.closeAt.Sub(now)), h.logClosed == nil
	}
	return max(0, h.drainAt.Sub(now)), h.state == statePreparing
}

// drain begins the drain.
func (h *handOver) drain(now time.Time) {
	h.state, h.closeAt = stateDraining, now.Add(drainAppendWait)
}

// closeDue reports whether the journal can be closed: everything was appended, or there is no more time for that.
func (h *handOver) closeDue(now time.Time, appended bool) bool {
	return h.state == stateDraining && h.logClosed == nil && (appended || !now.Before(h.closeAt))
}

// close closes the journal on another goroutine.
func (h *handOver) close(closeLog func() error) {
	closed := make(chan error, 1)
	h.logClosed = closed
	go func() { closed <- closeLog() }()
}

// isDraining reports whether the drain has begun, or the run has ended.
func (h *handOver) isDraining() bool { return h.state >= stateDraining }

// end is the end of the run, in whatever state it was.
func (h *handOver) end() { h.state = stateEnded }

// prepareDrain prepares a drain. If the successor would have much to replay, a checkpoint is written first
// while the shard is still served: callers wait for the successor's replay, not for this.
func (s *shard) prepareDrain() {
	drainAt := time.Now()
	if !s.handOver.isDraining() && replayIsLong(s.log.Stats(), s.ledger.CheckpointBytes()) {
		drainAt = drainAt.Add(drainCheckpointWait)
		s.checkpoints.begin()
	}
	s.handOver.prepare(drainAt)
}

// checkpointInForce returns a channel that is closed when the checkpoint for which a drain waits is in
// force; nil if none waits.
func (s *shard) checkpointInForce() <-chan struct{} {
	if s.handOver.state != statePreparing {
		return nil
	}
	return s.checkpoints.inForce()
}

// drain ends the run in order: what was decided is written and answered, all other calls are
// refused, and then the journal is closed so that the successor can start at once.
func (s *shard) drain() {
	s.readClock()
	s.b.removeShard(s)
	if s.handOver.sealing {
		s.commits.record(nil, &ledger.Record{Kind: ledger.Seal})
	}
	s.commits.appendBatch(true)
	s.refuseWaiting()
	s.checkpoints.current.abort()
	s.handOver.drain(time.Now())
}

// refuseWaiting refuses all calls that do not wait for a batch in flight.
func (s *shard) refuseWaiting() {
	for _, c := range s.retries {
		s.refuseCall(c)
	}
	s.retries = nil
	s.claims.releaseWaiting(s.refuseCall)
	s.commits.releaseParked(s.refuseCall)
	for c, ok := s.calls.get(); ok; c, ok = s.calls.get() {
		s.refuseCall(c)
	}
}

// finishRun is the end of the run after the log has ended. It still answers the calls whose records
// became durable before.
func (s *shard) finishRun() error {
	err := s.log.Err()
	if s.handOver.logClosed != nil {
		err = <-s.handOver.logClosed
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
	s.handOver.end()
	s.refuseWaiting()
	s.commits.releaseAll(s.refuseCall)
	s.checkpoints.current.abort()
	close(s.runEnded)
	s.refuseWaiting() // calls that came between the first time and the close
}

// refuseCall refuses a call that this broker may not answer any more. If records of the call were made,
// its outcome is unknown; otherwise another broker can be asked.
func (s *shard) refuseCall(c *call) {
	switch {
	case c.wrote:
		c.refuse(unknownOutcome("the broker lost the shard before this was durable"))
	case c.claimAnswer():
		c.refuse(s.notOwner())
	}
}

// notOwner refuses a call: another broker serves the shard.
func (s *shard) notOwner() *queue.Error { return s.b.notOwner(s.name, s.index) }

// unknownOutcome returns an UnknownOutcome refusal: the caller should repeat the call.
func unknownOutcome(why string) *queue.Error {
	e := queue.Refuse(queue.UnknownOutcome, "%s", why).WithHint("repeat the call with the same IDs, keys or tokens")
	e.RetryAfter = 100 * time.Millisecond
	return e
}
