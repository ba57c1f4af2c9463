// Package ledger is the state of one shard of a queue, folded from records.
//
// It is pure: no clock, no goroutine, no I/O. The same records in the same order make the same
// state, live and at replay. Times are unix milliseconds of the queue's clock, which never goes
// back; they come with the records.
//
// # Records
//
// A [Record] is one fact that has been decided: a job was enqueued, claimed, completed. Deciding is
// the caller's affair; the ledger answers questions ([Ledger.Find], [Ledger.Best], …) and changes
// by [Ledger.Apply] alone. ledger.proto documents the wire format.
//
// Two kinds of records differ in when they are applied, and therefore in what they tolerate:
//
//   - A *hard* record is applied once it is durable: enqueue, complete, fail, release, cancel,
//     purge, redrive, run, dead, pause, resume, config. Nobody sees the change before. Until then
//     the caller holds the job ([Ledger.Hold]), so that nothing else happens to it, or keeps the ID of
//     one that is to be enqueued ([Ledger.Expect]). Applied to a job
//     for which it makes no sense, it is refused with [ErrVoid] and changes nothing.
//   - A *soft* record (claim, started, expire) may be applied at once and becomes durable a little
//     later. A checkpoint may therefore contain it although the log that follows has it again: it
//     names the delivery it is about and does nothing if that is not news.
//
// Per job, records are applied in the order in which they were decided; across jobs their order
// does not matter, except among hard records, which are applied in the order of the log.
//
// # Jobs
//
//	         enqueue             claim               complete
//	─────────┬──────▶ waiting ───────────▶ active ─────────────▶ (completed)
//	         │           ▲  ▲                │ │
//	         │      due  │  │ release, expire│ │ fail
//	         └──────▶ delayed ◀──────────────┼─┘
//	                                         ▼
//	               redrive ◀───────────── dead        cancel, purge: any ──▶ (cancelled)
//
// States in brackets are ends: the job is gone, its ID is remembered within the dedup window. A
// job has a number, which names it in records and orders it: the highest priority first, then the
// lowest number. A retried job keeps its place, unless its policy sends it back.
//
// # Attempts
//
// A delivery is counted when a job is claimed. An attempt is counted at the first proof that a
// delivery was begun (started, complete, fail), or when a claim expires: then nobody knows. A job
// is dead after Max attempts, or after 3·Max deliveries, whichever is first: a lost answer costs
// no attempt, and a job that kills its workers still ends. A claim that is known to have reached no
// worker counts as neither.
//
// # Memory
//
// A waiting job with an ID of at most 16 bytes (a UUID is 16) takes at most about 100 bytes
// without its payload: a fixed struct in a chunked arena, a place in its type's heap, an
// entry in the table of IDs and one in the table of numbers. [Stats] counts index, payloads and
// dedup window apart.
//
// # Checkpoints
//
// [Ledger.Cut] begins a checkpoint of the state as it is at that moment. It is written in steps
// while the ledger goes on: what is about to change is written before it changes. [Restore] reads
// it back.
//
// The dedup window only grows at one end and shrinks at the other, so it is not written each time. A
// checkpoint has *runs* of it, 2 to 4 MiB each, which later checkpoints have, too, until nothing in
// them is remembered any more; what is in no run is part of the checkpoint, until it is worth a run.
// The caller stores runs and knows which ones a checkpoint has; the ledger knows them by their order.
// Entries have positions, which runs and checkpoints name: a run that is missing, or out of order, is
// ErrCorrupt. A checkpoint that has no runs holds the whole window itself.
package ledger

import (
	"errors"
	"fmt"
)

// State is where a job stands.
type State uint8

// The states. Completed and Cancelled jobs are gone; their IDs are remembered.
const (
	None State = iota
	Waiting
	Delayed
	Active
	Dead
	Completed
	Cancelled
)

// The kinds of errors; ask with errors.Is.
var (
	// ErrVoid says that a record makes no sense in this state. Nothing has changed.
	ErrVoid = errors.New("the record does not apply")
	// ErrCorrupt says that bytes are not what this package writes.
	ErrCorrupt = errors.New("not a valid record")
	// ErrNewer says that a record is of a kind that only a newer program knows.
	ErrNewer = errors.New("the record has a kind of a newer version")
)

// Config are the settings that the fold depends on; a Config record changes them.
type Config struct {
	DedupWindow int64 // milliseconds; default 10 minutes
	DedupIDs    int   // default 1,000,000
}

func (c Config) withDefaults() Config {
	if c.DedupWindow <= 0 {
		c.DedupWindow = 10 * 60 * 1000
	}
	if c.DedupIDs <= 0 {
		c.DedupIDs = 1_000_000
	}
	return c
}

// Totals count since the queue exists.
type Totals struct {
	Enqueued  uint64
	Completed uint64
	Failed    uint64 // attempts that failed or whose claim expired
	Expired   uint64 // jobs given up because their time to live was over
	Cancelled uint64
	Died      uint64 // jobs given up otherwise
}

// Ledger is the state of a shard. It belongs to one goroutine.
type Ledger struct {
	config Config
	now    int64  // the newest time that was applied
	next   uint64 // the next job's number
	tidied int64  // when room was given back last
	paused bool
	totals Totals
	count  [Dead + 1]int // of jobs by state

	jobs     arena
	coming   int // of them, those that are expected: their state is None
	ids      index
	numbers  numbers
	types    names
	policies policies
	lanes    []lane // by type
	busy     []uint32
	delayed  timers // until they may be claimed
	claims   timers // until they end
	ttl      timers // until waiting jobs are given up
	held     map[uint64]times
	requests map[string][]uint64 // claims by the call that made them

	window   window
	oldest   uint64 // no job below this number waits
	payloads int64  // bytes
	extra    int64  // bytes of what few jobs have

	cut      *Cut
	phase    uint8   // flips with each checkpoint; see saved
	replayed *Record // for Replay
}

// New returns an empty ledger.
func New(c Config) *Ledger {
	l := &Ledger{config: c.withDefaults(), next: 1, held: map[uint64]times{}, requests: map[string][]uint64{}}
	l.ids.init(func(i uint32) [16]byte { return l.jobs.at(i).id }, func(i uint32, p ID) bool { return l.jobs.at(i).has(p) })
	l.window.init()
	l.delayed.init(&l.jobs, false)
	l.claims.init(&l.jobs, false)
	l.ttl.init(&l.jobs, true)
	l.types.init()
	l.policies.init()
	return l
}

// Now returns the newest time that was applied.
func (l *Ledger) Now() int64 { return l.now }

// Advance moves the time forward: delayed jobs that are due wait from now on, and IDs are forgotten.
// It is no record; each Apply does the same.
func (l *Ledger) Advance(now int64) {
	if now <= l.now {
		return
	}
	l.now = now
	l.promote()
	l.window.forget(now, l.config.DedupIDs)
	if now-l.tidied >= tidyEvery {
		l.tidied = now
		l.tidy()
	}
}

// promote lets delayed jobs wait that are due.
func (l *Ledger) promote() {
	for len(l.delayed.heap) > 0 && l.delayed.heap[0].at <= l.now {
		i := l.delayed.heap[0].job
		t := l.detach(i)
		t.at = 0
		l.attach(i, Waiting, t)
	}
}

// tidyEvery is how long, in milliseconds, tables keep room that is not needed.
const tidyEvery = 10_000

// tidy gives back what was not needed for a while. A queue that is filled and emptied many times a
// second keeps its tables.
func (l *Ledger) tidy() {
	l.ids.tidy()
	l.window.ids.tidy()
	for _, t := range []*timers{&l.delayed, &l.claims, &l.ttl} {
		t.heap = tidied(t.heap, &t.most)
	}
	for i := range l.lanes {
		l.lanes[i].heap = tidied(l.lanes[i].heap, &l.lanes[i].most)
	}
}

// Number hands out the number of a job that is about to be enqueued, or a new place for one that
// is retried behind the others. Numbers are not handed out twice.
func (l *Ledger) Number() uint64 {
	l.next++
	return l.next - 1
}

// times are when something happens to a job; 0 is never.
type times struct {
	at      int64 // it is due (delayed), its claim ends (active), it died (dead)
	expires int64 // its time to live is over
}

// times returns them of a job, wherever they are kept.
func (l *Ledger) times(i uint32) times {
	j := l.jobs.at(i)
	if j.flags&held != 0 {
		if j.state == Active {
			return times{at: j.more.claim.until, expires: j.more.expires}
		}
		return l.held[j.number] // few have any
	}
	var t times
	switch j.state {
	case Delayed:
		t.at = l.delayed.heap[j.pos].at
	case Active:
		t.at = l.claims.heap[j.pos].at
		t.expires = j.more.expires
		return t
	case Dead:
		t.at = j.more.died
		t.expires = j.more.expires
		return t
	}
	if j.ttl != 0 {
		t.expires = l.ttl.heap[j.ttl-1].at
	}
	return t
}

// detach takes a job out of the heap it is in, so that it can be put elsewhere. Every change of a
// job begins here, therefore a checkpoint under way gets its record first.
func (l *Ledger) detach(i uint32) times {
	l.save(i)
	t := l.times(i)
	j := l.jobs.at(i)
	if j.flags&held != 0 {
		if t != (times{}) && j.state != Active {
			delete(l.held, j.number)
		}
		j.flags &^= held
		l.count[j.state]--
		return t
	}
	switch j.state {
	case Waiting:
		l.unready(i)
	case Delayed:
		l.delayed.remove(j.pos)
	case Active:
		l.claims.remove(j.pos)
	}
	if j.ttl != 0 {
		l.ttl.remove(j.ttl - 1)
	}
	l.count[j.state]--
	return t
}

// attach puts a detached job where its state belongs.
func (l *Ledger) attach(i uint32, s State, t times) {
	j := l.jobs.at(i)
	j.state = s
	l.count[s]++
	if s != Active {
		j.flags &^= begun
	}
	switch s {
	case Waiting:
		l.ready(i)
	case Delayed:
		l.delayed.add(t.at, i)
	case Active:
		l.claims.add(t.at, i)
		j.more.expires = t.expires
		return
	case Dead:
		l.enrich(j).died = t.at
		j.more.expires = t.expires
		return
	}
	if t.expires != 0 {
		l.ttl.add(t.expires, i)
	}
	l.thin(j)
}

// Expect keeps an ID that is not known for the job of this number until the record that enqueues it is
// applied: the ID is known as held, and the job is none yet. The number was handed out for it.
func (l *Ledger) Expect(number uint64, id ID) {
	l.jobs.at(l.admit(number, id)).flags |= held
	l.coming++
}

// live finds a job by its number.
func (l *Ledger) live(number uint64) (uint32, bool) {
	i, ok := l.numbers.get(number)
	return i, ok && l.jobs.at(i).state != None
}

// Hold keeps a job from being claimed, promoted, expired or listed as due until the next record
// about it is applied.
func (l *Ledger) Hold(number uint64) error {
	i, ok := l.live(number)
	if !ok || l.jobs.at(i).flags&held != 0 {
		return fmt.Errorf("hold job %d: %w", number, ErrVoid)
	}
	t := l.detach(i)
	j := l.jobs.at(i)
	l.count[j.state]++
	j.flags |= held
	switch {
	case j.state == Active:
		j.more.claim.until = t.at
	case t != times{}:
		l.held[number] = t
	}
	return nil
}

// remove forgets a detached job.
func (l *Ledger) remove(i uint32) {
	j := l.jobs.at(i)
	l.ids.remove(j.id, i)
	l.numbers.remove(j.number)
	l.types.release(j.typ)
	l.policies.release(j.policy)
	l.payloads -= int64(len(j.payload))
	if j.more != nil {
		l.extra -= j.more.bytes()
	}
	l.jobs.free(i)
}
