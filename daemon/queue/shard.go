package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/queue/journal"
	"github.com/emitd/emitd/daemon/queue/ledger"
)

// shard is one shard that this node serves: one goroutine owns the ledger and appends to the
// journal.
//
// The ledger holds what is acknowledged. A call is decided against it; that makes records. The
// records are appended, and the jobs they are about are busy until their segment is durable: then
// they are applied, then the call is answered. A call that meets a busy job waits for that segment
// and is decided anew. Soft records (claims, first heartbeats, expiries) are applied at once and
// ride along with the next segment, at the latest after softDelay.
type shard struct {
	b        *Broker
	unit     daemon.Unit
	name     string // of the queue
	index    int
	blobs    string // prefix of payload objects
	settings Settings
	ctx      context.Context // of the run; carries the trust
	log      *journal.Log
	ledger   *ledger.Ledger
	sealers  *sync.Pool
	begun    time.Time // this run, by the local clock
	tools    *tools    // nil until there is something to do; see use
	epoch    int64
	void     int // records that made no sense at the takeover: there should be none

	calls       *mailbox[*call]
	changes     chan *Settings // of the queue, from whoever re-reads the registry
	configuring *work          // settings that are on their way into the log
	leave       time.Time      // when the drain begins at the latest; zero: none is wanted
	closing     chan error     // answer of log.Close
	drained     bool
	removed     bool // the queue is no more
	gone        chan struct{}
	snapshot    atomic.Pointer[Stats]
	shown       time.Time // when snapshot was made
	stale       bool      // something has changed since

	now  int64     // queue time of this round, milliseconds
	at   time.Time // and in the journal's precision
	wall time.Time // local time of this round, for durations only

	// What this round has decided and not yet appended.
	buf   []byte
	ends  []int    // of the records in buf
	cuts  [][]byte // and they themselves, while they are appended
	cur   *work    // its hard records; nil: none
	soft  time.Time
	stuck bool // the journal takes nothing more for now

	works    []*work // appended, in the order of slots
	spare    [][]pending
	requests map[string]*work // durable claims that are being written, by request ID
	again    []*call          // get another turn
	polls    []*call
	left     *mailbox[*call] // polls that nobody waits for any more
	inflight struct {
		jobs  int
		bytes int64
	}
	ckpt    checkpoint
	written *journal.Checkpoint // the newest one that was committed
	rubbish rubbish             // payload objects to be deleted
}

// tools are what a shard needs once it has something to do.
type tools struct {
	rates   rates
	scratch ledger.Job    // of the settlement that is being decided
	record  ledger.Record // that is being written or applied
}

// use returns the tools. A shard that never had anything to do has none: most are like that.
func (s *shard) use() *tools {
	if s.tools == nil {
		s.tools = &tools{rates: rates{begun: s.begun}}
	}
	return s.tools
}

const (
	softDelay  = time.Second // until soft records are written, if nothing else is
	softBytes  = 64 << 10
	roundBytes = 4 << 20 // of records in one round
	roundCalls = 4096
	inbox      = 4096 // calls that may wait for the shard's goroutine
	dueStep    = 1000
	showEvery  = time.Second
)

// run serves until the context ends, the assignment drains or the journal is lost.
func (s *shard) run(draining <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer s.shutdown()
	for {
		var calls chan struct{}
		if !s.drained {
			calls = s.calls.filled
		}
		if s.ready() {
			s.drain()
		}
		if s.restless() {
			select {
			case <-s.log.Acks():
				s.round()
			case <-s.log.Done():
				return s.ended()
			default:
				s.round()
			}
			continue
		}
		timer.Reset(s.sleep())
		select {
		case <-calls:
			s.round()
		case <-s.log.Acks():
			s.round()
		case <-timer.C:
			s.round()
		case <-s.ckpt.moved():
			s.round()
		case next := <-s.changes:
			s.configure(next)
		case <-draining:
			draining = nil
			s.part()
		case <-s.prepared():
		case <-s.log.Done():
			return s.ended()
		}
	}
}

// restless reports whether there is something to do without waiting for anybody.
func (s *shard) restless() bool {
	return !s.stuck && len(s.again) > 0 || s.ckpt.eager()
}

// round takes what waits, decides it and appends it as one.
func (s *shard) round() {
	s.clock()
	s.settle()
	s.flushStuck()
	if !s.drained {
		s.take()
	}
	s.flush()
	s.checkpoint()
	s.show()
}

// take decides what waits. While the journal takes nothing more, only calls that write nothing are
// answered; the others are refused, and those that were begun wait.
func (s *shard) take() {
	if !s.stuck {
		s.due()
		again := s.again
		s.again = nil
		for _, c := range again {
			s.decide(c)
		}
	}
	for n := 0; n < roundCalls && (s.stuck || len(s.buf) < roundBytes); n++ {
		c, ok := s.calls.get()
		if !ok {
			break
		}
		s.decide(c)
	}
	s.calls.again()
	s.serve()
}

// full reports whether what would be decided now could not be written.
func (s *shard) full() bool { return s.stuck || s.log.Full() }

// clock takes the time of a round.
func (s *shard) clock() {
	s.wall, s.at = s.time()
	s.now = s.at.UnixMilli()
	s.ledger.Advance(s.now)
}

// slower is by which part of itself queue time goes slower while it is ahead of the estimate.
const slower = 16

// time returns the local time and queue time, which never goes back, over all owners. If it is ahead
// of the estimate, as after an owner whose estimate was, it does not stand still until the estimate is
// there: it goes on with the local clock, a little slower, so that they meet.
func (s *shard) time() (wall, at time.Time) {
	wall, at = time.Now(), s.b.cfg.Now()
	passed := wall.Sub(s.wall)
	if on := s.at.Add(passed - passed/slower); on.After(at) {
		at = on
	}
	return wall, s.log.Now(at)
}

// decide works on a call as far as possible.
func (s *shard) decide(c *call) {
	if s.drained || !s.trusted() {
		s.fail(c)
		return
	}
	switch c.step(s, c) {
	case decided:
		c.decided = true
		s.finish(c)
	case later:
		s.again = append(s.again, c)
	case busy, placed:
	}
}

// finish answers a call once everything it rests on is durable. A no, or an answer that wrote
// nothing, of a broker that may be deposed is worth nothing.
func (s *shard) finish(c *call) {
	switch {
	case !c.decided || c.waits > 0:
	case (c.negative || !c.wrote) && !s.trusted():
		s.fail(c)
	default:
		c.answer()
	}
}

// trusted reports whether the run's assignment still holds.
func (s *shard) trusted() bool {
	left, ok := daemon.Trust(s.ctx)
	return !ok || left > 0
}

// due does what time brings: claims end, jobs are given up.
func (s *shard) due() {
	for _, n := range s.ledger.Late(s.now, dueStep) {
		s.hard(nil, &ledger.Record{Kind: ledger.Kill, Numbers: []uint64{n}, Cause: "it waited longer than its time to live", Late: true})
	}
	for _, n := range s.ledger.Due(s.now, dueStep) {
		j, _ := s.ledger.Glance(n)
		if j.Exhausted(true) {
			r := ledger.Record{Kind: ledger.Kill, Numbers: []uint64{n}, Cause: exhausted(&j, "its last claim ended without a word of the worker "+j.Worker)}
			s.hard(nil, &r)
			continue
		}
		r := ledger.Record{
			Kind: ledger.Expire, Numbers: []uint64{n}, Deliveries: []uint64{uint64(j.Deliveries)}, Epoch: j.Epoch,
			Cause: "the claim of the worker " + j.Worker + " ended without a word",
		}
		if j.Policy.Back {
			r.Places = []uint64{s.ledger.Number()}
		}
		s.apply(r)
	}
}

func exhausted(j *ledger.Job, why string) string {
	return fmt.Sprintf("given up after %d of %d attempts and %d deliveries: %s", j.Attempts, j.Policy.Max, j.Deliveries, why)
}

// sleep returns for how long nothing will happen by itself.
func (s *shard) sleep() time.Duration {
	wait := time.Hour
	if at, ok := s.ledger.Next(); ok && !s.drained {
		_, now := s.time()
		wait = min(wait, max(0, time.Duration(at-now.UnixMilli())*time.Millisecond))
	}
	if !s.soft.IsZero() && !s.stuck {
		wait = min(wait, max(0, softDelay-time.Since(s.soft)))
	}
	if !s.leave.IsZero() {
		wait = min(wait, max(0, time.Until(s.leave)))
	}
	if s.stale {
		wait = min(wait, max(0, showEvery-time.Since(s.shown)))
	}
	return wait
}
