package coordinator

import (
	"cmp"
	"context"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/storage"
)

// Retention says what the cluster store keeps. The zero value is good.
type Retention struct {
	// Events is how many events are kept; default 100,000. EventAge removes older ones also if
	// they are fewer; default 30 days. A reader of events that falls further behind misses some.
	Events   int
	EventAge time.Duration
	// LockAge is how long released locks are kept for people to see; default an hour. A lock whose
	// holder died stays until somebody takes it.
	LockAge time.Duration
	// NodeAge is how long the rows of nodes that left are kept for people to see; default, and the
	// least, is 2·NodeRegistrationTTL: they refuse messages that are late.
	NodeAge time.Duration
}

// SweepTasks returns what the built-in daemon emit:sweeper has to do in this node's store; none
// if the store sweeps nothing. Without a sweeper somewhere in the cluster, the history and the
// rows of nodes that left grow for ever:
//
//	tasks := c.SweepTasks(coordinator.Retention{})
//	err := c.RegisterBuiltin(sweeper.Spec(), sweeper.New(tasks, sweeper.Config{}))
func (c *Coordinator) SweepTasks(keep Retention) []sweeper.Task {
	s, ok := c.store.(storage.Sweeper)
	if !ok {
		return nil
	}
	events, age := cmp.Or(keep.Events, 100_000), cmp.Or(keep.EventAge, 30*24*time.Hour)
	locks, tombstones := cmp.Or(keep.LockAge, time.Hour), max(keep.NodeAge, 2*c.timing.NodeRegistrationTTL)
	return []sweeper.Task{ // seldom: an idle cluster costs its store next to nothing
		{Name: "nodes", Every: min(tombstones, 5*time.Minute), Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
			return s.SweepNodes(ctx, f, tombstones, limit)
		}},
		{Name: "events", Every: 5 * time.Minute, Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
			return s.SweepEvents(ctx, f, age, events, limit)
		}},
		{Name: "locks", Every: 10 * time.Minute, Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
			return s.SweepLocks(ctx, f, locks, limit)
		}},
	}
}
