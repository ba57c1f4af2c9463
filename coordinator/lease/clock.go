package lease

import (
	"slices"
	"time"
)

// Clock collects samples of the store's clock and knows since when it has not stepped. The zero
// value has seen nothing. Step and Window must be set before use.
type Clock struct {
	// Step is θ, the largest step that may go undetected.
	Step time.Duration
	// Window is the longest time that is judged by the store's clock. Samples older than it are
	// dropped, and a gap between samples as long as it ends the baseline.
	Window time.Duration

	samples []sample // oldest first; all mutually free of steps
	current bool     // the reply observed last is the newest sample, not too blunt to be one
	since   time.Time
	began   Instant // when the baseline began, by the local clock
	steps   int
	ahead   time.Duration
}

// sample says that the store's clock read store at some moment in [sent, received].
type sample struct {
	sent, received Instant
	store          time.Time
}

// Observe adds a reply: the store's clock read store somewhen between sent and received. It
// reports whether the store's clock has stepped since the sample before. A reply that was slow is
// too blunt to judge by and never becomes a sample, but a step that is longer than its call shows in
// it all the same, and may be undone before the next one.
func (c *Clock) Observe(sent, received Instant, store time.Time) (stepped bool) {
	s := sample{sent, received, store}
	c.current, c.ahead = received.Sub(sent) <= c.Step/2, 0
	if n := len(c.samples); n > 0 && received.Sub(c.samples[n-1].received) >= c.Window {
		c.samples = c.samples[:0] // too long unwatched: a step in between could hide in the drift
	}
	if stepped = slices.ContainsFunc(c.samples, func(old sample) bool { return !steady(old, s) }); stepped {
		newest := c.samples[len(c.samples)-1]
		c.ahead = max(store.Sub(newest.store)-sent.Sub(newest.received), 0)
		c.steps++
		c.samples = c.samples[:0]
	}
	if !c.current {
		return stepped
	}
	if len(c.samples) == 0 {
		c.since, c.began = store, sent
	}
	c.keep(s)
	return stepped
}

// keep appends s, thins what is closer together than an eighth of the window and drops what is
// older than the window: eight to nine samples stay.
func (c *Clock) keep(s sample) {
	for len(c.samples) > 0 && s.received.Sub(c.samples[0].received) > c.Window+c.Window/8 {
		c.samples = c.samples[1:]
	}
	if n := len(c.samples); n > 1 && c.samples[n-1].received.Sub(c.samples[n-2].received) < c.Window/8 {
		c.samples[n-1] = s
		return
	}
	c.samples = append(c.samples, s)
}

// steady reports whether a and then b can be readings of one clock that did not step in between
// and whose rate differs from the local clock's by at most ρ.
func steady(a, b sample) bool {
	passed := b.store.Sub(a.store)
	least, most := b.sent.Sub(a.received), b.received.Sub(a.sent)
	drift := time.Duration(rate * float64(max(most, 0)))
	return passed >= least-drift && passed <= most+drift
}

// Passed reports whether the store's clock says that d has gone by since stamp, and may be
// believed: the stamp came with the reply observed last, no step was seen since the stamp, and d
// is within the window.
func (c *Clock) Passed(stamp time.Time, d time.Duration) bool {
	return c.Reaches(stamp) && d <= c.Window && !c.samples[len(c.samples)-1].store.Before(stamp.Add(d))
}

// Fits reports whether a stamp may be of the time since the sighting's floor. A floor from before
// the baseline says nothing: the clock may have stepped since.
func (c *Clock) Fits(stamp time.Time, seen Seen) bool {
	return seen.Floor.Store.IsZero() || seen.Floor.At < c.began || !stamp.Before(seen.Floor.Store.Add(-c.Step))
}

// Left returns how much of d after stamp was left at some moment, as a bound that holds whatever
// the latency of the call was: d ends not before at.Add(left). It is ok under the conditions of
// Passed.
func (c *Clock) Left(stamp time.Time, d time.Duration) (at Instant, left time.Duration, ok bool) {
	if !c.Reaches(stamp) || d > c.Window {
		return 0, 0, false
	}
	s := c.samples[len(c.samples)-1]
	return s.sent, stamp.Add(d).Sub(s.store), !stamp.After(s.store)
}

// Reaches reports whether the reply observed last continues a baseline that began before the
// stamp: times of the store since then may be compared. A reply that was too slow says nothing: a
// step could hide behind it.
func (c *Clock) Reaches(stamp time.Time) bool { return c.current && !stamp.Before(c.since) }

// Sharp reports whether the reply observed last was quick enough to judge by: only such a read is
// a floor for what comes after it.
func (c *Clock) Sharp() bool { return c.current }

// Reset forgets everything: the store became another one.
func (c *Clock) Reset() { c.samples, c.since, c.current = nil, time.Time{}, false }

// Ahead returns by how much the store's clock has gone further than the local one since the sample before the
// reply observed last, at most; 0 without a step. Either the store's clock was set forward, or the
// local clock stood still for so long: whoever stopped this machine stopped its clock.
func (c *Clock) Ahead() time.Duration { return c.ahead }

// Steps returns how many steps of the store's clock were seen.
func (c *Clock) Steps() int { return c.steps }

// Sightings remember since when, by the local clock, something was seen unchanged.
type Sightings[K, V comparable] map[K]Sighting[V]

// Sighting is a value and since when it is known.
type Sighting[V comparable] struct {
	Value V
	Seen
}

// Seen is since when something is known to be as it is.
type Seen struct {
	// Since is when the reply that first showed it came.
	Since Instant
	// Floor is the newest sharp read that still showed something else: what was stamped since is
	// not older. A stamp that is was made while the clock stood wrong, between two samples. Zero
	// if nothing else was ever shown.
	Floor Read
}

// Read is a moment at which the store was read.
type Read struct {
	At    Instant   // by the local clock
	Store time.Time // by the store's
}

// See notes the value that a reply received at now shows and returns since when it is unchanged.
// before is the newest sharp read before this one.
func (s Sightings[K, V]) See(key K, value V, now Instant, before Read) Seen {
	old, known := s[key]
	if known && old.Value == value {
		return old.Seen
	}
	seen := Seen{Since: now}
	if known {
		seen.Floor = before
	}
	s[key] = Sighting[V]{value, seen}
	return seen
}

// Keep forgets every key that keep refuses.
func (s Sightings[K, V]) Keep(keep func(K) bool) {
	for k := range s {
		if !keep(k) {
			delete(s, k)
		}
	}
}
