package owner_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
)

// TestWindowAndOrder: the window counts from the lowest slot that is not acknowledged, even if
// higher ones are written; acknowledgements come in order.
func TestWindowAndOrder(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	r.hold = writesSlots
	for range 7 {
		r.add("x")
	}
	if got := r.outstanding(); !slices.Equal(got, []uint64{1, 2, 3, 4}) {
		t.Fatalf("outstanding %v, the window is 4", got)
	}
	for _, slot := range []uint64{3, 4, 2} {
		r.release(format.SlotKey(slot))
	}
	if len(r.acks) != 0 || !slices.Equal(r.outstanding(), []uint64{1}) {
		t.Fatalf("acknowledged %v, outstanding %v", r.acks, r.outstanding())
	}
	r.release(format.SlotKey(1))
	// Records that were appended while the window was full are in one segment.
	if !slices.Equal(r.acks, []uint64{4}) || !slices.Equal(r.outstanding(), []uint64{5}) || r.m.View().NewestSlot != 5 {
		t.Errorf("acknowledged %v, outstanding %v, newest slot %d", r.acks, r.outstanding(), r.m.View().NewestSlot)
	}
}

func TestGroupCommit(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	r.hold = writesSlots
	r.add("first")
	cutAt := r.now
	for range 3 {
		r.now += time.Millisecond
		if slot := r.append("x"); slot != 2 {
			t.Errorf("slot %d", slot)
		}
	}
	if len(r.outstanding()) != 1 || r.wake != cutAt+5*time.Millisecond {
		t.Errorf("outstanding %v, wakes at %v after the cut", r.outstanding(), r.wake-cutAt)
	}
	r.now = r.wake
	r.do(r.m.Tick(r.now))
	if len(r.outstanding()) != 2 {
		t.Errorf("outstanding %v", r.outstanding())
	}
	r.hold = nil
	r.run()
	if n := r.segment(2).Header.Records; n != 3 || r.m.View().Durable != 2 {
		t.Errorf("%d records in slot 2, durable %d", n, r.m.View().Durable)
	}
}

// TestNobodyElseInLine: by default, a record does not wait when none is being written, however short the
// time since the last cut is. A MinGap that was chosen is kept.
func TestNobodyElseInLine(t *testing.T) {
	t.Parallel()
	for _, chosen := range []bool{false, true} {
		cfg := config("a", 1)
		if !chosen {
			cfg.MaxGap = 2 * cfg.MinGap
		}
		r := started(t, empty(), cfg)
		for range 3 {
			r.append("x")
			r.run()
		}
		if n := r.m.View().Durable; (n == 3) == chosen {
			t.Errorf("a gap was chosen: %v; durable %d", chosen, n)
		}
	}
}

// TestCallersComeBackTogether: if several callers waited for a segment, the first of the next ones waits for the others, up to
// two writes long. A caller who was alone does not wait, however many records it had.
func TestCallersComeBackTogether(t *testing.T) {
	t.Parallel()
	cfg := config("a", 1)
	cfg.MaxGap = 2 * cfg.MinGap // 5 ms
	r := started(t, empty(), cfg)
	call := func(callers int, records ...string) (written bool) {
		t.Helper()
		before := len(r.outstanding())
		var raw [][]byte
		for _, x := range records {
			raw = append(raw, []byte(x))
		}
		_, effects, err := r.m.Append(r.now, 0, callers, raw)
		if err != nil {
			t.Fatal(err)
		}
		r.do(effects)
		return len(r.outstanding()) > before
	}
	answer := func() {
		r.hold = nil
		r.run()
		r.hold = writesSlots
	}
	r.hold = writesSlots
	for range 200 { // the latency of a write, smoothed, falls to a millisecond
		call(1, "x")
		r.now += time.Millisecond
		answer()
	}
	if !call(1, "a", "batch", "of", "four") {
		t.Error("a caller waits who was alone before")
	}
	answer()
	if !call(1, "x") {
		t.Error("a caller waits for records that it had in the call before")
	}
	answer()
	if !call(3, "x", "x", "x") {
		t.Error("more callers than before wait")
	}
	answer()
	if call(1, "x") || r.wake-r.now < time.Millisecond || r.wake-r.now > cfg.MinGap {
		t.Errorf("of three callers who were answered, the first waits %v", r.wake-r.now)
	}
	if call(1, "x") || !call(1, "x") {
		t.Error("the last of the three callers makes the segment be written, and none before")
	}
	answer()
	if call(2, "x", "x") {
		t.Error("two of three callers do not wait")
	}
	r.now = r.wake
	if r.do(r.m.Tick(r.now)); len(r.outstanding()) != 1 {
		t.Error("the third caller does not come back, and the others wait on")
	}
	answer()
	if n := r.m.View().NewestSlot; n != r.m.View().Durable {
		t.Errorf("newest slot %d, durable %d", n, r.m.View().Durable)
	}
}

// TestBudget: writes of few records are limited to a rate, with a second's worth at once after a pause.
// A record waits at most for one write to be earned, and full writes cost nothing.
func TestBudget(t *testing.T) {
	t.Parallel()
	const perSecond = 8
	cfg := config("a", 1)
	cfg.MinGap, cfg.MaxGap, cfg.WritesPerSecond = 0, time.Millisecond, perSecond
	cfg.MaxSegment, cfg.MaxPending = 1<<20, 1<<20
	r := started(t, empty(), cfg)
	var longest time.Duration
	during := func(d, every time.Duration, records int) (writes uint64) {
		before, waits := r.m.View().Durable, never
		for end := r.now + d; r.now < end; r.now += time.Millisecond {
			if r.now%every == 0 {
				r.append(slices.Repeat([]string{"x"}, records)...)
				waits = min(waits, r.now)
			}
			if r.wake <= r.now {
				r.do(r.m.Tick(r.now))
			}
			r.run()
			if v := r.m.View(); v.Durable == v.NewestSlot && waits != never {
				longest = max(longest, r.now-waits)
				waits = never
			}
		}
		return r.m.View().Durable - before
	}
	for _, c := range []struct {
		every       time.Duration
		records     int
		least, most uint64 // writes in 10 s
	}{
		{10 * time.Millisecond, 1, 11*perSecond + 37 - 3, 11*perSecond + 37 + 3},    // 1,000/27 in addition
		{500 * time.Millisecond, 1, 20, 20},                                         // fewer than the budget: each at once
		{10 * time.Millisecond, owner.RecordsPerWrite, 1000, 1000},                  // full: each at once
		{10 * time.Millisecond, 13, 11*perSecond + 481 - 5, 11*perSecond + 481 + 5}, // 13,000/27 in addition
	} {
		r.now += time.Minute
		longest = 0
		if n := during(10*time.Second, c.every, c.records); n < c.least || n > c.most {
			t.Errorf("%d records every %v: %d writes in 10 s, want %d to %d", c.records, c.every, n, c.least, c.most)
		}
		if longest > time.Second/perSecond {
			t.Errorf("%d records every %v: one waited %v", c.records, c.every, longest)
		}
	}
	// After full writes without end, a lone record waits no longer than one write's time.
	during(time.Second, time.Millisecond, 3*owner.RecordsPerWrite)
	longest = 0
	during(time.Second, time.Second, 1)
	if longest > time.Second/perSecond {
		t.Errorf("after full writes, a record waited %v", longest)
	}
}

// never is a time after all others.
const never = time.Duration(math.MaxInt64)

// TestGapFollowsTheStore: segments are cut so close that the window is full for the latency of a
// write, within the limits. The more writes are under way, the longer the gap is.
func TestGapFollowsTheStore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ least, most, write, want time.Duration }{
		{2 * time.Millisecond, 5 * time.Millisecond, 0, 2 * time.Millisecond},
		{2 * time.Millisecond, 5 * time.Millisecond, 24 * time.Millisecond, 3 * time.Millisecond},
		{2 * time.Millisecond, 5 * time.Millisecond, 400 * time.Millisecond, 5 * time.Millisecond},
		{250 * time.Millisecond, 250 * time.Millisecond, 0, 250 * time.Millisecond},
		{250 * time.Millisecond, 0, 400 * time.Millisecond, 250 * time.Millisecond},
	} {
		cfg := config("a", 1) // of window 4
		cfg.MinGap, cfg.MaxGap = c.least, c.most
		r := started(t, empty(), cfg)
		var gap time.Duration
		for range 100 { // one write is under way
			r.hold = writesSlots
			r.now += time.Hour
			r.append("at once")
			r.append("a gap later")
			gap = r.wake - r.now
			r.now += c.write
			r.release(format.SlotKey(r.m.View().Durable + 1))
			r.now = max(r.now, r.wake)
			r.do(r.m.Tick(r.now))
			r.now += c.write
			r.hold = nil
			r.run()
		}
		if d := gap - c.want; d < -time.Microsecond || d > time.Microsecond {
			t.Errorf("between %v and %v, when a write takes %v: %v, want %v", c.least, c.most, c.write, gap, c.want)
		}
	}
}

func TestBoundsOfAppend(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	r.hold = writesSlots
	try := func(n int) error {
		_, effects, err := r.m.Append(r.now, 0, 1, [][]byte{make([]byte, n)})
		r.do(effects)
		return err
	}
	if err := try(6000); !errors.Is(err, owner.ErrTooLarge) {
		t.Errorf("a call above MaxCall: %v", err)
	}
	if err := try(4000); err != nil { // larger than a segment: it gets a segment of its own
		t.Error(err)
	}
	if err := try(4000); err != nil {
		t.Error(err)
	}
	if err := try(4000); !errors.Is(err, owner.ErrFull) {
		t.Errorf("above MaxPending: %v", err)
	}
	r.hold = nil
	r.run()
	if v := r.m.View(); v.Pending != 0 || v.Outstanding != 0 || v.Full {
		t.Errorf("after everything was acknowledged: %+v", v)
	}
	if slot, effects, err := r.m.Append(r.now, 0, 1, nil); slot != 2 || len(effects) != 0 || err != nil {
		t.Errorf("nothing was appended: slot %d, %v, %v", slot, effects, err)
	}
}

// TestSegmentsAreCutBySize: small calls are gathered until a segment is full, and not beyond it.
func TestSegmentsAreCutBySize(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	r.hold = writesSlots
	var slots []uint64
	for range 9 {
		slot, effects, err := r.m.Append(r.now, 0, 1, [][]byte{make([]byte, 300)})
		if err != nil {
			t.Fatal(err)
		}
		r.do(effects)
		slots = append(slots, slot)
	}
	if want := []uint64{1, 2, 2, 2, 3, 3, 3, 4, 4}; !slices.Equal(slots, want) {
		t.Errorf("slots %v, want %v", slots, want)
	}
}

// TestWhoseWriteIsIt: a slot that is taken is ours if its header says so; an impossible answer is
// read again.
func TestWhoseWriteIsIt(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string][]mem.Fault{
		"the reply was lost":           {{Kind: mem.LostReply}},
		"the request was lost":         {{Kind: mem.LostRequest}},
		"refused though empty":         {{Kind: mem.Refused}},
		"refused though empty, twice":  {{Kind: mem.Refused}, {Kind: mem.Refused}},
		"the store was busy":           {{Kind: mem.Conflict}, {Kind: mem.Throttled, Delay: time.Second}},
		"lost, busy, lost":             {{Kind: mem.LostReply}, {Kind: mem.Conflict}, {Kind: mem.LostReply}},
		"the request arrives later on": {{Kind: mem.Late}},
	} {
		b := empty()
		r := started(t, b, config("a", 1))
		b.Inject(mem.Create, "", faults...)
		r.add("x")
		r.run()
		b.DeliverLate()
		r.add("y")
		r.run()
		if !slices.Equal(r.acks, []uint64{1, 2}) || r.ended {
			t.Errorf("%s: %v, %v\n%s", name, r.acks, r.err, strings.Join(r.log, "\n"))
		}
		next := started(t, b, config("bb", 2))
		next.wants("x", "y")
	}
}

// TestARepetitionHasTheSameBytes: a repeated write has the same bytes, including the put ID.
func TestARepetitionHasTheSameBytes(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	var seen [][]byte
	r.instead = func(c *owner.Call) (owner.Result, bool) {
		if c.Op != owner.CreateSlot || len(seen) == 3 {
			return owner.Result{}, false
		}
		seen = append(seen, c.Write.Bytes(codec))
		return owner.Result{Answer: owner.Unknown, Err: errors.New("lost")}, true
	}
	r.add("x")
	r.run()
	raw, _ := b.Peek("q/" + format.SlotKey(1))
	for i, s := range seen {
		if !slices.Equal(s, raw) {
			t.Errorf("attempt %d had other bytes", i)
		}
	}
}

func TestASlotOfAnotherEndsTheLog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		epoch int64
		want  error
	}{"of a later epoch": {9, owner.ErrFenced}, "of this epoch, but not ours": {1, owner.ErrCorrupt}} {
		b := empty()
		r := started(t, b, config("a", 1))
		body := format.NewBody(0)
		body.Add(0, []byte("theirs"))
		raw := codec.Encode(&format.Header{Slot: 1, Epoch: c.epoch, PutID: 42}, &body)
		if _, err := b.Create(context.Background(), "q/"+format.SlotKey(1), raw); err != nil {
			t.Fatal(err)
		}
		r.add("x")
		r.run()
		if !errors.Is(r.err, c.want) || len(r.acks) != 0 {
			t.Errorf("%s: %v, %v", name, r.err, r.acks)
		}
		if _, _, err := r.m.Append(r.now, 0, 1, [][]byte{nil}); !errors.Is(err, c.want) {
			t.Errorf("%s: append says %v", name, err)
		}
	}
}

// TestNothingIsAcknowledgedAfterTheEnd: answers after the end acknowledge nothing.
func TestNothingIsAcknowledgedAfterTheEnd(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	r.hold = writesSlots
	r.add("x")
	r.do(r.m.Stop(errors.New("stopped")))
	r.hold = nil
	r.run()
	if len(r.acks) != 0 || r.m.View().Durable != 0 {
		t.Errorf("%v, durable %d", r.acks, r.m.View().Durable)
	}
}

// TestTimesAreMonotone: times never go back, across all owners.
func TestTimesAreMonotone(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	for _, at := range []int64{500, 100, 700} {
		_, effects, err := r.m.Append(r.now, at, 1, [][]byte{[]byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		r.do(effects)
	}
	r.now += time.Second
	r.do(r.m.Tick(r.now))
	r.run()
	next := started(t, b, config("bb", 2))
	if next.m.View().Time != 700 {
		t.Errorf("the next owner begins at %d", next.m.View().Time)
	}
	var times []int64
	for slot := uint64(1); slot <= 2; slot++ {
		for _, batch := range next.segment(slot).Batches {
			times = append(times, batch.At)
		}
	}
	if !slices.Equal(times, []int64{500, 500, 700}) {
		t.Errorf("%v", times)
	}
}

// TestPauses: a request is repeated after a growing pause, and never before the store allows it.
func TestPauses(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	attempts, want := 0, time.Duration(0)
	r.instead = func(c *owner.Call) (owner.Result, bool) {
		if c.Op != owner.CreateSlot || attempts > 12 {
			return owner.Result{}, false
		}
		if c.After < want || c.After > 2*want+2*time.Second || c.Attempt != attempts {
			t.Errorf("attempt %d (%d) after %v, want at least %v", c.Attempt, attempts, c.After, want)
		}
		attempts++
		want = min(10*time.Millisecond<<(attempts-1), time.Second)
		res := owner.Result{Answer: owner.Failed, Err: errors.New("no")}
		if attempts == 12 {
			res.Retry, want = time.Minute, time.Minute
		}
		return res, true
	}
	r.add("x")
	r.run()
	if attempts != 13 || !slices.Equal(r.acks, []uint64{1}) {
		t.Errorf("%d attempts, %v", attempts, r.acks)
	}
}
