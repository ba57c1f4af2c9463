package broker

import (
	"errors"
	"time"

	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// work is a batch of records that is appended as one, and the calls that wait for it. Before the
// append it is shard.cur, after it one of shard.works.
type work struct {
	slot    uint64 // 0: not appended yet
	at      int64
	records [][]pending // hard records in chunks, in the order in which they were decided
	n       int         // number of records
	waiters []waiter    // calls that are answered when the batch is applied
	parked  []*call     // calls that are decided anew when the batch is applied
	// requests are the request IDs of the durable claims in the batch.
	requests []string
	begun    time.Time
}

// waiter is a call that waits for the first upTo records of a batch: its own, and all before them.
type waiter struct {
	call *call
	upTo int
}

// held parks a call that met a held job. It waits for the newest batch, which is durable only after
// all batches before it.
func (s *shard) held(c *call) progress {
	w := s.cur
	if w == nil {
		w = s.works[len(s.works)-1]
	}
	return s.park(c, w)
}

// park makes a call wait for a batch, to be decided anew when the batch is applied.
func (s *shard) park(c *call, w *work) progress {
	w.parked = append(w.parked, c)
	return busy
}

// pending is a record that is applied when it is durable. The frequent kinds are not stored as a
// ledger.Record, which is large: job describes an enqueue completely, and number a completion
// without a result.
type pending struct {
	at     int64
	number uint64
	job    *prepared      // an Enqueue record of this job
	other  *ledger.Record // any other record; if job is nil too: Complete number without a result
}

// hard adds a hard record to the batch and holds its jobs until it is applied. If c is not nil, its
// answer waits for the record.
func (s *shard) hard(c *call, r *ledger.Record) {
	s.hold(r.Numbers...)
	s.pend(c, pending{other: r})
}

// hold marks jobs as held in the ledger. The caller has checked that each exists and is not held.
func (s *shard) hold(numbers ...uint64) {
	for _, n := range numbers {
		if err := s.ledger.Hold(n); err != nil {
			panic(err) // the caller has checked it
		}
	}
}

// pend is hard without holding the jobs: they are held already, or are new. The record that it
// returns is valid until the next call.
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

// unfold returns the ledger's record of a pending one. It is valid until the next call.
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

// add stores a record in the batch's chunks. Chunks are never copied when the batch grows.
func (s *shard) add(w *work, p pending) {
	n := len(w.records)
	if n == 0 || len(w.records[n-1]) == cap(w.records[n-1]) {
		w.records = append(w.records, s.chunk(n == 0))
		n++
	}
	w.records[n-1] = append(w.records[n-1], p)
	w.n++
}

// chunk returns an empty chunk: a spare one if there is any. The first chunk of a batch holds only
// one record, because most batches of a quiet queue have one.
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

// reuse returns the chunks of an applied batch to the spare ones.
func (s *shard) reuse(w *work) {
	for _, chunk := range w.records {
		if cap(chunk) == pendingChunk && len(s.spare) < spareChunks {
			clear(chunk)
			s.spare = append(s.spare, chunk[:0])
		}
	}
	w.records = nil
}

// gather returns the batch that is being filled, and makes it if there is none.
func (s *shard) gather() *work {
	if s.cur == nil {
		s.cur = &work{begun: s.wall}
	}
	return s.cur
}

// attach makes the call's answer wait for all records that the batch has now.
func (s *shard) attach(c *call, w *work) {
	if n := len(w.waiters); n > 0 && w.waiters[n-1].call == c {
		w.waiters[n-1].upTo = w.n
		return
	}
	w.waiters = append(w.waiters, waiter{c, w.n})
	c.waits++
}

// barrier makes the call's answer wait for everything that was decided before it. The call writes
// nothing itself, but its answer may rest on records that are not durable yet: a duplicate's
// receipt must not arrive before the first submission is durable.
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

// apply applies a soft record at once; it becomes durable with a later batch.
func (s *shard) apply(r ledger.Record) {
	r.At = s.now
	s.softly(&r)
	s.must(&r, s.now)
}

// softly puts a soft record that is applied already into buf.
func (s *shard) softly(r *ledger.Record) {
	s.encode(r)
	if s.soft.IsZero() {
		s.soft = s.wall
	}
}

// must applies a record that this process has decided. An error means a bug in this package, so it
// panics.
func (s *shard) must(r *ledger.Record, now int64) {
	s.stale = true
	if err := s.ledger.Apply(r, now); err != nil {
		panic(err)
	}
}

// encode appends the record's bytes to buf.
func (s *shard) encode(r *ledger.Record) {
	s.buf = r.Append(s.buf)
	s.ends = append(s.ends, len(s.buf))
}

// flush appends buf to the journal as one batch. It does nothing as long as there are only soft
// records that are neither softBytes large nor softDelay old.
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
		s.stuck = true // the records stay in buf until there is room
		return
	case err != nil:
		s.stuck = true // the log has ended: run sees it on log.Done
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

// flushStuck repeats an append that the journal had refused, so that it precedes what this round
// decides.
func (s *shard) flushStuck() {
	if s.stuck {
		s.flush()
	}
}

// settle applies all batches that have become durable and answers the calls that waited for them. A
// checkpoint's state is cut between the batches.
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

// settled applies one durable batch, record by record.
func (s *shard) settled(w *work) {
	done, answered := 0, 0
	for _, chunk := range w.records {
		for i := range chunk {
			s.applied(&chunk[i], w.at)
			done++
			// Answer now: these callers go on while the rest is applied.
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
	for _, left := range w.waiters[answered:] { // barriers that wait for no record of this batch
		s.answered(left.call)
	}
	s.again = append(s.again, w.parked...)
}

// answered counts one batch of those that a call waits for as durable.
func (s *shard) answered(c *call) {
	c.waits--
	s.finish(c)
}

// applied applies one durable hard record to the ledger, and schedules the deletion of payload
// objects that it makes unneeded.
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
