package lease

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Unix(1_800_000_000, 0)

func newClock() *Clock {
	return &Clock{Step: 250 * time.Millisecond, Window: 90 * time.Second}
}

// at is a reading of the store's clock and of the local clock, both in seconds.
func at(s float64) Instant         { return Instant(s * 1e9) }
func storeAt(s float64) time.Time  { return epoch.Add(time.Duration(s * 1e9)) }
func secs(s float64) time.Duration { return time.Duration(s * 1e9) }

func TestClockWithoutSteps(t *testing.T) {
	t.Parallel()
	c := newClock()
	for s := 0.0; s <= 200; s += 15 {
		if c.Observe(at(s), at(s+0.01), storeAt(s+0.005)) {
			t.Fatalf("a step seen at %v, there was none", s)
		}
	}
	if !c.Passed(storeAt(100), secs(90)) {
		t.Error("195 - 100 is more than 90, and the clock is steady")
	}
	if c.Passed(storeAt(110), secs(90)) {
		t.Error("195 - 110 is less than 90")
	}
	if c.Passed(storeAt(-1), secs(90)) {
		t.Error("a stamp from before the first sample was believed")
	}
	if c.Passed(storeAt(0.005), secs(91)) {
		t.Error("a time longer than the window was judged by the store's clock")
	}
}

func TestClockSeesAStepEitherWay(t *testing.T) {
	t.Parallel()
	for _, step := range []float64{3, -3, 3600, -3600, 0.6, -0.6} {
		c := newClock()
		c.Observe(at(0), at(0.01), storeAt(0))
		c.Observe(at(15), at(15.01), storeAt(15))
		if !c.Observe(at(30), at(30.01), storeAt(30+step)) {
			t.Errorf("a step of %vs went unseen", step)
		}
		if c.Passed(storeAt(10), secs(5)) {
			t.Errorf("after a step of %vs a stamp from before it was judged", step)
		}
	}
}

func TestClockSeesManySmallSteps(t *testing.T) {
	t.Parallel()
	c := newClock()
	for i := range 40 {
		s := float64(i)
		if c.Observe(at(s), at(s+0.001), storeAt(s*1.1)) { // 0.1 s each second
			return
		}
	}
	t.Error("forty steps of 0.1 s each went unseen")
}

func TestClockDoesNotDecideBySlowReplies(t *testing.T) {
	t.Parallel()
	c := newClock()
	c.Observe(at(0), at(0.01), storeAt(0))
	if c.Observe(at(10), at(14), storeAt(11)) {
		t.Error("a slow reply within its call counted as a step")
	}
	if c.LastReplyFast() || c.Passed(storeAt(0), secs(1)) {
		t.Error("a slow reply was judged by: a step may hide behind it")
	}
	c.Observe(at(15), at(15.01), storeAt(15))
	if !c.LastReplyFast() || !c.Passed(storeAt(0), secs(15)) {
		t.Error("the next quick reply was not believed")
	}
}

// A step that shows only in a slow reply: it is undone before the next quick one.
func TestClockSeesAStepInASlowReply(t *testing.T) {
	t.Parallel()
	c := newClock()
	c.Observe(at(0), at(0.01), storeAt(0))
	if !c.Observe(at(10), at(14), storeAt(3600)) {
		t.Error("a step of an hour went unseen in a call of four seconds")
	}
	c.Observe(at(15), at(15.01), storeAt(15))
	if c.Passed(storeAt(0), secs(1)) || c.Passed(storeAt(14), secs(0.5)) {
		t.Error("a stamp from before the clock was seen to be right again was judged")
	}
	c.Observe(at(30), at(30.01), storeAt(30))
	if !c.Passed(storeAt(16), secs(14)) {
		t.Error("a stamp since then was not judged")
	}
}

func TestClockUnwatchedForTooLong(t *testing.T) {
	t.Parallel()
	c := newClock()
	c.Observe(at(0), at(0.01), storeAt(0))
	c.Observe(at(300), at(300.01), storeAt(300))
	if c.Passed(storeAt(10), secs(60)) {
		t.Error("a baseline with a hole of five minutes was believed")
	}
}

// TestClockNeverReportsPassedTooEarly varies the store's clock and the latency at random. What Passed
// reports about a stamp that fits must be true in real time, except for the margin's share.
func TestClockNeverReportsPassedTooEarly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		localRate := 1 + rapid.Float64Range(-maxRateDifference/2, maxRateDifference/2).Draw(t, "local rate")
		storeRate := 1 + rapid.Float64Range(-maxRateDifference/2, maxRateDifference/2).Draw(t, "store rate")
		real, offset, steps := 0.0, 0.0, 0
		local := func(r float64) Instant { return at(1000 + r*localRate) }
		store := func(r float64) time.Time { return storeAt(r*storeRate + offset) }
		type stamp struct {
			store time.Time
			real  float64
			seen  Seen
			floor float64 // when the read before it was made
			steps int     // until then
		}
		var stamps []stamp
		var floor stamp // the newest read that was quick enough
		for range rapid.IntRange(1, 60).Draw(t, "replies") {
			real += rapid.Float64Range(0.1, 20).Draw(t, "pause")
			if rapid.IntRange(0, 9).Draw(t, "steps") == 0 {
				offset += rapid.SampledFrom([]float64{-3600, -30, -1, -0.1, 0.1, 1, 30, 3600}).Draw(t, "step")
				steps++
			}
			stamps = append(stamps, stamp{store(real), real, floor.seen, floor.floor, floor.steps})
			latency := rapid.SampledFrom([]float64{0.001, 0.02, 0.1, 0.12, 0.5, 4}).Draw(t, "latency")
			read := rapid.Float64Range(0, 1).Draw(t, "read") * latency
			sent := local(real)
			now := store(real + read)
			real += latency
			c.Observe(sent, local(real), now)
			if c.LastReplyFast() {
				floor = stamp{seen: Seen{PreviousRead: Read{local(real), now}}, floor: real - latency + read, steps: steps}
			}
			d := rapid.Float64Range(1, 90).Draw(t, "d")
			for _, s := range stamps {
				if !c.Passed(c.CountFrom(s.store, secs(d)), secs(d)) || !c.MayFollow(s.store, s.seen) {
					continue
				}
				// Two steps that cancel each other, with a stamp but no quick read in between, are
				// not detected. The time passed then counts from the read before the stamp.
				from := s.real
				if s.steps != steps {
					from = s.floor
				}
				least := (d - c.Step.Seconds()) / (1 + maxRateDifference/2) * (1 - maxRateDifference)
				if real-from < least {
					t.Fatalf("said that %.3fs had passed after %.3fs", d, real-from)
				}
			}
		}
	})
}

// A stamp from before the samples counts as made with the first of them: it was not made later.
func TestClockCountsFromItsBaseline(t *testing.T) {
	t.Parallel()
	c := newClock()
	if got := c.CountFrom(storeAt(1), secs(30)); got != storeAt(1) || c.Passed(got, secs(30)) {
		t.Errorf("without samples, a stamp counts from %v", got)
	}
	for s := 20.0; s <= 50; s += 15 {
		c.Observe(at(s), at(s+0.01), storeAt(s))
	}
	for _, x := range []struct {
		stamp, d float64
		from     float64
		passed   bool
	}{
		{stamp: 25, d: 25, from: 25, passed: true},
		{stamp: 19, d: 30, from: 20, passed: true},
		{stamp: 19, d: 30.5, from: 20},
		{stamp: -9, d: 29.5, from: 20, passed: true},
		{stamp: -3600, d: 30, from: -3600}, // the clock may have been wrong for a moment
	} {
		from := c.CountFrom(storeAt(x.stamp), secs(x.d))
		if from != storeAt(x.from) || c.Passed(from, secs(x.d)) != x.passed {
			t.Errorf("%v s after a stamp of %v: counted from %v, passed %v", x.d, x.stamp, from.Sub(epoch), !x.passed)
		}
	}
	if _, left, ok := c.Left(storeAt(19), secs(40)); ok { // a holder must not count from later than the stamp
		t.Errorf("a holder that joined after the stamp has %v left", left)
	}
	if from := c.CountFrom(time.Time{}, secs(30)); !from.IsZero() || c.Passed(from, secs(30)) {
		t.Errorf("a missing stamp counts from %v", from)
	}
	c.Observe(at(65), at(65.01), storeAt(95)) // set forward by 30 s: what was seen before is no evidence
	if from := c.CountFrom(storeAt(64), secs(31)); c.Passed(from, secs(31)) || c.Passed(from, secs(1)) {
		t.Errorf("after a step, a stamp from before it counts from %v", from.Sub(epoch))
	}
}

func TestSightings(t *testing.T) {
	t.Parallel()
	s := Observations[string, int]{}
	if got := s.Observe("a", 1, at(3), Read{at(10), storeAt(10)}).Since; got != at(3) {
		t.Errorf("first seen at 3, told %v", got)
	}
	if got := s.Observe("a", 1, at(5), Read{at(10), storeAt(10)}).Since; got != at(3) {
		t.Errorf("unchanged since 3, told %v", got)
	}
	if got := s.Observe("a", 2, at(11), Read{at(10), storeAt(10)}).Since; got != at(11) {
		t.Errorf("a change did not begin anew: %v", got)
	}
	if got := s["a"].PreviousRead.Store; got != storeAt(10) {
		t.Errorf("the floor of a change is %v, want the read before", got)
	}
	c := newClock()
	if c.MayFollow(storeAt(9), s["a"].Seen) || !c.MayFollow(storeAt(9.9), s["a"].Seen) || !c.MayFollow(storeAt(0), Seen{}) {
		t.Error("a stamp from before the floor fits, or one from after it does not")
	}
	c.Observe(at(20), at(20), storeAt(20))
	if !c.MayFollow(storeAt(9), s["a"].Seen) {
		t.Error("a floor from before the baseline was compared")
	}
	s.Retain(func(string) bool { return false })
	if len(s) != 0 {
		t.Error("Keep kept what it was told not to")
	}
}
