package coordinator

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/storage"
)

// Retention is how much history the cluster's store keeps. The zero value is a good default.
type Retention struct {
	// Events is how many events are kept; default 100,000. Events older than EventAge are removed
	// even if there are fewer; default 30 days. The newest LeastEvents are kept whatever their age;
	// default 10,000, negative for none. A reader of events that falls further behind misses some.
	//
	// The age of an event is measured by the store's clock, which may be wrong: a clock set 30 days
	// ahead would end the whole history at once. So the sweeping process first compares that
	// clock with its own. An age counts only after the clock has not stepped for as long as that
	// age, or for a day if the age is longer.
	Events, LeastEvents int
	EventAge            time.Duration
	// LockAge is how long released locks are kept for people to see; default one hour. A lock whose
	// holder died stays until another process takes it.
	LockAge time.Duration
	// NodeAge is how long the rows of nodes that left are kept for people to see. The default, and the minimum, is
	// 20·NodeRegistrationTTL of the sweeping node, at least ten minutes: these rows let the store refuse late messages
	// of such nodes, and show which nodes are lost again and again. While timings change, choose at least that of the
	// slowest node.
	NodeAge time.Duration
	// KeyAge is how long the rows of removed keys are kept for people to see, from when nobody holds the unit any
	// more; default 15 minutes. A key that comes back meanwhile goes on with what the row has: its failures, and the
	// state of its unit.
	KeyAge time.Duration
}

// SweepTasks returns what the built-in daemon emit:sweeper has to do in this node's store; nil if
// the store needs no sweeping. Without a sweeper somewhere in the cluster, the history and the rows
// of nodes that left grow for ever:
//
//	tasks := c.SweepTasks(coordinator.Retention{})
//	err := c.RegisterBuiltin(sweeper.Spec(), sweeper.New(tasks, sweeper.Config{}))
func (c *Coordinator) SweepTasks(keep Retention) []sweeper.Task {
	s, ok := c.store.(storage.Sweeper)
	if !ok {
		return nil
	}
	events := storage.Retention{
		MaxEvents: cmp.Or(keep.Events, 100_000), MinEvents: cmp.Or(keep.LeastEvents, 10_000),
		Age: cmp.Or(keep.EventAge, 30*24*time.Hour),
	}
	locks, tombstones := cmp.Or(keep.LockAge, time.Hour), max(keep.NodeAge, plan.LossMemory(c.timing.StableAfter()))
	clock := &clockStability{read: c.storeClock.Load, slack: c.timing.QueryTimeout}
	tasks := []sweeper.Task{ // rarely, so that an idle cluster costs its store next to nothing
		{Name: "nodes", Every: 5 * time.Minute, Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
			if !clock.measures(tombstones) {
				return 0, nil
			}
			return s.SweepNodes(ctx, f, tombstones, limit)
		}},
		{Name: "events", Every: 5 * time.Minute, Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
			keep := events
			if !clock.measures(keep.Age) {
				keep.Age = unlimitedAge
			}
			return s.SweepEvents(ctx, f, keep, limit)
		}},
		{Name: "locks", Every: 10 * time.Minute, Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
			if !clock.measures(locks) {
				return 0, nil
			}
			return s.SweepLocks(ctx, f, locks, limit)
		}},
	}
	keys, ok := c.store.(storage.KeyStore)
	if !ok {
		return tasks
	}
	age := cmp.Or(keep.KeyAge, 15*time.Minute)
	return append(tasks, sweeper.Task{Name: "units", Every: 5 * time.Minute, Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
		if !clock.measures(age) {
			return 0, nil
		}
		return keys.SweepUnits(ctx, f, age, limit)
	}})
}

// unlimitedAge is an age that no event reaches.
const unlimitedAge = 100 * 365 * 24 * time.Hour

// clockStability measures for how long the store's clock has run at the pace of this process's clock.
type clockStability struct {
	read  func() *reading
	slack time.Duration // a reading belongs to the middle of a call

	mu    sync.Mutex
	since *reading // the first reading since the newest step
	last  *reading // the newest one
}

// maxMeasurement bounds how long the store's clock must be measured before an age counts. A
// process rarely lives for the 30 days of an event.
const maxMeasurement = 24 * time.Hour

// measures reports whether an age by the store's clock counts: the clock has made no step for as
// long as that age, or for maxMeasurement if that is shorter. Each reading is compared with the
// first one, so many small steps count as the large one that they add up to. It is also compared with the
// one before: a difference of the rates adds up over weeks, and would hide a large step. The rates of the two
// clocks may differ by a thousandth.
func (s *clockStability) measures(age time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.read()
	if now == nil {
		return false
	}
	if s.since == nil || s.steppedSince(s.since, now) || s.steppedSince(s.last, now) {
		s.since = now
	}
	s.last = now
	return now.here.Sub(s.since.here) >= min(age, maxMeasurement)
}

// steppedSince reports whether the store's clock has made a step between two readings.
func (s *clockStability) steppedSince(from, to *reading) bool {
	here := to.here.Sub(from.here)
	drift := to.store.Sub(from.store) - here
	return drift.Abs() > here/1000+s.slack
}
