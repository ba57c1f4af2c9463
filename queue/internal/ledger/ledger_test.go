package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// both is a ledger and its twin, and the log that made them.
type both struct {
	*Ledger
	w     *twin
	log   [][]byte
	times []int64
	cut   *CheckpointWriter
	saved []byte
	made  [][]byte // runs of the cut
	runs  [][]byte // of the newest checkpoint
	cutAt int      // length of the log at the cut
	first Config
	sizes [2]int // of runs
}

func newBoth(c Config, least, most int) *both {
	b := &both{Ledger: New(c), w: newTwin(c), first: c, sizes: [2]int{least, most}}
	b.window.minRun, b.window.most = least, most
	return b
}

// apply encodes, decodes and applies a record to both.
func (b *both) apply(t fataler, r *Record, now int64) {
	t.Helper()
	wire := r.Append(nil)
	var back Record
	if err := back.Decode(wire); err != nil {
		t.Fatalf("decode %+v: %v", r, err)
	}
	if again := back.Append(nil); !slices.Equal(again, wire) {
		t.Fatalf("%+v is written as %x, and once read, as %x", r, wire, again)
	}
	b.log, b.times = append(b.log, wire), append(b.times, now)
	err := b.Apply(&back, now)
	if good := b.w.apply(r, now); good != (err == nil) || err != nil && !errors.Is(err, ErrVoid) {
		t.Fatalf("apply %+v: %v, the twin says %t", r, err, good)
	}
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

var kinds = []string{"", "a", "b"}

// same compares the results of all queries.
func (b *both) same(t fataler, ids []string) {
	t.Helper()
	l, w := b.Ledger, b.w
	jobs := []Job{}
	l.EachFrom(0, func(j Job) bool { jobs = append(jobs, j); return true })
	if want := w.sorted(); !reflect.DeepEqual(jobs, want) {
		t.Fatalf("jobs\n%+v\nwant\n%+v", jobs, want)
	}
	for _, id := range ids {
		got, ok := l.Ended(id)
		if want, known := w.end(id); ok != known || got.State != want.State || got.At != want.At || got.Nonce != want.Nonce || string(got.Result) != string(want.Result) {
			t.Fatalf("%s ended as %+v, %t, want %+v, %t", id, got, ok, want, known)
		}
		j, ok := l.Find(id)
		if want := w.find(id); ok != (want != nil) || ok && j.Number != want.Number {
			t.Fatalf("found %q: %+v, want %+v", id, j, want)
		}
		state, held := l.Lookup(Pack(id))
		if want, wantHeld := w.known(id); state != want || held != wantHeld {
			t.Fatalf("%q is known as %d, held %t, want %d, %t", id, state, held, want, wantHeld)
		}
	}
	for _, types := range [][]string{nil, {"a"}, {"b", ""}, {"none"}} {
		want := w.order(types)
		got, ok := l.Best(types)
		if ok != (len(want) > 0) || ok && got != want[0] {
			t.Fatalf("best of %q is %d, %t; want %v", types, got, ok, want)
		}
	}
	if got, want := sorted(l.ExpiredClaims(w.now, 1000)), w.due(false); !slices.Equal(got, want) {
		t.Fatalf("due %v, want %v", got, want)
	}
	if got, want := sorted(l.ExpiredTTLs(w.now, 1000)), w.due(true); !slices.Equal(got, want) {
		t.Fatalf("late %v, want %v", got, want)
	}
	b.sameStats(t)
}

func sorted(v []uint64) []uint64 { slices.Sort(v); return append([]uint64{}, v...) }

func (b *both) sameStats(t fataler) {
	t.Helper()
	s, w := b.Stats(), b.w
	var count [Dead + 1]int
	var oldest, payload int64
	for _, j := range w.sorted() {
		count[j.State]++
		payload += int64(len(j.Payload))
		if j.State == Waiting && oldest == 0 {
			oldest = j.Created
		}
	}
	if [4]int{s.Waiting, s.Delayed, s.Active, s.Dead} != [4]int(count[1:]) || s.Totals != w.totals || s.Oldest != oldest ||
		s.Paused != w.paused || s.PayloadBytes != payload || s.DedupIDs != len(w.ended) || b.now != w.now {
		t.Fatalf("stats %+v at %d, want %v, %+v, oldest %d, at %d, %d ended", s, b.now, count, w.totals, oldest, w.now, len(w.ended))
	}
	if b.Jobs() != len(w.jobs) {
		t.Fatalf("%d jobs, want %d", b.Jobs(), len(w.jobs))
	}
	for number := range w.coming {
		if j, ok := b.Job(number); ok || b.Hold(number) == nil {
			t.Fatalf("a job that is expected is there: %+v", j)
		}
	}
	if w.next != b.next {
		t.Fatalf("next number %d, want %d", b.next, w.next)
	}
}

// drained claims all jobs of both, and compares the order.
func (b *both) drained(t fataler) {
	t.Helper()
	want := b.w.order(nil)
	var got []uint64
	for {
		number, ok := b.Best(nil)
		if !ok {
			break
		}
		got = append(got, number)
		if err := b.Hold(number); err != nil {
			t.Fatalf("%v", err)
		}
		b.w.jobs[number].Held = true
	}
	if !slices.Equal(got, want) {
		t.Fatalf("claimed in the order %v, want %v", got, want)
	}
}

func TestLikeItsTwin(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := Config{DedupWindow: 50, DedupIDs: rapid.IntRange(1, 8).Draw(t, "ids")}
		b := newBoth(c, rapid.SampledFrom([]int{1, 100, 300, leastRun}).Draw(t, "least"), rapid.SampledFrom([]int{1, 150, mostRun}).Draw(t, "most"))
		var ids []string
		for n := range 24 {
			ids = append(ids, []string{
				fmt.Sprintf("id-%d", n), fmt.Sprintf("0190b5a0-0000-7000-8000-%012x", n), fmt.Sprintf("a much longer name of a job, number %d", n),
			}[n%3])
		}
		now := int64(1000)
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			now += rapid.Int64Range(0, 12).Draw(t, "ms")
			b.step(t, ids, now)
			b.same(t, ids)
		}
		b.replayed(t, ids)
		b.drained(t)
	})
}

// step makes one random change.
func (b *both) step(t *rapid.T, ids []string, now int64) {
	what := rapid.SampledFrom([]string{
		"enqueue", "enqueue", "enqueue", "expect", "arrive", "claim", "claim", "claim", "record", "record", "record", "record", "hold", "again", "advance", "cut", "write", "write", "takeover", "config",
	}).Draw(t, "what")
	switch what {
	case "enqueue":
		if id := rapid.SampledFrom(ids).Draw(t, "id"); b.w.expected(id) == nil {
			b.apply(t, b.randomJob(t, id, now), now)
		}
	case "expect":
		if id := rapid.SampledFrom(ids).Draw(t, "id"); b.w.fresh(id) {
			r := b.randomJob(t, id, now)
			b.ReserveID(r.Numbers[0], Pack(id))
			b.w.coming[r.Numbers[0]] = r
		}
	case "arrive":
		if numbers := slices.Sorted(maps.Keys(b.w.coming)); len(numbers) > 0 {
			b.apply(t, b.w.coming[rapid.SampledFrom(numbers).Draw(t, "number")], now)
		}
	case "claim":
		number, ok := b.Best(nil)
		if !ok {
			return
		}
		j := b.w.jobs[number]
		epoch := rapid.Int64Range(3, 4).Draw(t, "epoch")
		delivery := uint64(j.Deliveries) + 1
		if j := b.any(t); j.State == Active && j.Epoch < epoch && rapid.Bool().Draw(t, "adopt") {
			number, delivery = j.Number, uint64(j.Deliveries)
		}
		b.apply(t, &Record{
			Kind: Claim, At: now, Numbers: []uint64{number}, Deliveries: []uint64{delivery}, Worker: "w", Request: "r",
			Epoch: epoch, Nonce: rapid.Uint32().Draw(t, "nonce"), Until: now + 30, Visibility: 30, Tokenless: rapid.Bool().Draw(t, "tokenless"),
		}, now)
	case "record":
		if r := b.randomRecord(t, now); r != nil {
			b.apply(t, r, now)
		}
	case "hold":
		if j := b.any(t); j != nil {
			err := b.Hold(j.Number)
			if (err == nil) == j.Held {
				t.Fatalf("hold %+v: %v", j, err)
			}
			j.Held = true
		}
	case "again": // a batch that was applied before changes nothing
		if len(b.log) > 0 {
			b.again(t, now)
		}
	case "advance":
		b.Advance(now)
		b.w.advance(now)
	case "takeover":
		b.TakeOver(now)
		b.w.takeOver(now)
	case "config":
		b.apply(t, &Record{Kind: Configure, At: now, Config: Config{DedupWindow: rapid.Int64Range(1, 90).Draw(t, "window"), DedupIDs: rapid.IntRange(1, 9).Draw(t, "max")}}, now)
	case "cut", "write":
		b.checkpoint(t, what, ids)
	}
}

func (w *twin) takeOver(now int64) {
	w.advance(now)
	for _, j := range w.jobs {
		if j.State == Active && !j.Held {
			j.At = now + j.Visibility
		}
	}
}

func (b *both) randomJob(t *rapid.T, id string, now int64) *Record {
	r := &Record{
		Kind: Enqueue, At: now, Numbers: []uint64{b.NextNumber()}, ID: id, Type: rapid.SampledFrom(kinds).Draw(t, "type"),
		Payload: []byte(id), Priority: int8(rapid.IntRange(-2, 1).Draw(t, "priority")), Policy: DefaultPolicy,
	}
	b.w.next = b.next
	if rapid.Bool().Draw(t, "odd") {
		r.Group, r.RunAt, r.Expires = "g", now+rapid.Int64Range(-5, 30).Draw(t, "delay"), now+rapid.Int64Range(1, 60).Draw(t, "ttl")
		r.Policy = Policy{Max: uint16(rapid.IntRange(1, 3).Draw(t, "max")), Back: true}
	}
	if rapid.IntRange(0, 9).Draw(t, "blob") == 0 {
		r.Payload, r.Blob, r.Size = nil, "blob/"+id, 1<<20
	}
	return r
}

func (b *both) any(t *rapid.T) *twinJob {
	all := b.w.sorted()
	if len(all) == 0 {
		return nil
	}
	return b.w.jobs[rapid.SampledFrom(all).Draw(t, "job").Number]
}

// randomRecord is about one or two jobs, whether or not it makes sense for them.
func (b *both) randomRecord(t *rapid.T, now int64) *Record {
	r := &Record{
		Kind: rapid.SampledFrom([]Kind{AttemptStarted, Complete, Complete, Fail, Fail, Release, Expire, Cancel, DeadLetter, Redrive, Purge, Pause, Resume, MakeReady}).Draw(t, "kind"),
		At:   now,
	}
	if r.Kind == Pause || r.Kind == Resume {
		return r
	}
	n := 1
	if r.Kind != Complete && r.Kind != Fail {
		n = rapid.IntRange(1, 2).Draw(t, "n")
	}
	for range n {
		j := b.any(t)
		if j == nil {
			return nil
		}
		r.Numbers = append(r.Numbers, j.Number)
		if r.Kind == AttemptStarted || r.Kind == Expire {
			delivery := j.Deliveries - rapid.IntRange(0, 1).Draw(t, "old")
			if delivery < 1 {
				return nil
			}
			r.Deliveries = append(r.Deliveries, uint64(delivery))
			if len(r.Numbers) == 1 {
				r.Epoch = cmp.Or(j.Epoch, 3)
			}
		}
		if (r.Kind == Fail || r.Kind == Expire || r.Kind == Release) && j.Policy.Back {
			r.Places = append(r.Places, b.NextNumber())
			b.w.next = b.next
		} else if r.Kind == Fail || r.Kind == Expire || r.Kind == Release {
			r.Places = append(r.Places, 0)
		}
	}
	switch r.Kind {
	case Complete:
		r.Result = rapid.SampledFrom([][]byte{nil, []byte("done")}).Draw(t, "result")
	case Fail:
		r.Cause, r.Dead, r.RunAt = "broken", rapid.Bool().Draw(t, "dead"), now+rapid.Int64Range(0, 20).Draw(t, "backoff")
	case DeadLetter:
		r.Cause, r.TTLExpired, r.Undelivered = "too old", rapid.Bool().Draw(t, "late"), rapid.Bool().Draw(t, "undelivered")
	case Release:
		if r.Undelivered = rapid.Bool().Draw(t, "undelivered"); r.Undelivered {
			r.Cause, r.RunAt = "unreadable", now+rapid.Int64Range(0, 20).Draw(t, "backoff")
		}
	}
	return r
}

// again applies a record of the log a second time. A hard one is void, or harmless if the state has
// come back (a second pause); a soft one does nothing.
func (b *both) again(t *rapid.T, now int64) {
	var r Record
	if err := r.Decode(rapid.SampledFrom(b.log).Draw(t, "earlier")); err != nil {
		t.Fatalf("%v", err)
	}
	b.Advance(now)
	b.w.advance(now)
	switch r.Kind {
	case Enqueue:
		if _, known := b.w.end(r.ID); !known && b.w.find(r.ID) == nil {
			return // forgotten: it would be a new job
		}
	case Claim, AttemptStarted, Expire:
		for _, number := range r.Numbers {
			if b.w.jobs[number] == nil {
				return
			}
		}
	default:
		return
	}
	err := b.Apply(&r, now)
	if (r.Kind == Enqueue) != errors.Is(err, ErrVoid) {
		t.Fatalf("applied again: %+v: %v", r, err)
	}
}

// checkpoint begins a checkpoint, or writes a step of it. A complete one is restored, and the log
// since the cut is applied to it.
func (b *both) checkpoint(t *rapid.T, what string, ids []string) {
	if what == "cut" {
		if b.cut != nil && rapid.Bool().Draw(t, "abort") {
			b.cut.Abort()
		}
		b.cut, b.saved, b.made, b.cutAt = b.BeginCheckpoint(), nil, nil, len(b.log)
		return
	}
	if b.cut == nil {
		return
	}
	out, run, more := b.cut.Write(nil, rapid.IntRange(1, 300).Draw(t, "bytes"))
	if run {
		b.made = append(b.made, out)
	} else {
		b.saved = append(b.saved, out...)
	}
	if more {
		return
	}
	b.runs = append(b.runs[b.cut.DroppedRuns():], b.made...)
	b.cut.SetCurrentRuns()
	b.cut = nil
	if len(b.runs) != len(b.window.runs) {
		t.Fatalf("%d runs, the ledger says %d", len(b.runs), len(b.window.runs))
	}
	b.equal(t, b.restored(t), b.cutAt, ids)
	if rapid.IntRange(0, 3).Draw(t, "crash") == 0 { // another ledger continues with it
		l := b.restored(t)
		b.catchUp(t, l, b.cutAt)
		b.Ledger, b.w = l, b.w.free()
		b.TakeOver(b.w.now)
		b.w.takeOver(b.w.now)
	}
}

// restored reads the newest checkpoint.
func (b *both) restored(t *rapid.T) *Ledger {
	r := NewCheckpointReader()
	for _, chunk := range append(slices.Clone(b.runs), b.saved) {
		if err := r.Add(chunk); err != nil {
			t.Fatalf("%v", err)
		}
	}
	l, err := r.Ledger()
	if err != nil {
		t.Fatalf("%v", err)
	}
	l.window.minRun, l.window.most = b.sizes[0], b.sizes[1]
	return l
}

// replayed applies the whole log from the beginning.
func (b *both) replayed(t *rapid.T, ids []string) {
	b.equal(t, New(b.firstConfig()), 0, ids)
}

func (b *both) firstConfig() Config { return b.first }

// equal applies the log from a position on to another ledger and compares it with the live one.
func (b *both) equal(t *rapid.T, l *Ledger, from int, ids []string) {
	t.Helper()
	b.catchUp(t, l, from)
	other := &both{Ledger: l, w: b.w.free()}
	l.TakeOver(b.now)
	other.w.takeOver(b.now)
	other.same(t, ids)
	other.drained(t)
}

// catchUp applies the log from a position on to another ledger.
func (b *both) catchUp(t *rapid.T, l *Ledger, from int) {
	var r Record
	for n, wire := range b.log[from:] {
		if err := r.Decode(wire); err != nil {
			t.Fatalf("%v", err)
		}
		_ = l.Apply(&r, b.times[from+n]) // void records are void again
	}
	l.Advance(b.now)
	l.next = b.next
}

// free returns a copy in which nothing is held or expected: the state that a replay makes.
func (w *twin) free() *twin {
	c := *w
	c.jobs, c.coming = map[uint64]*twinJob{}, map[uint64]*Record{}
	for n, j := range w.jobs {
		k := *j
		k.Held = false
		c.jobs[n] = &k
	}
	c.ended = slices.Clone(w.ended)
	c.advance(c.now)
	return &c
}
