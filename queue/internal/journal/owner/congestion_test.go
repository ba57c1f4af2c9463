package owner_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
)

// TestAStoreThatBearsFewWrites: when writes fail, fewer are under way, the lowest slot first. What is appended meanwhile
// waits in one segment. Once they succeed again, the window fills again.
func TestAStoreThatBearsFewWrites(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1)) // of window 4
	r.hold = writesSlots
	for range 4 {
		r.add("x")
	}
	refuse := func(c *owner.Call) (owner.Result, bool) {
		return owner.Result{Answer: owner.Failed, Err: errors.New("slow down")}, writesSlots(c)
	}
	outstanding := func(want ...uint64) {
		t.Helper()
		if got := r.outstanding(); !slices.Equal(got, want) {
			t.Errorf("outstanding %v, want %v", got, want)
		}
	}
	r.instead = refuse
	for _, slot := range []uint64{3, 1, 4, 2} {
		r.release(format.SlotKey(slot))
	}
	outstanding(1, 2) // half of four
	r.add("y")
	r.add("y")
	outstanding(1, 2)
	r.release(format.SlotKey(1))
	outstanding(2) // half of two
	r.release(format.SlotKey(2))
	outstanding(1) // and never fewer than one
	r.instead = nil
	r.release(format.SlotKey(1))
	outstanding(2, 3)
	r.hold = nil
	r.run()
	if n := r.segment(5).Header.Records; n != 2 || r.m.View().Durable != 5 || r.ended {
		t.Errorf("durable %d, %d records in slot 5, %v", r.m.View().Durable, n, r.err)
	}
	more := func() {
		r.hold = writesSlots
		for range 6 {
			r.now += 10 * time.Millisecond
			r.append("z")
			r.do(r.m.Tick(r.now))
		}
	}
	for range 10 {
		more()
		r.hold = nil
		r.run()
		r.now += time.Minute
		r.do(r.m.Tick(r.now)) // what was left over
		r.run()
	}
	before := r.m.View().Durable
	more()
	outstanding(before+1, before+2, before+3, before+4)
}

// TestSlowWritesAreFew: writes that take long halve how many may be under way, once for all that were sent before. Those of
// large segments do not: they take long because of their size.
func TestSlowWritesAreFew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		took   time.Duration
		record int
		want   int // writes under way afterwards
	}{
		"fast":           {100 * time.Millisecond, 1, 4},
		"slow":           {time.Second, 1, 2},
		"slow and large": {time.Second, 300 << 10, 4},
	} {
		cfg := config("a", 1) // of window 4
		cfg.MaxSegment, cfg.MaxCall, cfg.MaxPending = 1<<20, 1<<20, 16<<20
		r := started(t, empty(), cfg)
		r.hold = writesSlots
		text := strings.Repeat("x", c.record)
		for range 4 {
			r.now += 10 * time.Millisecond
			r.append(text)
		}
		r.now += c.took
		for slot := range uint64(4) {
			r.release(format.SlotKey(slot + 1))
		}
		for range 6 {
			r.now += 10 * time.Millisecond
			r.append(text)
			r.do(r.m.Tick(r.now))
		}
		if got := r.outstanding(); len(got) != c.want {
			t.Errorf("%s: %d writes are under way, want %d", name, len(got), c.want)
		}
	}
}

// TestAPauseHoldsNewRecordsBack: after a write that was refused twice, the next records wait too, also in a full segment.
func TestAPauseHoldsNewRecordsBack(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"a segment that is being gathered": 1, "a full segment": 1200} {
		r := started(t, empty(), config("a", 1))
		r.hold = writesSlots
		r.add("x")
		for refusals := range 3 {
			r.instead = func(c *owner.Call) (owner.Result, bool) {
				return owner.Result{Answer: owner.Failed, Err: errors.New("slow down")}, refusals < 2
			}
			r.release(format.SlotKey(1))
		}
		r.wake = 0
		r.append(strings.Repeat("y", size))
		if got := r.outstanding(); len(got) > 0 || r.wake-r.now < 20*time.Millisecond || r.wake-r.now > time.Second {
			t.Errorf("%s: outstanding %v, wakes in %v", name, got, r.wake-r.now)
		}
		r.now = r.wake
		if r.do(r.m.Tick(r.now)); !slices.Equal(r.outstanding(), []uint64{2}) {
			t.Errorf("%s: outstanding %v after the pause", name, r.outstanding())
		}
	}
}

// TestAWriteWithoutLuck: a write that is refused again and again is tried about once a second, or as seldom as the store asks.
func TestAWriteWithoutLuck(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	r.hold = writesSlots
	r.add("x")
	var wanted time.Duration
	r.instead = func(c *owner.Call) (owner.Result, bool) {
		return owner.Result{Answer: owner.Failed, Err: errors.New("slow down"), Retry: wanted}, writesSlots(c)
	}
	for range 30 {
		r.release(format.SlotKey(1))
		if after := r.calls[0].After; after > 1100*time.Millisecond {
			t.Fatalf("the write comes again after %v", after)
		}
	}
	wanted = 10 * time.Second
	if r.release(format.SlotKey(1)); r.calls[0].After < wanted {
		t.Errorf("the write comes again after %v although the store wanted %v", r.calls[0].After, wanted)
	}
}
