package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
)

// Compares the queue with the plain version: a stable sort by time.
func TestQueueIsAStableSort(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var q queue
	var want []event
	for n := range int64(5000) {
		if rng.IntN(3) > 0 || q.empty() {
			e := event{at: time.Duration(rng.IntN(200)), n: n}
			q.push(e)
			i, _ := slices.BinarySearchFunc(want, e.at+1, func(x event, at time.Duration) int { return int(x.at - at) })
			want = slices.Insert(want, i, e)
			continue
		}
		if at := q.next(); at != want[0].at {
			t.Fatalf("next at %d, want %d", at, want[0].at)
		}
		if e := q.pop(); e.at != want[0].at || e.n != want[0].n {
			t.Fatalf("event %d at %d, want %d at %d", e.n, e.at, want[0].n, want[0].at)
		}
		want = want[1:]
	}
	if len(q.slots) > 3000 {
		t.Errorf("%d slots for what was at most %d events: they are not used again", len(q.slots), 3000)
	}
}

// The inverse of a clock is exact: the first moment at which it reads at least that much.
func TestClockInverse(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		c := clock{offset: rng.Int64N(1e15), ppm: rng.Int64N(2*maxPPM+1) - maxPPM}
		i := lease.Instant(c.offset + rng.Int64N(int64(48*time.Hour)))
		r := c.real(i)
		if c.at(r) < i || c.at(r-1) >= i {
			t.Fatalf("%+v reads %d at %d and %d just before, want %d", c, c.at(r), r, c.at(r-1), i)
		}
	}
}

// A machine's clock counts an hour within half a millionth per ppm of an hour.
func TestClockRate(t *testing.T) {
	t.Parallel()
	for _, ppm := range []int64{-maxPPM, 0, maxPPM} {
		c := clock{offset: 5, ppm: ppm}
		counted := c.at(time.Hour).Sub(c.at(0))
		if want := time.Hour + time.Hour*time.Duration(ppm)/1e6; counted != want {
			t.Errorf("%d ppm: an hour counts %v, want %v", ppm, counted, want)
		}
		if lasts := c.lasts(time.Hour); lasts < quick(time.Hour) || lasts > slow(time.Hour) {
			t.Errorf("%d ppm: an hour lasts %v", ppm, lasts)
		}
	}
}
