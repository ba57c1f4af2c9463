package broker

import (
	"errors"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// commits is the group commit of one shard, and the only part that changes the ledger. It gathers the
// records that a round decides, appends them to the journal as one batch, and applies them when the
// batch is durable. Only then it lets the calls that wait for them be answered. The shard's
// goroutine owns it.
//
// Soft records are the exception: they are applied at once and written with the next batch.
type commits struct {
	log    commitLog
	ledger *ledger.Ledger
	clock  *queueClock
	host   commitHost
	budget *storeBudget

	// Records that were decided and are not appended yet.
	buf          []byte
	recordEnds   []int    // end offset of each record in buf
	recordSlices [][]byte // the slices of buf that are passed to log.Append, reused
	gathering    *batch   // the hard records in buf and the calls that wait for them; nil: none
	softSince    time.Time
	blocked      bool // the journal accepted no more (ErrFull, or it has ended); buf is kept

	inFlight  []*batch // appended and not durable yet, in the order of slots
	spare     [][]pending
	scratch   *ledger.Record // the record that is being written or applied; nil until the first
	unapplied struct {       // new jobs in batches that are not applied yet
		jobs  int
		bytes int64
	}
	changes uint64 // number of changes of the ledger
}

// commitLog is what commits needs of the journal.
type commitLog interface {
	AppendFor(callers int, at time.Time, records ...[]byte) (slot uint64, err error)
	Durable() uint64
	NewestSlot() uint64
	Full() bool
}

// commitHost is told what becomes of batches.
type commitHost interface {
	appended(records int)
	beforeSlot(next uint64)          // all slots before next are applied, and no later one
	beforeApplying(r *ledger.Record) // the ledger still has the jobs that a durable record ends
	applied(b *batch)                // all records of the batch are in the ledger
	finish(c *call)                  // one batch less to wait for
	retry(calls []*call)             // what these calls waited for is applied: decide them anew
}

// batch is the records that are appended as one, and the calls that wait for them. Before the
// append it is commits.gathering, after it one of commits.inFlight.
type batch struct {
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

// waitForNewest parks a call that met a held job. It waits for the newest batch, which is durable only after
// all batches before it.
func (g *commits) waitForNewest(c *call) progress {
	b := g.gathering
	if b == nil {
		b = g.inFlight[len(g.inFlight)-1]
	}
	return g.waitFor(c, b)
}

// waitFor makes a call wait for a batch, to be decided anew when the batch is applied.
func (g *commits) waitFor(c *call, b *batch) progress {
	b.parked = append(b.parked, c)
	return waiting
}

// pending is a record that is applied when it is durable. The frequent kinds are not stored as a
// ledger.Record, which is large: job describes an enqueue completely, and number a completion
// without a result.
type pending struct {
	at     int64
	number uint64
	job    *validJob      // an Enqueue record of this job
	other  *ledger.Record // any other record; if job is nil too: Complete number without a result
}

// record adds a hard record to the batch and holds its jobs until it is applied. If c is not nil, its
// answer waits for the record.
func (g *commits) record(c *call, r *ledger.Record) {
	g.hold(r.Numbers...)
	g.recordPending(c, pending{other: r})
}

// hold marks jobs as held in the ledger. The caller has checked that each exists and is not held.
func (g *commits) hold(numbers ...uint64) {
	for _, n := range numbers {
		if err := g.ledger.Hold(n); err != nil {
			panic(err) // the caller has checked it
		}
	}
}

// recordPending is record without holding the jobs: they are held already, or are new. The record that it
// returns is valid until the next call.
func (g *commits) recordPending(c *call, p pending) *ledger.Record {
	p.at = g.clock.now
	b := g.currentBatch()
	g.add(b, p)
	r := g.pendingRecord(&p)
	g.encode(r)
	if c != nil {
		c.wrote = true
		g.attach(c, b)
	}
	return r
}

// pendingRecord returns the ledger's record of a pending one. It is valid until the next call.
func (g *commits) pendingRecord(p *pending) *ledger.Record {
	r := p.other
	if r == nil {
		if g.scratch == nil {
			g.scratch = new(ledger.Record)
		}
		r = g.scratch
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

// recordEnqueue adds the record of a new job. The ledger keeps its ID as held until then.
func (g *commits) recordEnqueue(c *call, j *validJob) *ledger.Record {
	number := g.ledger.NextNumber()
	g.ledger.ReserveID(number, j.packed)
	r := g.recordPending(c, pending{number: number, job: j})
	g.unapplied.jobs++
	g.unapplied.bytes += int64(len(j.inline))
	return r
}

// add stores a record in the batch's chunks. Chunks are never copied when the batch grows.
func (g *commits) add(b *batch, p pending) {
	n := len(b.records)
	if n == 0 || len(b.records[n-1]) == cap(b.records[n-1]) {
		b.records = append(b.records, g.chunk(n == 0))
		n++
	}
	b.records[n-1] = append(b.records[n-1], p)
	b.n++
}

// chunk returns an empty chunk: a spare one if there is any. The first chunk of a batch holds only
// one record, because most batches of a quiet queue have one.
func (g *commits) chunk(first bool) []pending {
	n := len(g.spare)
	switch {
	case n > 0:
		chunk := g.spare[n-1]
		g.spare = g.spare[:n-1]
		return chunk
	case first:
		return make([]pending, 0, 1)
	}
	return make([]pending, 0, pendingChunk)
}

// reuse returns the chunks of an applied batch to the spare ones.
func (g *commits) reuse(b *batch) {
	for _, chunk := range b.records {
		if cap(chunk) == pendingChunk && len(g.spare) < spareChunks {
			clear(chunk)
			g.spare = append(g.spare, chunk[:0])
		}
	}
	b.records = nil
}

// currentBatch returns the batch that is being filled, and makes it if there is none.
func (g *commits) currentBatch() *batch {
	if g.gathering == nil {
		g.gathering = &batch{begun: g.clock.local}
	}
	return g.gathering
}

// attach makes the call's answer wait for all records that the batch has now.
func (g *commits) attach(c *call, b *batch) {
	if n := len(b.waiters); n > 0 && b.waiters[n-1].call == c {
		b.waiters[n-1].upTo = b.n
		return
	}
	b.waiters = append(b.waiters, waiter{c, b.n})
	c.waits++
}

// waitForAll makes the call's answer wait for everything that was decided before it. The call writes
// nothing itself, but its answer may rest on records that are not durable yet: a duplicate's
// receipt must not arrive before the first submission is durable.
func (g *commits) waitForAll(c *call) {
	if g.gathering != nil {
		g.attach(c, g.gathering)
		return
	}
	slot := g.log.NewestSlot()
	if slot <= g.log.Durable() {
		return
	}
	if n := len(g.inFlight); n == 0 || g.inFlight[n-1].slot < slot {
		g.inFlight = append(g.inFlight, &batch{slot: slot, begun: g.clock.local})
	}
	g.attach(c, g.inFlight[len(g.inFlight)-1])
}

// applySoft applies a soft record at once; it becomes durable with a later batch.
func (g *commits) applySoft(r ledger.Record) {
	r.At = g.clock.now
	g.encodeSoft(&r)
	g.mustApply(&r, g.clock.now)
}

// encodeSoft puts a soft record that is applied already into buf.
func (g *commits) encodeSoft(r *ledger.Record) {
	g.encode(r)
	if g.softSince.IsZero() {
		g.softSince = g.clock.local
	}
}

// mustApply applies a record that this process has decided. An error means a bug in this package, so it
// panics.
func (g *commits) mustApply(r *ledger.Record, now int64) {
	g.changes++
	if err := g.ledger.Apply(r, now); err != nil {
		panic(err)
	}
}

// encode appends the record's bytes to buf.
func (g *commits) encode(r *ledger.Record) {
	g.buf = r.Append(g.buf)
	g.recordEnds = append(g.recordEnds, len(g.buf))
}

// appendBatch appends buf to the journal as one batch. Unless all is set, it does nothing as long as
// there are only soft records that are neither softBytes large nor softDelay old.
func (g *commits) appendBatch(all bool) {
	if len(g.recordEnds) == 0 {
		return
	}
	if g.gathering == nil && len(g.buf) < softBytes && g.clock.local.Sub(g.softSince) < softDelay && !all {
		return
	}
	records, from := g.recordSlices[:0], 0
	for _, end := range g.recordEnds {
		records = append(records, g.buf[from:end:end])
		from = end
	}
	g.recordSlices = records
	callers := 0
	if g.gathering != nil {
		callers = len(g.gathering.waiters)
	}
	slot, err := g.log.AppendFor(callers, g.clock.at, records...)
	switch {
	case errors.Is(err, journal.ErrFull):
		g.blocked = true // the records stay in buf until there is room
		return
	case err != nil:
		g.blocked = true // the log has ended: run sees it on log.Done
		return
	}
	g.blocked = false
	g.host.appended(len(records))
	g.buf, g.recordEnds, g.softSince = g.buf[:0], g.recordEnds[:0], time.Time{}
	if cap(g.buf) > 2*roundBytes || cap(g.recordSlices) > roundBytes/16 {
		g.buf, g.recordSlices = nil, nil
	}
	if g.gathering != nil {
		g.gathering.slot, g.gathering.at = slot, g.clock.now
		g.inFlight = append(g.inFlight, g.gathering)
		g.gathering = nil
	}
}

// retryAppend repeats an append that the journal had refused, so that it precedes what this round
// decides.
func (g *commits) retryAppend(all bool) {
	if g.blocked {
		g.appendBatch(all)
	}
}

// applyDurable applies all batches that have become durable and answers the calls that waited for them. A
// checkpoint of the ledger begins between two batches.
func (g *commits) applyDurable() {
	durable := g.log.Durable()
	n := 0
	for n < len(g.inFlight) && g.inFlight[n].slot <= durable {
		g.host.beforeSlot(g.inFlight[n].slot)
		g.applyBatch(g.inFlight[n])
		g.inFlight[n] = nil
		n++
	}
	g.inFlight = g.inFlight[n:]
	g.host.beforeSlot(durable + 1)
}

// applyBatch applies one durable batch, record by record.
func (g *commits) applyBatch(b *batch) {
	done, answered := 0, 0
	for _, chunk := range b.records {
		for i := range chunk {
			g.applyRecord(&chunk[i], b)
			done++
			// Answer now: these callers go on while the rest is applied.
			for ; answered < len(b.waiters) && b.waiters[answered].upTo == done; answered++ {
				g.batchDone(b.waiters[answered].call)
			}
		}
	}
	g.host.applied(b)
	g.reuse(b)
	for _, left := range b.waiters[answered:] { // calls that wait for no record of this batch
		g.batchDone(left.call)
	}
	g.host.retry(b.parked)
}

// batchDone counts one batch of those that a call waits for as durable.
func (g *commits) batchDone(c *call) {
	c.waits--
	g.host.finish(c)
}

// applyRecord applies one durable hard record to the ledger.
func (g *commits) applyRecord(p *pending, b *batch) {
	r := g.pendingRecord(p)
	r.Slot = b.slot
	g.host.beforeApplying(r)
	g.mustApply(r, b.at)
	if p.job != nil {
		g.unapplied.jobs--
		g.unapplied.bytes -= int64(len(p.job.inline))
	}
}

// full reports whether a record that is decided now could not be written.
func (g *commits) full() bool { return g.blocked || g.log.Full() || g.budget.left() > 0 }

// refusal returns the refusal of a call that would write while full.
func (g *commits) refusal() *queue.Error {
	if err := g.budget.refusal(); err != nil {
		return err
	}
	return queueFull("too much is being written at the moment")
}

// size returns the bytes of the records that were decided and are not appended yet.
func (g *commits) size() int { return len(g.buf) }

// idle reports whether no hard record waits to be durable.
func (g *commits) idle() bool { return g.gathering == nil && len(g.inFlight) == 0 }

// advance moves the ledger to the clock's time.
func (g *commits) advance() { g.ledger.Advance(g.clock.now) }

// extend starts the visibility timeout of a claimed job anew. Extensions are not stored.
func (g *commits) extend(number uint64, visibility int64) {
	g.ledger.Extend(number, g.clock.now+visibility)
}

// untilSoft returns how long soft records may still wait; ok is false if there are none, or if the
// journal accepts nothing.
func (g *commits) untilSoft() (wait time.Duration, ok bool) {
	if g.softSince.IsZero() || g.blocked {
		return 0, false
	}
	return max(0, softDelay-time.Since(g.softSince)), true
}

// releaseParked takes the calls that wait to be decided anew after an appended batch.
func (g *commits) releaseParked(release func(*call)) {
	for _, b := range g.inFlight {
		for _, c := range b.parked {
			release(c)
		}
		b.parked = nil
	}
}

// releaseAll takes all calls that wait for a batch. It is for the end of the run.
func (g *commits) releaseAll(release func(*call)) {
	all := g.inFlight
	if g.gathering != nil {
		all = append(all, g.gathering)
	}
	for _, b := range all {
		for _, w := range b.waiters {
			release(w.call)
		}
		for _, c := range b.parked {
			release(c)
		}
	}
}
