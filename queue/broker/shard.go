package broker

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// shard is one shard that this node serves. One goroutine, run, owns its fields and works in
// rounds; most of what it does is in the types of the second half of the fields. Other goroutines use
// only these: calls, claims.withdrawn and settings.next (for that goroutine; wake tells it), counts.published
// (atomic), runEnded (closed when run has returned), payloads (has a mutex), tokenCodecs (a pool), and
// the fields that never change after the takeover, such as name, index, epoch and ctx.
//
// A round (method round) has these steps, in this order:
//
//  1. readClock reads the time and moves the ledger's time forward.
//  2. commits.applyDurable applies the batches that have become durable to the ledger, answers their
//     calls, and puts the calls that waited for them (parked) into retries. If the journal refused the
//     last append, retryAppend repeats it.
//  3. decideWaiting records what time brings (recordDue), and decides the calls in retries and those in the
//     inbox. Each call's step makes records, which commits gathers. At its end, servePolls gives jobs to
//     long polls. A shard that has drained skips this step.
//  4. commits.appendBatch appends what was gathered to the journal as one batch.
//  5. checkpoints.step starts or continues a checkpoint, clean begins to move payloads out of old segments
//     after one, and counts.publish publishes the counts for metrics.
//
// There are two kinds of records. A hard record is applied to the ledger when its batch is durable.
// Until then its jobs are held: nothing else may happen to them, and a call that meets one is
// parked. A soft record (claim, first heartbeat, expiry) is applied at once and written with the
// next batch, at the latest after softDelay. If the process crashes before that, the record is
// lost; this is what soft claims allow.
//
// An answer that depends on the state must not come from a broker that may have been replaced. So
// decide and finish check that the run's assignment still holds (holdsAssignment) before a refusal, or an
// answer that wrote nothing, goes out. An answer that wrote something needs no check: the journal
// rejects every write of a replaced owner, and the batch of this one is durable.
type shard struct {
	b           *Broker
	unit        daemon.Unit
	name        string // of the queue
	index       int
	incarnation uint64          // of the queue; the settings' own may be read by the shard's goroutine only
	prefix      string          // of the journal's objects
	ctx         context.Context // of the run; daemon.Validity reads from it how long the assignment holds
	log         *journal.Log
	ledger      *ledger.Ledger
	tokenCodecs *sync.Pool
	formerKeys  []formerKey // of the shards from which this one has its first jobs
	readyFor    uint64      // see reshardStep; only the watcher's goroutine uses it
	epoch       int64

	wake     chan struct{}  // has a token when there may be calls, newer settings or a used-up budget, or when it is time
	calls    mailbox[*call] // to decide
	retries  []*call        // calls to decide in the next round
	runEnded chan struct{}

	clock       queueClock
	commits     commits
	settings    shardSettings
	handOver    handOver
	claims      claims
	counts      counts
	payloads    payloads
	checkpoints checkpoints
	cleaning    cleaning
}

const (
	softDelay  = time.Second // longest time until a soft record is written
	softBytes  = 64 << 10
	roundBytes = 4 << 20 // bytes of records in one round
	roundCalls = 4096
	inboxSize  = 4096 // calls that may wait for the shard's goroutine
)

// run serves the shard until the context ends, the drain is complete, or the journal is lost to
// another owner.
func (s *shard) run(draining <-chan struct{}) error {
	timer := time.AfterFunc(0, func() { signal(s.wake) })
	defer timer.Stop()
	defer s.shutdown()
	for {
		if s.handOver.due(time.Now(), s.checkpoints.atRest()) {
			s.drain()
		}
		if s.handOver.closeDue(time.Now(), !s.commits.blocked) {
			s.handOver.close(func() error { return s.log.Close(s.ctx) })
		}
		if s.hasWork() {
			select {
			case <-s.log.Acks():
				s.round()
			case <-s.log.Done():
				return s.finishRun()
			default:
				s.round()
			}
			continue
		}
		timer.Reset(s.untilNextEvent())
		select {
		case <-s.wake:
			if next := s.settings.next.Swap(nil); next != nil {
				s.configure(next)
			}
			s.commits.refuseWaiting()
			letCallersIn()
			s.round()
		case <-s.log.Acks():
			letCallersIn()
			s.round()
		case <-s.checkpoints.current.progressed():
			s.round()
		case <-draining:
			draining = nil
			s.prepareDrain()
		case <-s.checkpointInForce():
		case <-s.log.Done():
			return s.finishRun()
		}
	}
}

// letCallersIn lets the callers that are ready to run submit their calls first, so that one round, and one
// segment, has the calls of them all. A caller that is alone waits for nothing.
func letCallersIn() {
	runtime.Gosched()
}

// hasWork reports whether there is work that needs no event: calls to decide again, or a
// checkpoint that can go on.
func (s *shard) hasWork() bool {
	return !s.commits.blocked && len(s.retries) > 0 || s.checkpoints.current.canWrite()
}

// round does everything that can be done now; see shard for its steps.
func (s *shard) round() {
	s.readClock()
	s.commits.applyDurable()
	s.commits.retryAppend(s.handOver.isDraining())
	if !s.handOver.isDraining() {
		s.decideWaiting()
	}
	s.commits.appendBatch(s.handOver.isDraining())
	if !s.handOver.isDraining() {
		s.checkpoints.step()
		s.clean()
	}
	s.counts.publish(s.clock.local, s.commits.changes, s.stats)
}

// decideWaiting decides the waiting calls. While the journal accepts nothing more, only calls that write
// nothing are answered. New calls that would write are refused, and calls that have written a part
// wait in retries.
func (s *shard) decideWaiting() {
	if !s.commits.blocked {
		recordDue(&s.commits)
		again := s.retries
		s.retries = nil
		for _, c := range again {
			s.decide(c)
		}
	}
	for n := 0; n < roundCalls && (s.commits.blocked || s.commits.size() < roundBytes); n++ {
		c, ok := s.calls.get()
		if !ok {
			break
		}
		s.decide(c)
	}
	s.calls.resignal()
	s.servePolls()
}

// readClock reads the time of this round, and moves the ledger's time forward.
func (s *shard) readClock() {
	s.clock.read()
	s.commits.advance()
}

// decide runs the call's step and handles its result. A shard that has drained, or whose assignment
// no longer holds, fails the call instead.
func (s *shard) decide(c *call) {
	switch {
	case c.answered: // while it was parked: see refuseWaiting
		return
	case s.handOver.isDraining() || !s.holdsAssignment():
		s.refuseCall(c)
		return
	}
	switch c.work.step(s) {
	case decided:
		c.complete = true
		s.finish(c)
	case later:
		s.retries = append(s.retries, c)
	case waiting, handled:
	}
}

// finish answers a call once every batch that it waits for is durable. A refusal, and an answer
// that wrote nothing, is given only while the assignment holds: a broker that may have been
// replaced could be wrong about the state.
func (s *shard) finish(c *call) {
	switch {
	case !c.complete || c.waits > 0:
	case (c.negative || !c.wrote) && !s.holdsAssignment():
		s.refuseCall(c)
	default:
		c.answer()
	}
}

// holdsAssignment reports whether the run's assignment still holds. Without a deadline in the context it
// always does.
func (s *shard) holdsAssignment() bool {
	left, ok := daemon.Validity(s.ctx)
	return !ok || left > 0
}

// The shard is the host of its commits and checkpoints.
var (
	_ commitHost     = (*shard)(nil)
	_ checkpointHost = (*shard)(nil)
)

// beforeSlot lets a checkpoint of the ledger begin between two slots.
func (s *shard) beforeSlot(next uint64) { s.checkpoints.beforeSlot(next) }

// checkpointDue reports whether a checkpoint is worth its cost.
func (s *shard) checkpointDue() bool { return s.b.checkpointDue(s.log, s.ledger.CheckpointBytes()) }

// beginCheckpoint begins a checkpoint in the journal, at the newest slot.
func (s *shard) beginCheckpoint() (storedCheckpoint, uint64, error) { return s.log.Checkpoint() }

// checkpointFailed logs why a checkpoint was given up.
func (s *shard) checkpointFailed(err error) {
	s.b.cfg.Logger.Warn("a checkpoint was aborted", "unit", s.unit.String(), "error", err)
}

// appended counts the records of a batch.
func (s *shard) appended(records int) { s.b.instruments.batch(s.name, records) }

// beforeApplying schedules the deletion of payload objects that a durable record makes unneeded, and
// counts the record.
func (s *shard) beforeApplying(r *ledger.Record) {
	s.payloads.deleteOf(r, s.ledger)
	s.counts.record(r, s.clock.local)
}

// applied forgets a batch that is durable.
func (s *shard) applied(b *batch) {
	if b.n > 0 {
		s.b.instruments.commit(s.name, s.clock.local.Sub(b.begun))
	}
	s.settings.applied(b)
	s.claims.applied(b)
}

// retry decides calls anew in the next round.
func (s *shard) retry(calls []*call) { s.retries = append(s.retries, calls...) }

// untilNextEvent returns how long run may wait if no event comes: until the next deadline of the ledger, the
// soft records, the drain or the published counts.
func (s *shard) untilNextEvent() time.Duration {
	wait := time.Hour
	if next, ok := untilDue(&s.commits); ok && !s.handOver.isDraining() {
		wait = min(wait, next)
	}
	if soft, ok := s.commits.untilSoft(); ok {
		wait = min(wait, soft)
	}
	if drain, ok := s.handOver.untilDue(time.Now()); ok {
		wait = min(wait, drain)
	}
	if publish, ok := s.counts.untilPublish(time.Now(), s.commits.changes); ok {
		wait = min(wait, publish)
	}
	return wait
}
