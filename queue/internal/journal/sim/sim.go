// Package sim runs several owners of one journal in virtual time, from a seed, to test the
// protocol. The owners are the product's own state machines (journal/owner), on a bucket in memory.
// The network loses replies, delays requests beyond takeovers, tears reads, and answers 409 and
// 503. Owners are paused, crashed, restarted in place, or replaced while they write. The simulator
// makes no decision of the protocol itself.
//
//	EMITD_TEST_JOURNAL_SEEDS=170 go test -run TestStorm -v ./queue/internal/journal/sim    (10,000 takeovers)
//
// Package internal/planted breaks the rules one at a time and requires that TestStorm fails.
//
// # What is checked
//
//	S1  What was acknowledged, or replayed by an owner, is in the state of every later owner, in
//	    the same order, once. (Clients can see a replayed record, acknowledged or not.)
//	S2  An owner acknowledges only what every owner of a later epoch has in its state.
//	S3  A slot to which the state refers exists and has that record.
//	S4  No two owners have one epoch; no two processes own under one generation.
//	S5  An owner ends only for a reason: it is fenced if and only if there is a later epoch, and
//	    no object is ever missing or corrupt.
//	S6  Time does not go back from one owner to the next.
//	S7  All objects that HEAD names, and that its previous checkpoint needs, exist; so do the slots to
//	    which the two checkpoints refer.
//	S8  A process that finds that an object which HEAD names is missing does not own the journal.
//	L1  When faults end, an owner takes over and commits within a minute.
package sim

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/journal/format"
)

// Config configures one run.
type Config struct {
	Seed      uint64
	Takeovers int // ownerships before the faults end
}

// Totals are the counts of one run.
type Totals struct {
	Takeovers    int // takeovers after the first one
	Clean        int // takeovers after a clean close
	Acked        int // records acknowledged
	Unacked      int // unacknowledged records that a later owner found
	Checkpoints  int
	Runs         int // runs that were written for checkpoints
	Deleted      int
	Recognised   int64 // own writes found after a lost reply
	Fenced       int   // owners that ended fenced
	Refused      int   // owners refused for their generation
	Late         int   // writes that took effect after their answer
	Events       int
	VirtualHours float64
}

// Add adds the counts of another run.
func (t *Totals) Add(o Totals) {
	t.Takeovers += o.Takeovers
	t.Clean += o.Clean
	t.Acked += o.Acked
	t.Unacked += o.Unacked
	t.Checkpoints += o.Checkpoints
	t.Runs += o.Runs
	t.Deleted += o.Deleted
	t.Recognised += o.Recognised
	t.Fenced += o.Fenced
	t.Refused += o.Refused
	t.Late += o.Late
	t.Events += o.Events
	t.VirtualHours += o.VirtualHours
}

// Violation is a broken rule.
type Violation struct {
	Rule string
	What string
	At   time.Duration
}

// Error returns the rule and what broke it.
func (v *Violation) Error() string { return fmt.Sprintf("%s at %v: %s", v.Rule, v.At, v.What) }

// world is the state of one run.
type world struct {
	cfg           Config
	rng           *rand.Rand
	now           time.Duration
	events        events
	order         int
	bucket        *mem.Bucket
	executor      journal.Executor
	faultsEnded   bool
	noCheckpoints bool   // no more checkpoints are written
	noAppends     bool   // no more records are appended
	deletedKey    string // the key of the object that was deleted
	stop          error

	brokers    []*broker // brokers that may still act
	current    *broker   // the broker that the leader appointed last
	generation int64
	nextOp     uint64

	check  check
	totals Totals
}

const prefix = "q"

// Run runs one seed: first with faults until Takeovers ownerships have begun, then without, and
// checks the end. The error is a Violation.
func Run(cfg Config) (Totals, error) {
	w := &world{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6a6f75726e616c))}
	w.bucket = mem.New(mem.Config{Faults: w.fault, Now: func() time.Time { return epoch.Add(w.now) }})
	w.executor = journal.Executor{Bucket: w.bucket, Prefix: prefix, Codec: sharedCodec}
	w.check = newCheck()
	w.appoint()
	for w.stop == nil && w.totals.Takeovers < cfg.Takeovers {
		w.next()
	}
	if w.stop == nil {
		w.endFaults()
	}
	w.totals.VirtualHours = w.now.Hours()
	return w.totals, w.stop
}

// epoch is the beginning of virtual time.
var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// sharedCodec is shared because a codec is expensive to make; it keeps no state between calls.
var sharedCodec = format.NewCodec()

// next runs the next event.
func (w *world) next() {
	if len(w.events) == 0 {
		w.violate("L1", "nothing will ever happen again")
		return
	}
	e := heap.Pop(&w.events).(event)
	w.now = e.at
	w.totals.Events++
	e.do()
}

// after schedules f after d.
func (w *world) after(d time.Duration, f func()) {
	w.order++
	heap.Push(&w.events, event{at: w.now + d, order: w.order, do: f})
}

func (w *world) violate(rule, format string, args ...any) {
	if w.stop == nil {
		w.stop = &Violation{Rule: rule, What: fmt.Sprintf(format, args...), At: w.now}
	}
}

// chance is true in perMille of 1,000 cases.
func (w *world) chance(perMille int) bool { return w.rng.IntN(1000) < perMille }

// between returns a random time from a to b; short ones are more likely.
func (w *world) between(a, b time.Duration) time.Duration {
	f := w.rng.Float64()
	return a + time.Duration(f*f*float64(b-a))
}

// endFaults ends all faults and pauses, appoints a last owner, and requires that it commits within a
// minute.
func (w *world) endFaults() {
	w.faultsEnded = true
	for _, b := range w.brokers {
		b.pausedUntil = min(b.pausedUntil, w.now)
	}
	w.bucket.DeliverLate()
	w.current = w.start(w.generation+1, "healer")
	w.generation++
	last := w.current
	for deadline := w.now + time.Minute; w.stop == nil && w.now < deadline; {
		if last.owns && last.acked >= 3 {
			w.check.payloads(w)
			w.check.objects(w)
			w.deleteNeeded(last)
			return
		}
		if last.ended { // the generation floor was higher: the leader uses it
			w.generation++
			last = w.start(w.generation, "healer")
			w.current = last
		}
		w.next()
	}
	w.violate("L1", "after a minute without faults nobody commits (owns: %t)", last.owns)
}

// victimOwner is the owner name of the broker that takes over after an object was deleted. Others may
// have read the object before.
const victimOwner = "robbed"

// deleteNeeded deletes a run that HEAD names, or an acknowledged segment, and crashes the owner. The next
// owner must not begin without the object.
func (w *world) deleteNeeded(last *broker) {
	for _, b := range w.brokers { // no other broker may name another checkpoint meanwhile
		if w.stop == nil && b != last {
			b.crash()
		}
	}
	w.noCheckpoints = true // it continues to write, and then becomes idle
	w.runFor(last, time.Second)
	w.noAppends = true
	w.runFor(last, 5*time.Second)
	if w.stop != nil || last.ended || !last.owns {
		return
	}
	if w.deletedKey = w.chooseNeeded(last); w.deletedKey == "" {
		return
	}
	last.crash()
	if err := w.bucket.Delete(context.Background(), prefix+"/"+w.deletedKey); err != nil {
		w.violate("S8", "%v", err)
	}
	w.generation++
	next := w.start(w.generation, victimOwner)
	for deadline := w.now + time.Minute; w.stop == nil && w.now < deadline && !next.owns && !next.ended; {
		w.next()
	}
}

// runFor runs the events of the next d.
func (w *world) runFor(b *broker, d time.Duration) {
	for deadline := w.now + d; w.stop == nil && len(w.events) > 0 && w.events[0].at < deadline && !b.ended; {
		w.next()
	}
}

// chooseNeeded chooses the object to delete.
func (w *world) chooseNeeded(last *broker) string {
	head := w.check.head(w)
	runs := head.Checkpoint.Runs
	from, upTo := max(head.Checkpoint.Slot, 1), last.m.View().Durable
	if len(runs) > 0 && (upTo < from || w.chance(500)) {
		return runs[len(runs)-1].Key() // later checkpoints need it longest
	}
	if upTo < from {
		return ""
	}
	key := format.SlotKey(upTo - uint64(w.rng.Int64N(int64(min(upTo-from+1, 12)))))
	o, err := w.bucket.Read(context.Background(), prefix+"/"+key)
	if err != nil {
		return "" // void
	}
	if h, err := format.DecodeHeader(o.Data); err != nil || h.Records == 0 {
		return "" // it has no records, so nothing is lost with it
	}
	return key
}

// event is a scheduled function.
type event struct {
	at    time.Duration
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}
