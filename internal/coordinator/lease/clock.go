package lease

import (
	"cmp"
	"slices"
	"time"
)

// Clock collects samples of the store's clock and knows since when that clock has not stepped: the baseline. The
// zero value has no samples. Step and Window must be set before use.
type Clock struct {
	// Step is θ, the largest step that may go undetected.
	Step time.Duration
	// Window is the longest time that is measured by the store's clock. Samples older than it are dropped. A gap
	// of this length between two samples ends the baseline. See ExtendWindow.
	Window time.Duration

	maxGap        time.Duration // between two samples, if it is shorter than Window; 0 = Window
	samples       []sample      // oldest first; no step between any two of them
	lastReplyFast bool          // the newest reply was quick enough to become a sample
	baselineStore time.Time
	baselineBegan Instant // when the baseline began, by the local clock
	steps         int
	ahead         time.Duration
}

// sample records that the store's clock read store at some moment in [sent, received].
type sample struct {
	sent, received Instant
	store          time.Time
}

// Observe adds a reply: the store's clock read store at some moment between sent and received. It reports whether
// the store's clock has stepped since the sample before. A slow reply is too imprecise to decide deadlines by and
// never becomes a sample. It is compared all the same: a step that is longer than the call shows in it, and might
// be undone before the next reply.
func (c *Clock) Observe(sent, received Instant, store time.Time) (stepped bool) {
	s := sample{sent, received, store}
	c.lastReplyFast, c.ahead = received.Sub(sent) <= c.Step/2, 0
	if n := len(c.samples); n > 0 && received.Sub(c.samples[n-1].received) >= cmp.Or(c.maxGap, c.Window) {
		c.samples = c.samples[:0] // unwatched for too long: a step in between could hide in the drift
	}
	if stepped = slices.ContainsFunc(c.samples, func(old sample) bool { return !consistent(old, s) }); stepped {
		newest := c.samples[len(c.samples)-1]
		c.ahead = max(store.Sub(newest.store)-sent.Sub(newest.received), 0)
		c.steps++
		c.samples = c.samples[:0]
	}
	if !c.lastReplyFast {
		return stepped
	}
	if len(c.samples) == 0 {
		c.baselineStore, c.baselineBegan = store, sent
	}
	c.addSample(s)
	return stepped
}

// ExtendWindow makes the window at least that long, to measure the durations of a node with longer timings. A gap of the
// former length still ends the baseline: in a longer one, a step that matters to shorter durations could hide in
// the drift. The samples that were dropped are missing from a longer comparison, so the baseline begins anew at
// the oldest one that is left.
func (c *Clock) ExtendWindow(window time.Duration) {
	if window <= c.Window {
		return
	}
	c.maxGap, c.Window = cmp.Or(c.maxGap, c.Window), window
	if len(c.samples) > 0 {
		c.baselineStore, c.baselineBegan = c.samples[0].store, c.samples[0].sent
	}
}

// addSample appends s. It replaces the newest sample if that is closer than an eighth of the window to the one before,
// and drops samples older than 9/8 of the window. Eight to nine samples stay.
func (c *Clock) addSample(s sample) {
	for len(c.samples) > 0 && s.received.Sub(c.samples[0].received) > c.Window+c.Window/8 {
		c.samples = c.samples[1:]
	}
	if n := len(c.samples); n > 1 && c.samples[n-1].received.Sub(c.samples[n-2].received) < c.Window/8 {
		c.samples[n-1] = s
		return
	}
	c.samples = append(c.samples, s)
}

// consistent reports whether a and then b can be readings of one clock that did not step in between and whose rate
// differs from the local clock's by at most ρ.
func consistent(a, b sample) bool {
	passed := b.store.Sub(a.store)
	least, most := b.sent.Sub(a.received), b.received.Sub(a.sent)
	drift := time.Duration(maxRateDifference * float64(max(most, 0)))
	return passed >= least-drift && passed <= most+drift
}

// Passed reports whether d has passed since stamp according to the store's clock, and this evidence is
// trustworthy. It is if stamp came with the newest reply, no step was observed since stamp, and d is at most
// Window.
func (c *Clock) Passed(stamp time.Time, d time.Duration) bool {
	return c.Covers(stamp) && d <= c.Window && !c.samples[len(c.samples)-1].store.Before(stamp.Add(d))
}

// MayFollow reports whether stamp can have been made after the read in seen.PreviousRead. It reports true if that read
// is older than the baseline: the clock may have stepped since, so the read is no evidence.
//
// It finds two steps that cancel each other between two samples. Example: this node reads the store at 10:00:00.
// The store's clock is set back by 40 s, a node's heartbeat is stamped 09:59:30, and the clock is set right again.
// The next read, at 10:00:15, shows no step, and the row seems to be 45 s old. But the read of 10:00:00 still showed
// the row without this heartbeat, so its stamp cannot be right.
func (c *Clock) MayFollow(stamp time.Time, seen Seen) bool {
	return seen.PreviousRead.Store.IsZero() || seen.PreviousRead.At < c.baselineBegan || !stamp.Before(seen.PreviousRead.Store.Add(-c.Step))
}

// CountFrom returns from when an observer may count d: from stamp, or from the beginning of the baseline if stamp is from
// before that. A fact with such a stamp was made before the baseline began, or in the first moments of a step that may go
// undetected: all later ones have later stamps. So it is unchanged for at least as long as the baseline lasts.
//
// Example: a node joins, and the answer to its first heartbeat is slow. Its baseline begins with the second one, a moment
// after the leader's last. It cannot compare the stamp of that leader's row. But the row is older than its own baseline,
// and once that has lasted for the registration's TTL, so has the row's silence.
//
// A stamp from more than d before the baseline is returned as it is, so it is not believed: it may be missing, or from a
// clock that was set back by hours and right again between two samples.
func (c *Clock) CountFrom(stamp time.Time, d time.Duration) time.Time {
	if stamp.Before(c.baselineStore) && !stamp.Before(c.baselineStore.Add(-d)) {
		return c.baselineStore
	}
	return stamp
}

// Left returns a lower bound on the time left until stamp plus d, whatever the latency of the call was: that
// moment is not before at.Add(left). It is ok under the conditions of Passed, and if stamp is not in the future
// of the store's clock.
func (c *Clock) Left(stamp time.Time, d time.Duration) (at Instant, left time.Duration, ok bool) {
	if !c.Covers(stamp) || d > c.Window {
		return 0, 0, false
	}
	s := c.samples[len(c.samples)-1]
	return s.sent, stamp.Add(d).Sub(s.store), !stamp.After(s.store)
}

// Covers reports whether the newest reply continues a baseline that began before stamp, so that times of the
// store's clock since stamp may be compared. It reports false if that reply was too slow, because a step could
// hide in it.
func (c *Clock) Covers(stamp time.Time) bool {
	return c.lastReplyFast && !stamp.Before(c.baselineStore)
}

// LastReplyFast reports whether the newest reply was quick enough to decide deadlines by. Only such a read may become the
// PreviousRead of what is observed later.
func (c *Clock) LastReplyFast() bool { return c.lastReplyFast }

// Reset drops all samples. It is called when the store was replaced by another one.
func (c *Clock) Reset() { c.samples, c.baselineStore, c.lastReplyFast = nil, time.Time{}, false }

// ForwardStep returns by how much, at most, the store's clock advanced further than the local clock between the last
// sample and the newest reply; 0 without a step. Either the store's clock was set forward, or the local clock
// stood still for that long: stopping a machine stops its clock.
func (c *Clock) ForwardStep() time.Duration { return c.ahead }

// Steps returns how many steps of the store's clock were observed.
func (c *Clock) Steps() int { return c.steps }

// Observations records, by the local clock, since when each key's value is unchanged.
type Observations[K, V comparable] map[K]Observation[V]

// Observation is a value and since when it was observed unchanged.
type Observation[V comparable] struct {
	Value V
	Seen
}

// Seen is since when something was observed unchanged.
type Seen struct {
	// Since is when the first reply that showed the value arrived.
	Since Instant
	// PreviousRead is the newest quick read (see [Clock.LastReplyFast]) that still showed the earlier value. A stamp made since
	// then cannot be older than this read, unless the store's clock stood wrong in between. It is zero if no
	// other value was ever observed.
	PreviousRead Read
}

// Read is a moment at which the store was read, by both clocks.
type Read struct {
	At    Instant   // by the local clock
	Store time.Time // by the store's clock
}

// Observe notes the value in a reply received at now and returns since when it is unchanged. before is the newest
// quick read before this one.
func (s Observations[K, V]) Observe(key K, value V, now Instant, before Read) Seen {
	old, known := s[key]
	if known && old.Value == value {
		return old.Seen
	}
	seen := Seen{Since: now}
	if known {
		seen.PreviousRead = before
	}
	s[key] = Observation[V]{value, seen}
	return seen
}

// Retain deletes every key for which keep returns false.
func (s Observations[K, V]) Retain(keep func(K) bool) {
	for k := range s {
		if !keep(k) {
			delete(s, k)
		}
	}
}
