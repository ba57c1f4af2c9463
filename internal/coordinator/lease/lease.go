// Package lease holds the timing rules of the cluster: how long a leader or a run may go on acting
// without hearing from the store, and when another node may declare its time over. It also holds
// the protocol's durations ([Timing]) and their validation.
//
// Two words are used throughout. The holder is the process that a fact in the store belongs to: the
// leader for a term, a node for its row and its units. An observer is a process that waits for such
// a fact to run out: a candidate, or the leader looking at another node. Validity
// is the time for which a holder may act without another reply.
//
// # Two clocks, never compared
//
// The store's clock stamps facts (time.Time). The local clock is an [Instant]: it counts suspended
// time and never steps, and only differences of it have a meaning. The types keep the two apart.
//
// # Holders count from before the call, observers from the reply
//
// A holder whose call began at local time a may act on what the reply granted until
//
//	a + D − margin(D)        margin(D) = 0.001·D + σ + θ
//
// σ bounds the latency of waking up and cancelling. θ is the largest step of the store's clock that
// may go undetected. The store stamped the fact at real time ≥ a. Clock rates differ by at most ρ =
// 0.001. An observer therefore frees the fact at ≥ a + (D−θ)/(1+ρ/2). The holder has stopped by a +
// (D−margin)/(1−ρ/2) + σ, which is not later. A slow call only shortens the holder's validity.
//
// Example with the profile default: D = 60 s, σ = 1 s, θ = 250 ms, so margin(D) = 1.31 s. A leader sends
// a renewal at second 0. The store applies it at second 0 at the earliest. The leader acts for 58.69 s of
// its clock, which is at most 58.72 s if that clock runs 0.05 % slow. One second more for a late timer
// makes 59.719 s. A candidate whose clock runs 0.05 % fast and misses a step of 250 ms frees the term
// after 59.720 s at the earliest. Had the leader counted from the reply, which came after 4 s, both would
// have led for 4 s.
//
// # When an observer may declare a deadline passed
//
// An observer has two ways to find that D has passed since a stamp of the store:
//
//   - The store's clock says so and did not step since the stamp, as far back as the observer's own
//     samples reach ([Clock.Passed]). A stamp from before the samples counts as made with the first
//     of them, because it was not made later ([Clock.CountFrom]).
//   - The observer saw the fact unchanged for D by its own clock ([Observations]).
//
// The first is fast after a change of leader. The second is right whatever the store's clock does.
// A step of the store's clock makes the first way unavailable until enough time has gone by; it
// never makes it wrong. Each sample is compared with all others of the window, so many small steps
// are found like one large one. The reply of a call that took longer than θ/2 is compared too, but
// no deadline is decided by it.
//
// Two steps that cancel each other between two samples leave no trace in the samples. A stamp made
// in between is therefore believed only if it is not older than the read before it ([Clock.MayFollow]).
// The observer is then early by less than the time between these two reads.
//
// Watching another's unchanged record by one's own clock is the idea of the DynamoDB lock client.
// Counting validity from before the attempt is River's.
package lease

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/node"
)

// Instant is a reading of the local clock, in nanoseconds since an arbitrary origin. The clock must
// count the time for which the machine is suspended, and must never step.
type Instant int64

// Never is later than every other Instant.
const Never = Instant(1<<63 - 1)

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant {
	if i == Never {
		return Never
	}
	return i + Instant(d)
}

// Sub returns the time that passed from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// maxRateDifference (ρ) bounds how much the rates of two clocks differ.
const maxRateDifference = 0.001

// Timing holds every duration of the protocol. The zero value is not usable: start from those of
// a profile.
type Timing struct {
	// HeartbeatInterval is how often a node writes its row. A shorter interval finds work sooner in
	// a store without wake-ups, and costs one more statement per node each time.
	HeartbeatInterval time.Duration
	// QueryTimeout bounds every call to the store.
	QueryTimeout time.Duration
	// LeaseDuration is how long a leader keeps its term without renewing it. It is also the time
	// without a leader after a crash.
	LeaseDuration time.Duration
	// NodeRegistrationTTL is how long a node that sends no heartbeat keeps its units.
	NodeRegistrationTTL time.Duration
	// AcknowledgeTimeout is how long an assigned node has to start a unit.
	AcknowledgeTimeout time.Duration
	// DrainTimeout is how long a revoked unit has to finish.
	DrainTimeout time.Duration
	// StopTimeout is how long an agent has to return once its context is cancelled.
	StopTimeout time.Duration
	// LeaderStopTimeout is how long leader-only work may take to end at a clean stop.
	LeaderStopTimeout time.Duration
	// SettleWindow is how long joins and leaves are waited out: by the first leader of a cluster in
	// which nothing runs, and by each plan (see package plan).
	SettleWindow time.Duration

	// Wakeup (σ) bounds the latency of waking up and cancelling.
	Wakeup time.Duration
	// ClockStep (θ) is the largest step of the store's clock that may go undetected.
	ClockStep time.Duration
	// ClockCheckInterval is how often the local clock is read, so that a suspend of the machine is noticed.
	ClockCheckInterval time.Duration
	// MinWorkTime is the least time for work that a deadline must leave after all margins.
	MinWorkTime time.Duration
}

// Default returns the timings of the profile "default": a leader is replaced after 60 s, a node
// after 90 s.
func Default() Timing {
	return Timing{
		HeartbeatInterval: 15 * time.Second, QueryTimeout: 5 * time.Second,
		LeaseDuration: 60 * time.Second, NodeRegistrationTTL: 90 * time.Second,
		AcknowledgeTimeout: 30 * time.Second, DrainTimeout: 30 * time.Second,
		StopTimeout: 5 * time.Second, LeaderStopTimeout: 5 * time.Second, SettleWindow: 5 * time.Second,
		Wakeup: time.Second, ClockStep: 250 * time.Millisecond,
		ClockCheckInterval: 250 * time.Millisecond, MinWorkTime: time.Second,
	}
}

// Fast returns the timings of the profile "fast": a leader is replaced after 5 s, a node after 6 s.
func Fast() Timing {
	return Timing{
		HeartbeatInterval: time.Second, QueryTimeout: 500 * time.Millisecond,
		LeaseDuration: 5 * time.Second, NodeRegistrationTTL: 6 * time.Second,
		AcknowledgeTimeout: 5 * time.Second, DrainTimeout: 10 * time.Second,
		StopTimeout: time.Second, LeaderStopTimeout: time.Second, SettleWindow: 2 * time.Second,
		Wakeup: 100 * time.Millisecond, ClockStep: 50 * time.Millisecond,
		ClockCheckInterval: 50 * time.Millisecond, MinWorkTime: 100 * time.Millisecond,
	}
}

// instant returns the timings of the profile "instant": a leader is replaced after 1 s, a node after 1.5 s. A call to the
// store that takes longer than 150 ms counts as failed, and two in a row may cost a leader its term.
func instant() Timing {
	return Timing{
		HeartbeatInterval: 200 * time.Millisecond, QueryTimeout: 150 * time.Millisecond,
		LeaseDuration: time.Second, NodeRegistrationTTL: 1500 * time.Millisecond,
		AcknowledgeTimeout: 3 * time.Second, DrainTimeout: 5 * time.Second,
		StopTimeout: 500 * time.Millisecond, LeaderStopTimeout: 500 * time.Millisecond, SettleWindow: 2 * time.Second,
		Wakeup: 100 * time.Millisecond, ClockStep: 25 * time.Millisecond,
		ClockCheckInterval: 20 * time.Millisecond, MinWorkTime: 50 * time.Millisecond,
	}
}

// Profiles are the names of the profiles, slowest first.
func Profiles() []string { return []string{"default", "fast", "instant"} }

// OfProfile returns the timings of a profile, and false if there is none of that name.
func OfProfile(name string) (Timing, bool) {
	switch name {
	case "default":
		return Default(), true
	case "fast":
		return Fast(), true
	case "instant":
		return instant(), true
	}
	return Timing{}, false
}

// Shared returns the timings by which other nodes judge this one. Its row carries them.
func (t Timing) Shared() node.Timing {
	return node.Timing{
		HeartbeatInterval: t.HeartbeatInterval, QueryTimeout: t.QueryTimeout, LeaseDuration: t.LeaseDuration,
		NodeRegistrationTTL: t.NodeRegistrationTTL, StopTimeout: t.StopTimeout, Wakeup: t.Wakeup, ClockStep: t.ClockStep,
	}
}

// With returns t with the fields of s that are not zero in place of its own.
func (t Timing) With(s node.Timing) Timing {
	t.HeartbeatInterval = cmp.Or(s.HeartbeatInterval, t.HeartbeatInterval)
	t.QueryTimeout = cmp.Or(s.QueryTimeout, t.QueryTimeout)
	t.LeaseDuration = cmp.Or(s.LeaseDuration, t.LeaseDuration)
	t.NodeRegistrationTTL = cmp.Or(s.NodeRegistrationTTL, t.NodeRegistrationTTL)
	t.StopTimeout = cmp.Or(s.StopTimeout, t.StopTimeout)
	t.Wakeup = cmp.Or(s.Wakeup, t.Wakeup)
	t.ClockStep = cmp.Or(s.ClockStep, t.ClockStep)
	return t
}

// AtLeast returns t with each duration that s has at least as long as there. By these timings a node with the timings
// t judges one with s, and the bounds of a cluster of both follow from them.
func (t Timing) AtLeast(s node.Timing) Timing {
	t.HeartbeatInterval = max(t.HeartbeatInterval, s.HeartbeatInterval)
	t.QueryTimeout = max(t.QueryTimeout, s.QueryTimeout)
	t.LeaseDuration = max(t.LeaseDuration, s.LeaseDuration)
	t.NodeRegistrationTTL = max(t.NodeRegistrationTTL, s.NodeRegistrationTTL)
	t.StopTimeout = max(t.StopTimeout, s.StopTimeout)
	t.Wakeup = max(t.Wakeup, s.Wakeup)
	t.ClockStep = max(t.ClockStep, s.ClockStep)
	return t
}

// Margin returns margin(d) of the package comment: what a holder takes off a bound of length d.
func (t Timing) Margin(d time.Duration) time.Duration {
	return time.Duration(maxRateDifference*float64(d)) + t.Wakeup + t.ClockStep
}

// ValidFor returns the validity of a fact that observers free after d: how long after the beginning
// of an answered call its holder may go on.
func (t Timing) ValidFor(d time.Duration) time.Duration { return d - t.Margin(d) }

// Late returns the age of a heartbeat from which on the leader marks its node late.
func (t Timing) Late() time.Duration {
	return t.HeartbeatInterval + t.HeartbeatInterval/10 + t.QueryTimeout
}

// Backoff returns the longest pause between two attempts of a failed heartbeat.
func (t Timing) Backoff() time.Duration {
	return min(3*t.HeartbeatInterval/10, 500*time.Millisecond)
}

// Grace returns how long the leader declares no node dead after its election or after an outage of
// the store. Every live node has sent a heartbeat by then.
func (t Timing) Grace() time.Duration { return t.Late() + t.Backoff() }

// ForceAfter returns how long after a revoke with the given drain timeout the leader may take the
// unit from a holder that has not reported.
func (t Timing) ForceAfter(drain time.Duration) time.Duration {
	return max(drain+t.StopTimeout+2*t.Margin(drain), t.NodeRegistrationTTL)
}

// RetireAfter returns how long a unit that no node advertises is kept. The time covers an advert
// that is missing only for a moment.
func (t Timing) RetireAfter() time.Duration { return 2 * t.NodeRegistrationTTL }

// StableAfter returns how long a node that was lost twice must be a member before it gets units as any other.
func (t Timing) StableAfter() time.Duration { return 2 * t.NodeRegistrationTTL }

// Of returns the timing of a daemon that has timeouts of its own; zero is the cluster's.
func (t Timing) Of(acknowledge, drain time.Duration) Timing {
	t.AcknowledgeTimeout, t.DrainTimeout = cmp.Or(acknowledge, t.AcknowledgeTimeout), cmp.Or(drain, t.DrainTimeout)
	return t
}

// Validate returns an error that names every field whose value is invalid or conflicts with another
// field, or nil.
func (t Timing) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"heartbeat_interval", t.HeartbeatInterval},
		{"query_timeout", t.QueryTimeout},
		{"lease_duration", t.LeaseDuration},
		{"node_registration_ttl", t.NodeRegistrationTTL},
		{"acknowledge_timeout", t.AcknowledgeTimeout},
		{"drain_timeout", t.DrainTimeout},
		{"stop_timeout", t.StopTimeout},
		{"leader_stop_timeout", t.LeaderStopTimeout},
	} {
		if f.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %v, want more than 0", f.name, f.value))
		}
	}
	if t.SettleWindow < 0 {
		errs = append(errs, fmt.Errorf("settle_window is %v, want 0 or more", t.SettleWindow))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	h, q := t.HeartbeatInterval, t.QueryTimeout
	beats := h*22/10 + 2*q
	once := h*11/10 + q
	if q >= h {
		errs = append(errs, fmt.Errorf("query_timeout %v is not below heartbeat_interval %v", q, h))
	}
	if t.NodeRegistrationTTL <= t.LeaseDuration {
		errs = append(errs, fmt.Errorf("node_registration_ttl %v is not above lease_duration %v", t.NodeRegistrationTTL, t.LeaseDuration))
	}
	for _, f := range []struct {
		name        string
		value, need time.Duration
		why         string
	}{
		{"lease_duration", t.LeaseDuration, beats + t.Margin(t.LeaseDuration), "two heartbeats and two query timeouts"},
		{"node_registration_ttl", t.NodeRegistrationTTL, beats + t.Margin(t.NodeRegistrationTTL) + t.StopTimeout, "two heartbeats, two query timeouts and stop_timeout"},
		{"acknowledge_timeout", t.AcknowledgeTimeout, once + t.StopTimeout + t.Margin(t.AcknowledgeTimeout) + t.MinWorkTime, "one heartbeat, one query timeout, stop_timeout and slack"},
		{"drain_timeout", t.DrainTimeout, once + t.Margin(t.DrainTimeout) + t.MinWorkTime, "one heartbeat, one query timeout and slack"},
	} {
		if f.value < f.need {
			errs = append(errs, fmt.Errorf("%s %v is too short: with heartbeat_interval %v, query_timeout %v and stop_timeout %v it must be at least %v (%s, plus the margin)",
				f.name, f.value, h, q, t.StopTimeout, f.need.Round(time.Millisecond), f.why))
		}
	}
	return errors.Join(errs...)
}
