package queue

import (
	"errors"
	"time"

	"github.com/emitd/emitd/daemon/queue/journal"
	"github.com/emitd/emitd/daemon/queue/ledger"
)

// work is what waits for one slot.
type work struct {
	slot    uint64 // 0: not appended yet
	at      int64
	records [][]pending // in chunks
	n       int         // of records
	waiters []waiter    // answered when it is applied
	parked  []*call     // decided anew when it is applied
	// requests are claim calls whose claims it has.
	requests []string
	begun    time.Time
}

// waiter is a call that is answered when so many records of a work are applied: those that it made,
// and all before.
type waiter struct {
	call *call
	upTo int
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

// pending is a record that is applied when it is durable. The frequent ones are not kept as a
// ledger.Record, which is large: what was submitted says all of a job, and its number all of one that
// is completed without a result.
type pending struct {
	at     int64
	number uint64
	job    *prepared      // it is enqueued
	other  *ledger.Record // neither enqueued nor completed so
}

// hard makes a record that is applied when it is durable. Its jobs are held until then.
func (s *shard) hard(c *call, r *ledger.Record) {
	s.hold(r.Numbers...)
	s.pend(c, pending{other: r})
}

func (s *shard) hold(numbers ...uint64) {
	for _, n := range numbers {
		if err := s.ledger.Hold(n); err != nil {
			panic(err) // the caller has looked
		}
	}
}

// pend is hard for jobs that are held already, and for those that are enqueued. The record it returns
// is valid until the next one.
func (s *shard) pend(c *call, p pending) *ledger.Record {
	p.at = s.now
	w := s.gather()
	s.add(w, p)
	r := s.unfold(&p)
	s.encode(r)
	if c != nil {
		c.wrote = true
		s.attach(c, w)
	}
	return r
}

// unfold makes the record of a pending one.
func (s *shard) unfold(p *pending) *ledger.Record {
	r := p.other
	if r == nil {
		r = &s.use().record
		*r = ledger.Record{Kind: ledger.Complete, Numbers: append(r.Numbers[:0], p.number)}
	}
	r.At = p.at
	if p.job != nil {
		p.job.fill(r)
	}
	return r
}

const (
	pendingChunk = 256
	spareChunks  = 128
)

// add keeps a record in chunks, so that growing never copies.
func (s *shard) add(w *work, p pending) {
	n := len(w.records)
	if n == 0 || len(w.records[n-1]) == cap(w.records[n-1]) {
		w.records = append(w.records, s.chunk(n == 0))
		n++
	}
	w.records[n-1] = append(w.records[n-1], p)
	w.n++
}

// chunk returns room for records: for one if it is the first, as most works of a quiet queue have
// one.
func (s *shard) chunk(first bool) []pending {
	n := len(s.spare)
	switch {
	case n > 0:
		chunk := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return chunk
	case first:
		return make([]pending, 0, 1)
	}
	return make([]pending, 0, pendingChunk)
}

// reuse keeps the chunks of a work that is done.
func (s *shard) reuse(w *work) {
	for _, chunk := range w.records {
		if cap(chunk) == pendingChunk && len(s.spare) < spareChunks {
			clear(chunk)
			s.spare = append(s.spare, chunk[:0])
		}
	}
	w.records = nil
}

func (s *shard) gather() *work {
	if s.cur == nil {
		s.cur = &work{begun: s.wall}
	}
	return s.cur
}

// attach makes the call's answer wait for the work.
func (s *shard) attach(c *call, w *work) {
	if n := len(w.waiters); n > 0 && w.waiters[n-1].call == c {
		w.waiters[n-1].upTo = w.n
		return
	}
	w.waiters = append(w.waiters, waiter{c, w.n})
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
	records, from := s.cuts[:0], 0
	for _, end := range s.ends {
		records = append(records, s.buf[from:end:end])
		from = end
	}
	s.cuts = records
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
	if cap(s.buf) > 2*roundBytes || cap(s.cuts) > roundBytes/16 {
		s.buf, s.cuts = nil, nil
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
	done, answered := 0, 0
	for _, chunk := range w.records {
		for i := range chunk {
			s.applied(&chunk[i], w.at)
			done++
			// At once: they go on while the rest is applied.
			for ; answered < len(w.waiters) && w.waiters[answered].upTo == done; answered++ {
				s.answered(w.waiters[answered].call)
			}
		}
	}
	if w.n > 0 {
		s.b.instruments.commit(s.name, s.wall.Sub(w.begun))
	}
	s.reuse(w)
	if s.configuring == w {
		s.configuring = nil
	}
	for _, id := range w.requests {
		delete(s.requests, id)
	}
	for _, left := range w.waiters[answered:] { // barriers before the first record
		s.answered(left.call)
	}
	s.again = append(s.again, w.parked...)
}

// answered takes one work off what a call waits for.
func (s *shard) answered(c *call) {
	c.waits--
	s.finish(c)
}

func (s *shard) applied(p *pending, at int64) {
	r := s.unfold(p)
	s.unlink(r)
	s.must(r, at)
	if p.job != nil {
		s.inflight.jobs--
		s.inflight.bytes -= int64(len(p.job.text))
	}
	s.use().rates.count(r, s.wall)
}
