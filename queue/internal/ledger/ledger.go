// Package ledger is the pure state machine of one shard of a queue. Its state is built from
// records.
//
// It has no clock, goroutine or I/O. The same records in the same order make the same state, live
// and at replay. Times are Unix milliseconds of queue time, which never goes back; they come with
// the records.
//
// # Records
//
// A [Record] is one fact that was decided: a job was enqueued, claimed, completed. The caller
// decides. The ledger answers questions ([Ledger.Find], [Ledger.Best], …) and changes only by
// [Ledger.Apply]. ledger.proto documents the wire format.
//
// There are two kinds of records. They are applied at different moments, and so tolerate different
// things:
//
//   - A *hard* record is applied when it is durable: enqueue, complete, fail, release, cancel,
//     purge, redrive, run, dead, pause, resume, config. Nobody sees the change before. Until then
//     the caller holds the job ([Ledger.Hold]), so that nothing else happens to it. For a job that
//     is to be enqueued, the caller reserves the ID ([Ledger.ReserveID]). A hard record that makes no
//     sense for its job is refused with [ErrVoid] and changes nothing.
//   - A *soft* record (claim, started, expire) may be applied at once and become durable a little
//     later. A checkpoint may therefore contain its effect although the log after the checkpoint
//     has the record again. So a soft record names the delivery it is about, and does nothing if
//     the job is past that point.
//
// For each job, records are applied in the order in which they were decided. Across jobs the order
// of soft records does not matter; hard records are applied in the order of the log.
//
// A seal ends the log of a shard whose jobs move to other shards, and an import begins the log of such a
// shard; see reshard.go. They are hard records as well.
//
// The move of a payload is applied when it is durable, like a hard record. It holds no job, and does
// nothing if its job has ended meanwhile.
//
// # Payloads
//
// A payload of up to [SmallPayload] bytes is part of its job, in memory and in checkpoints. A larger one
// is not: the job refers to the segment of the log that has its record, by the slot. Whoever needs the
// payload reads the segment, and finds the record by the job's number and ID ([PayloadOf]). The payloads
// that were submitted last are in memory as well, up to a number of bytes ([Ledger.KeepRecent]).
//
// A segment is needed as long as a job refers to it, or a checkpoint whose jobs do
// ([CheckpointWriter.Slots]). [Ledger.Sparse] chooses segments of which little is needed; a MovePayload
// record makes a job refer to a newer one.
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
// States in parentheses are final: the job is removed, and its ID is remembered within the
// deduplication window. A job has a number, which identifies it in records and orders it: the
// highest priority comes first, then the lowest number. A retried job keeps its place, unless its
// policy moves it to the end.
//
// # Attempts
//
// A delivery is counted when a job is claimed. An attempt is counted at the first proof that it
// began (started, complete, fail), or when a claim expires, because then it may have begun. A job
// is dead after Max attempts or 3·Max deliveries, whichever comes first. So a lost answer costs no
// attempt, and a job that crashes its workers still ends. A claim that is known to have reached no
// worker counts as neither.
//
// # Memory
//
// A waiting job with an ID of at most 16 bytes (a UUID has 16) takes about 100 bytes at most,
// without a small payload. It has a fixed struct in a chunked arena, a place in its type's queue, an
// entry in the table of IDs and one in the table of numbers. [Stats] counts index, payloads and
// deduplication window separately.
//
// # Checkpoints
//
// [Ledger.BeginCheckpoint] begins a checkpoint of the state at that moment. It is written in steps while the
// ledger continues; a job that is about to change is written before it changes (copy on write).
// [CheckpointReader] reads a checkpoint.
//
// The deduplication window only grows at one end and shrinks at the other, so checkpoints do not
// write all of it each time. A checkpoint has *runs* of it, 2 to 4 MiB each. Later checkpoints have
// the same runs until nothing in them is remembered any more. Entries that are in no run are part
// of the checkpoint itself, until there are enough for a run. The caller stores the runs and
// records which ones a checkpoint has; the ledger identifies them by their order. Entries have
// positions, and runs and checkpoints contain these, so a run that is missing or out of order is
// ErrCorrupt. A checkpoint without runs contains the whole window.
package ledger

import (
	"errors"
	"fmt"
)

// State is a job's place in its life cycle.
type State uint8

// The states. Completed and Cancelled jobs are removed; their IDs are remembered.
const (
	None State = iota
	Waiting
	Delayed
	Active
	Dead
	Completed
	Cancelled
)

// The kinds of errors; test for them with errors.Is.
var (
	// ErrVoid means that a record makes no sense in the current state. Nothing has changed.
	ErrVoid = errors.New("the record does not apply")
	// ErrCorrupt means that bytes are not what this package writes.
	ErrCorrupt = errors.New("not a valid record")
	// ErrNewer means that only a newer version knows the record's kind.
	ErrNewer = errors.New("the record has a kind of a newer version")
)

// Config holds the settings on which the state depends; a Configure record changes them.
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

// Totals are counts since the queue was created.
type Totals struct {
	Enqueued  uint64
	Completed uint64
	Failed    uint64 // attempts that failed or whose claim expired
	Expired   uint64 // jobs that died because their time to live was over
	Cancelled uint64
	Died      uint64 // jobs that died otherwise
}

// Ledger is the state of a shard. Only one goroutine may use it.
type Ledger struct {
	config   Config
	now      int64  // the newest time that was applied
	next     uint64 // the next job's number
	tidiedAt int64  // when unused memory was last released
	paused   bool
	sealed   bool // see Sealed
	imported bool // see Imported
	moving   bool // an import has begun and has not ended
	totals   Totals
	count    [Dead + 1]int // number of jobs by state

	jobs          arena
	expected      int // number of jobs that are expected (see ReserveID): their state is None
	ids           idTable
	numbers       numberTable
	types         stringInterner
	policies      policies
	readyByType   []readyQueue // waiting jobs, by type
	nonEmptyTypes []uint32
	delayed       timers // when delayed jobs become due
	claims        timers // when claims end
	ttl           timers // when waiting jobs' times to live end
	heldTimes     map[uint64]times
	requests      map[string][]uint64 // claimed jobs by request ID

	window       dedupWindow
	oldest       uint64 // no job below this number is waiting
	segments     segments
	recent       recentPayloads
	payloadBytes int64 // bytes of payloads in memory
	extraBytes   int64 // bytes of the fields that only few jobs have

	checkpoint       *CheckpointWriter // in progress; nil: none
	checkpointParity uint8             // flips with each checkpoint; see saveBeforeChange
	replayed         *Record           // reused by Replay
}

// New returns an empty ledger.
func New(c Config) *Ledger {
	l := new(Ledger)
	l.init(c)
	return l
}

// init makes the ledger empty.
func (l *Ledger) init(c Config) {
	*l = Ledger{config: c.withDefaults(), next: 1}
	l.ids.init(func(i uint32) [16]byte { return l.jobs.at(i).id }, func(i uint32, p ID) bool { return l.jobs.at(i).has(p) })
	l.window.init()
	l.delayed.init(&l.jobs, false)
	l.claims.init(&l.jobs, false)
	l.ttl.init(&l.jobs, true)
	l.segments.init()
	l.recent.limit = RecentBytes
}

// setEntry sets an entry of a map, and makes the map if it is nil. A map of the ledger is nil until it has an entry: a process
// may have thousands of ledgers, most of them empty.
func setEntry[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// Now returns the newest time that was applied.
func (l *Ledger) Now() int64 { return l.now }

// Advance moves the time forward: delayed jobs that are due become waiting, and IDs beyond the
// deduplication window are forgotten. It needs no record, because each Apply does the same.
func (l *Ledger) Advance(now int64) {
	if now <= l.now {
		return
	}
	l.now = now
	l.readyDue()
	l.window.forget(now, l.config.DedupIDs)
	if now-l.tidiedAt >= tidyEvery {
		l.tidiedAt = now
		l.tidy()
	}
}

// readyDue makes delayed jobs that are due waiting.
func (l *Ledger) readyDue() {
	for len(l.delayed.heap) > 0 && l.delayed.heap[0].at <= l.now {
		i := l.delayed.heap[0].job
		t := l.detach(i)
		t.at = 0
		l.attach(i, Waiting, t)
	}
}

// tidyEvery is how long, in milliseconds, tables keep unused memory.
const tidyEvery = 10_000

// tidy releases memory that was not needed for a while. A queue that is filled and emptied many
// times a second keeps its tables.
func (l *Ledger) tidy() {
	l.ids.tidy()
	l.window.ids.tidy()
	for _, t := range []*timers{&l.delayed, &l.claims, &l.ttl} {
		t.heap = shrink(t.heap, &t.most)
	}
	for i := range l.readyByType {
		l.readyByType[i].heap = shrink(l.readyByType[i].heap, &l.readyByType[i].most)
	}
}

// NextNumber returns the number for a job that is about to be enqueued, or for the new place of a job
// that is retried behind the others. It never returns a number twice.
func (l *Ledger) NextNumber() uint64 {
	l.next++
	return l.next - 1
}

// times are the times at which something happens to a job; 0 means never.
type times struct {
	at      int64 // when it is due (delayed), its claim ends (active), or it died (dead)
	expires int64 // when its time to live is over
}

// times returns a job's times, wherever they are stored.
func (l *Ledger) times(i uint32) times {
	j := l.jobs.at(i)
	if j.flags&held != 0 {
		if j.state == Active {
			return times{at: j.more.claim.until, expires: j.more.expires}
		}
		return l.heldTimes[j.number] // only few held jobs have any
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
		t.at = j.more.diedAt
		t.expires = j.more.expires
		return t
	}
	if j.ttl != 0 {
		t.expires = l.ttl.heap[j.ttl-1].at
	}
	return t
}

// detach takes a job out of the heap it is in, so that it can be put elsewhere. Every change of a
// job begins here; so a checkpoint in progress writes the job first.
func (l *Ledger) detach(i uint32) times {
	l.saveBeforeChange(i)
	t := l.times(i)
	j := l.jobs.at(i)
	if j.flags&held != 0 {
		if t != (times{}) && j.state != Active {
			delete(l.heldTimes, j.number)
		}
		j.flags &^= held
		l.count[j.state]--
		return t
	}
	switch j.state {
	case Waiting:
		l.removeReady(i)
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

// attach puts a detached job into the heap or list of its state.
func (l *Ledger) attach(i uint32, s State, t times) {
	j := l.jobs.at(i)
	j.state = s
	l.count[s]++
	if s != Active {
		j.flags &^= begun
	}
	switch s {
	case Waiting:
		l.addReady(i)
	case Delayed:
		l.delayed.add(t.at, i)
	case Active:
		l.claims.add(t.at, i)
		j.more.expires = t.expires
		return
	case Dead:
		l.ensureExtras(j).diedAt = t.at
		j.more.expires = t.expires
		return
	}
	if t.expires != 0 {
		l.ttl.add(t.expires, i)
	}
	l.freeExtras(j)
}

// ReserveID reserves an unknown ID for the job with this number, until the record that enqueues it is
// applied. Meanwhile the ID is known as held, and the job's state is None. The caller got the
// number from Number.
func (l *Ledger) ReserveID(number uint64, id ID) {
	l.jobs.at(l.addJob(number, id)).flags |= held
	l.expected++
}

// liveIndex returns the index of the job with this number, unless it is only expected.
func (l *Ledger) liveIndex(number uint64) (uint32, bool) {
	i, ok := l.numbers.get(number)
	return i, ok && l.jobs.at(i).state != None
}

// Hold marks a job: it is not claimed, promoted, expired or listed as due until the next record
// about it is applied.
func (l *Ledger) Hold(number uint64) error {
	i, ok := l.liveIndex(number)
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
		setEntry(&l.heldTimes, number, t)
	}
	return nil
}

// remove deletes a detached job.
func (l *Ledger) remove(i uint32) {
	j := l.jobs.at(i)
	l.ids.remove(j.id, i)
	l.numbers.remove(j.number)
	l.types.release(j.typ)
	l.policies.release(j.policy)
	l.forgetPayload(j)
	l.segments.drop(j.segment, j.size)
	if j.more != nil {
		l.extraBytes -= j.more.bytes()
	}
	l.jobs.free(i)
}
