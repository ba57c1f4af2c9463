// Package sim runs several owners of one journal in virtual time, from a seed: the product's own
// state machines (journal/owner) on a bucket in memory, with a network that loses replies, delays
// requests beyond takeovers, tears reads and answers 409 and 503, and owners that are paused,
// crashed, restarted in place, or replaced while they write. It decides nothing of the protocol
// itself. It is for tests:
//
//	EMITD_TEST_JOURNAL_SEEDS=170 go test -run TestStorm -v ./daemon/queue/journal/sim    (10,000 takeovers)
//
// Package internal/planted breaks the rules one at a time and demands that TestStorm sees it.
//
// # What is checked
//
//	S1  What was acknowledged, or replayed by an owner, is in the state of every later owner, in
//	    the same order, once. (A replayed record is visible to clients, acknowledged or not.)
//	S2  An owner acknowledges only what every owner of a later epoch has in its state.
//	S3  A slot to which the state refers is there, with that record.
//	S4  No two owners have one epoch; no two processes own under one generation.
//	S5  An owner ends only for a reason: it is fenced if and only if there is a later epoch, and
//	    no object is ever missing or corrupt.
//	S6  Time does not go back from one owner to the next.
//	S7  What HEAD names, and what its previous checkpoint needs, is there.
//	S8  Who finds that an object is gone that HEAD names does not own the journal.
//	L1  When faults end, an owner takes over and commits within a minute.
package sim

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/emitd/emitd/daemon/queue/journal/format"
	"github.com/emitd/emitd/daemon/queue/journal/internal/courier"
	"github.com/emitd/emitd/storage/blob/mem"
)

// Config of one run.
type Config struct {
	Seed      uint64
	Takeovers int // before the faults end
}

// Totals of one run.
type Totals struct {
	Takeovers    int // ownerships after the first
	Clean        int // of them, after a clean close
	Acked        int // records acknowledged
	Unacked      int // records found by a later owner though they were not acknowledged
	Checkpoints  int
	Runs         int // written for checkpoints
	Deleted      int
	Recognised   int64 // own writes found after a lost reply
	Fenced       int   // owners that ended fenced
	Refused      int   // owners refused for their generation
	Late         int   // writes that arrived after their answer
	Events       int
	VirtualHours float64
}

// Add sums up.
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

// Violation is a broken promise.
type Violation struct {
	Rule string
	What string
	At   time.Duration
}

// Error names the rule and what broke it.
func (v *Violation) Error() string { return fmt.Sprintf("%s at %v: %s", v.Rule, v.At, v.What) }

// world is one run.
type world struct {
	cfg     Config
	rng     *rand.Rand
	now     time.Duration
	events  events
	order   int
	bucket  *mem.Bucket
	courier courier.Courier
	healed  bool
	keeps   bool   // nobody writes checkpoints any more
	quiet   bool   // nobody appends any more
	robbed  string // the key of an object that was taken away
	stop    error

	brokers    []*broker // that may still act
	current    *broker   // whom the leader appointed last
	generation int64
	nextOp     uint64

	check  check
	totals Totals
}

const prefix = "q"

// Run runs one seed until Takeovers ownerships have begun, heals the faults and checks the end. The
// error is a Violation.
func Run(cfg Config) (Totals, error) {
	w := &world{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6a6f75726e616c))}
	w.bucket = mem.New(mem.Config{Faults: w.fault, Now: func() time.Time { return epoch.Add(w.now) }})
	w.courier = courier.Courier{Bucket: w.bucket, Prefix: prefix, Codec: sharedCodec}
	w.check = newCheck()
	w.appoint()
	for w.stop == nil && w.totals.Takeovers < cfg.Takeovers {
		w.next()
	}
	if w.stop == nil {
		w.heal()
	}
	w.totals.VirtualHours = w.now.Hours()
	return w.totals, w.stop
}

// epoch is the virtual beginning of time.
var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// sharedCodec is expensive to make and keeps nothing between calls.
var sharedCodec = format.NewCodec()

// next lets the next event happen.
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

// after schedules f.
func (w *world) after(d time.Duration, f func()) {
	w.order++
	heap.Push(&w.events, event{at: w.now + d, order: w.order, do: f})
}

func (w *world) violate(rule, format string, args ...any) {
	if w.stop == nil {
		w.stop = &Violation{Rule: rule, What: fmt.Sprintf(format, args...), At: w.now}
	}
}

// chance is true in so many of a thousand cases.
func (w *world) chance(perMille int) bool { return w.rng.IntN(1000) < perMille }

// between draws a time from a to b, and not evenly: short ones are more likely.
func (w *world) between(a, b time.Duration) time.Duration {
	f := w.rng.Float64()
	return a + time.Duration(f*f*float64(b-a))
}

// heal ends all faults and pauses, appoints a last owner and demands that it commits.
func (w *world) heal() {
	w.healed = true
	for _, b := range w.brokers {
		b.until = min(b.until, w.now)
	}
	w.bucket.Land()
	w.current = w.start(w.generation+1, "healer")
	w.generation++
	last := w.current
	for deadline := w.now + time.Minute; w.stop == nil && w.now < deadline; {
		if last.owns && last.acked >= 3 {
			w.check.payloads(w)
			w.check.objects(w)
			w.rob(last)
			return
		}
		if last.ended { // the floor was higher: the leader follows it
			w.generation++
			last = w.start(w.generation, "healer")
			w.current = last
		}
		w.next()
	}
	w.violate("L1", "after a minute without faults nobody commits (owns: %t)", last.owns)
}

// robbed is who begins to take over when an object is gone; others may have read it before.
const robbed = "robbed"

// rob takes away a run that HEAD names, or a segment that was acknowledged, and the owner. The next
// one must not begin without it.
func (w *world) rob(last *broker) {
	for _, b := range w.brokers { // nobody else may name another checkpoint meanwhile
		if w.stop == nil && b != last {
			b.crash()
		}
	}
	w.keeps = true // it writes on, and then falls idle
	w.pass(last, time.Second)
	w.quiet = true
	w.pass(last, 5*time.Second)
	if w.stop != nil || last.ended || !last.owns {
		return
	}
	if w.robbed = w.loot(last); w.robbed == "" {
		return
	}
	last.crash()
	if err := w.bucket.Delete(context.Background(), prefix+"/"+w.robbed); err != nil {
		w.violate("S8", "%v", err)
	}
	w.generation++
	next := w.start(w.generation, robbed)
	for deadline := w.now + time.Minute; w.stop == nil && w.now < deadline && !next.owns && !next.ended; {
		w.next()
	}
}

// pass lets events happen for a while.
func (w *world) pass(b *broker, d time.Duration) {
	for deadline := w.now + d; w.stop == nil && len(w.events) > 0 && w.events[0].at < deadline && !b.ended; {
		w.next()
	}
}

// loot chooses what is taken away.
func (w *world) loot(last *broker) string {
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
		return "" // it says nothing that is lost with it
	}
	return key
}

// event is something that will happen.
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
