package queue

import (
	"context"
	"errors"
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
	rates    rates
	scratch  ledger.Job // of the settlement that is being decided
	epoch    int64
	void     int // records that made no sense at the takeover: there should be none

	calls       chan *call
	changes     chan Settings // of the queue, from whoever re-reads the registry
	configuring *work         // settings that are on their way into the log
	leave       time.Time     // when the drain begins at the latest; zero: none is wanted
	closing     chan error    // answer of log.Close
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
	ends  []int // of the records in buf
	cur   *work // its hard records; nil: none
	soft  time.Time
	stuck bool // the journal takes nothing more for now

	works    []*work // appended, in the order of slots
	spare    [][]ledger.Record
	busyIDs  map[string]*work // jobs that are being enqueued; others are held in the ledger
	requests map[string]*work // durable claims that are being written, by request ID
	again    []*call          // get another turn
	polls    []*call
	left     chan *call // polls that nobody waits for any more
	inflight struct {
		jobs  int
		bytes int64
	}
	ckpt    checkpoint
	written *journal.Checkpoint // the newest one that was committed
	rubbish chan string         // keys of payload objects to be deleted
}

// work is what waits for one slot.
type work struct {
	slot    uint64 // 0: not appended yet
	at      int64
	records [][]ledger.Record // in chunks: they are large, and are not to be copied
	numbers []uint64          // of records that are about one job
	waiters []*call           // answered when it is applied
	parked  []*call           // decided anew when it is applied
	// requests are claim calls whose claims it has.
	requests []string
	begun    time.Time
}

const (
	softDelay  = time.Second // until soft records are written, if nothing else is
	softBytes  = 64 << 10
	roundBytes = 4 << 20 // of records in one round
	roundCalls = 4096
	inbox      = 4096 // calls that wait for the shard's goroutine
	dueStep    = 1000
	showEvery  = time.Second
)

// run serves until the context ends, the assignment drains or the journal is lost.
func (s *shard) run(draining <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer s.shutdown()
	for {
		var calls chan *call
		if !s.drained {
			calls = s.calls
		}
		if s.ready() {
			s.drain()
		}
		if s.restless() {
			select {
			case c := <-calls:
				s.round(c)
			case <-s.log.Acks():
				s.round(nil)
			case <-s.log.Done():
				return s.ended()
			default:
				s.round(nil)
			}
			continue
		}
		timer.Reset(s.sleep())
		select {
		case c := <-calls:
			s.round(c)
		case <-s.log.Acks():
			s.round(nil)
		case <-timer.C:
			s.round(nil)
		case <-s.ckpt.moved():
			s.round(nil)
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
func (s *shard) round(c *call) {
	s.clock()
	s.settle()
	s.flushStuck()
	if !s.drained {
		s.take(c)
	}
	s.flush()
	s.checkpoint()
	s.show()
}

// take decides what waits. While the journal takes nothing more, only calls that write nothing are
// answered; the others are refused, and those that were begun wait.
func (s *shard) take(c *call) {
	if !s.stuck {
		s.due()
		again := s.again
		s.again = nil
		for _, c := range again {
			s.decide(c)
		}
	}
	if c != nil {
		s.decide(c)
	}
	for n := 0; n < roundCalls && (s.stuck || len(s.buf) < roundBytes); n++ {
		select {
		case c := <-s.calls:
			s.decide(c)
			continue
		default:
		}
		break
	}
	s.serve()
}

// full reports whether what would be decided now could not be written.
func (s *shard) full() bool { return s.stuck || s.log.Full() }

// clock takes the time of a round. Queue time never goes back, over all owners.
func (s *shard) clock() {
	s.wall = time.Now()
	s.at = s.log.Now(s.b.cfg.Now())
	s.now = s.at.UnixMilli()
	s.ledger.Advance(s.now)
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

// held makes a call wait for a job that is held: until everything is durable that is under way.
func (s *shard) held(c *call) progress {
	w := s.cur
	if w == nil {
		w = s.works[len(s.works)-1]
	}
	return s.park(c, w)
}

// park makes a call wait for a work, to be decided anew.
func (s *shard) park(c *call, w *work) progress {
	w.parked = append(w.parked, c)
	return busy
}

// hard makes a record that is applied when it is durable. Its jobs are held until then.
func (s *shard) hard(c *call, r *ledger.Record) {
	if r.Kind != ledger.Enqueue {
		for _, n := range r.Numbers {
			if err := s.ledger.Hold(n); err != nil {
				panic(err) // the caller has looked
			}
		}
	}
	s.record(c, r)
}

// record is hard for jobs that are held already.
func (s *shard) record(c *call, r *ledger.Record) {
	w := s.gather()
	*s.add(w) = *r
	s.recorded(c, w)
}

// recorded completes the record that was added last.
func (s *shard) recorded(c *call, w *work) {
	last := w.records[len(w.records)-1]
	r := &last[len(last)-1]
	r.At = s.now
	s.encode(r)
	if c != nil {
		c.wrote = true
		s.attach(c, w)
	}
}

const (
	recordChunk = 32
	spareChunks = 128
)

// add makes room for a record.
func (s *shard) add(w *work) *ledger.Record {
	n := len(w.records)
	if n == 0 || len(w.records[n-1]) == cap(w.records[n-1]) {
		w.records = append(w.records, s.chunk(n == 0))
		n++
	}
	chunk := &w.records[n-1]
	*chunk = (*chunk)[:len(*chunk)+1]
	return &(*chunk)[len(*chunk)-1]
}

// chunk returns room for records: for one if it is the first, as most works of a quiet queue have
// one.
func (s *shard) chunk(first bool) []ledger.Record {
	n := len(s.spare)
	switch {
	case n > 0:
		chunk := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return chunk
	case first:
		return make([]ledger.Record, 0, 1)
	}
	return make([]ledger.Record, 0, recordChunk)
}

// reuse keeps the chunks of a work that is done.
func (s *shard) reuse(w *work) {
	for _, chunk := range w.records {
		if cap(chunk) == recordChunk && len(s.spare) < spareChunks {
			clear(chunk)
			s.spare = append(s.spare, chunk[:0])
		}
	}
	w.records = nil
}

// one is the list of one number.
func (w *work) one(number uint64) []uint64 {
	if len(w.numbers) == cap(w.numbers) {
		w.numbers = make([]uint64, 0, max(1, min(2*cap(w.numbers), 1024)))
	}
	w.numbers = append(w.numbers, number)
	n := len(w.numbers)
	return w.numbers[n-1 : n : n]
}

func (s *shard) gather() *work {
	if s.cur == nil {
		s.cur = &work{begun: s.wall}
	}
	return s.cur
}

// attach makes the call's answer wait for the work.
func (s *shard) attach(c *call, w *work) {
	if n := len(w.waiters); n > 0 && w.waiters[n-1] == c {
		return
	}
	w.waiters = append(w.waiters, c)
	c.waits++
}

// barrier makes the call's answer wait for everything that was decided before it: it writes
// nothing, and must not overtake what makes it true.
func (s *shard) barrier(c *call) {
	if s.cur != nil {
		s.attach(c, s.cur)
		return
	}
	slot := s.log.Barrier()
	if slot <= s.log.Durable() {
		return
	}
	if n := len(s.works); n == 0 || s.works[n-1].slot < slot {
		s.works = append(s.works, &work{slot: slot, begun: s.wall})
	}
	s.attach(c, s.works[len(s.works)-1])
}

// now applies a soft record at once; it becomes durable a little later.
func (s *shard) apply(r ledger.Record) {
	r.At = s.now
	s.softly(&r)
	s.must(&r, s.now)
}

// softly has a record written that is applied already.
func (s *shard) softly(r *ledger.Record) {
	s.encode(r)
	if s.soft.IsZero() {
		s.soft = s.wall
	}
}

// must applies a record that this process has decided: that it does not apply is a bug here.
func (s *shard) must(r *ledger.Record, now int64) {
	s.stale = true
	if err := s.ledger.Apply(r, now); err != nil {
		panic(err)
	}
}

func (s *shard) encode(r *ledger.Record) {
	s.buf = r.Append(s.buf)
	s.ends = append(s.ends, len(s.buf))
}

// flush appends what was decided, if somebody waits for it or it has waited long enough.
func (s *shard) flush() {
	if len(s.ends) == 0 {
		return
	}
	if s.cur == nil && len(s.buf) < softBytes && s.wall.Sub(s.soft) < softDelay && !s.drained {
		return
	}
	records := make([][]byte, len(s.ends))
	from := 0
	for i, end := range s.ends {
		records[i] = s.buf[from:end:end]
		from = end
	}
	slot, err := s.log.Append(s.at, records...)
	switch {
	case errors.Is(err, journal.ErrFull):
		s.stuck = true // it stays in the buffer until there is room
		return
	case err != nil:
		s.stuck = true // the log has ended: the loop will see it
		return
	}
	s.stuck = false
	s.b.instruments.batch(s.name, len(records))
	s.buf, s.ends, s.soft = s.buf[:0], s.ends[:0], time.Time{}
	if cap(s.buf) > 2*roundBytes {
		s.buf = nil
	}
	if s.cur != nil {
		s.cur.slot, s.cur.at = slot, s.now
		s.works = append(s.works, s.cur)
		s.cur = nil
	}
}

func (s *shard) flushStuck() {
	if s.stuck {
		s.flush()
	}
}

// settle applies everything that has become durable, and answers those who waited for it.
func (s *shard) settle() {
	durable := s.log.Durable()
	n := 0
	for n < len(s.works) && s.works[n].slot <= durable {
		s.cutBefore(s.works[n].slot)
		s.settled(s.works[n])
		s.works[n] = nil
		n++
	}
	s.works = s.works[n:]
	s.cutBefore(durable + 1)
}

func (s *shard) settled(w *work) {
	for _, chunk := range w.records {
		for i := range chunk {
			s.applied(&chunk[i], w.at)
		}
	}
	if len(w.records) > 0 {
		s.b.instruments.commit(s.name, s.wall.Sub(w.begun))
	}
	s.reuse(w)
	if s.configuring == w {
		s.configuring = nil
	}
	for _, id := range w.requests {
		delete(s.requests, id)
	}
	for _, c := range w.waiters {
		c.waits--
		s.finish(c)
	}
	s.again = append(s.again, w.parked...)
}

func (s *shard) applied(r *ledger.Record, at int64) {
	s.unlink(r)
	s.must(r, at)
	if r.Kind == ledger.Enqueue {
		delete(s.busyIDs, r.ID)
		s.inflight.jobs--
		s.inflight.bytes -= int64(len(r.Payload))
	}
	s.rates.count(r, s.wall)
}

// due does what time brings: claims end, jobs are given up.
func (s *shard) due() {
	for _, n := range s.ledger.Late(s.now, dueStep) {
		s.hard(nil, &ledger.Record{Kind: ledger.Kill, Numbers: []uint64{n}, Cause: "it waited longer than its time to live", Late: true})
	}
	for _, n := range s.ledger.Due(s.now, dueStep) {
		j, _ := s.ledger.Glance(n)
		if j.Exhausted(true) {
			s.hard(nil, &ledger.Record{Kind: ledger.Kill, Numbers: []uint64{n}, Cause: exhausted(&j, "its last claim ended without a word of the worker "+j.Worker)})
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
		wait = min(wait, max(0, time.Duration(at-s.log.Now(s.b.cfg.Now()).UnixMilli())*time.Millisecond))
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
	for {
		select {
		case c := <-s.calls:
			s.fail(c)
		default:
			return
		}
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
		for _, c := range append(w.waiters, w.parked...) {
			s.fail(c)
		}
	}
	s.ckpt.abort()
	close(s.gone)
	s.dismiss() // who came meanwhile
}
