package coordinator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
)

// stalls is an agent that makes no progress, and returns when it is cancelled.
var stalls = daemon.AgentFunc(func(ctx context.Context, _ *daemon.Assignment) error { <-ctx.Done(); return ctx.Err() })

// crashing returns the row of the only unit, which must be in a crash loop, and requires that it never counted as recovered.
func crashing(t *testing.T, c *coordinatortest.Cluster) daemon.Record {
	t.Helper()
	snap, err := c.Store().Snapshot(t.Context())
	if err != nil || len(snap.Units) != 1 {
		t.Fatalf("%+v, %v", snap, err)
	}
	if !snap.Units[0].Crashing() {
		t.Errorf("it looks well: %+v", snap.Units[0])
	}
	if n := recoveries(t, c); n != 0 {
		t.Errorf("reported as recovered %d times", n)
	}
	return snap.Units[0]
}

// recoveries returns how many recoveries the history has.
func recoveries(t *testing.T, c *coordinatortest.Cluster) (n int) {
	t.Helper()
	page, err := c.Store().Events(t.Context(), 0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range page.Events {
		if page.Events[i].Kind == daemon.AssignmentRecovered {
			n++
		}
	}
	return n
}

// A unit whose stalled agent ignores its cancellation is in a crash loop until that agent has returned and the next one
// lives. The failure counts once, although it is reported before the agent returns, and again afterwards.
func TestAHungAgentHasNotRecovered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		hold, calls := make(chan struct{}), 0
		c.Register(daemon.Spec{ID: "acme:x", StallTimeout: 10 * time.Second}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			switch calls++; calls {
			case 1:
				return stalls(ctx, a)
			case 2:
				<-hold
				return nil
			}
			for ctx.Err() == nil {
				a.Progress(1)
				select {
				case <-time.After(time.Second):
				case <-a.Draining():
					return nil
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}))
		advance(10 * time.Minute)
		if r := crashing(t, c); r.Failures != 2 {
			t.Errorf("%d failures of an agent that stalled twice", r.Failures)
		}
		close(hold)
		advance(30 * time.Second)
		if r := crashing(t, c); r.Failures != 2 || calls != 3 {
			t.Errorf("%d failures, %d calls after the hung one has returned", r.Failures, calls)
		}
		advance(2 * time.Minute)
		if n := recoveries(t, c); n != 1 {
			t.Errorf("%d recoveries of an agent that makes progress again", n)
		}
	})
}

// An agent that never makes progress does not count as recovered while the stall timeout, which is longer than it takes to
// reset failures, has not found that out: neither on the node where it fails nor on the next one.
func TestAStallThatIsFoundLateIsNoRecovery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		c.Register(daemon.Spec{ID: "acme:x", StallTimeout: 2 * time.Minute}, stalls)
		advance(6 * time.Minute)
		crashing(t, c)
		advance(time.Hour)
		if r := crashing(t, c); r.Failures < 20 {
			t.Errorf("%d failures in more than an hour", r.Failures)
		}
	})
}

// An agent that makes progress and fails now and then is not in a crash loop, although its stall timeout is longer than it
// works between two failures. So its daemon is not quarantined, and its units find another node when theirs dies.
func TestAnAgentThatWorksBetweenFailuresIsWell(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
		c.Register(daemon.Spec{ID: "acme:x", Instances: 6, StallTimeout: 30 * time.Minute}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			for end := time.Now().Add(20 * time.Minute); time.Now().Before(end); {
				a.Progress(1)
				select {
				case <-time.After(5 * time.Second):
				case <-a.Draining():
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return errors.New("lost its connection")
		}))
		active := func(when string) {
			t.Helper()
			snap, err := c.Store().Snapshot(t.Context())
			if err != nil || len(snap.Units) != 6 {
				t.Fatalf("%s: %+v, %v", when, snap, err)
			}
			for i := range snap.Units {
				if u := &snap.Units[i]; u.State != daemon.Active || u.Crashing() {
					t.Errorf("%s: %v is %s, with %d failures", when, u.Unit, u.State, u.Failures)
				}
			}
		}
		advance(3*time.Hour + 5*time.Minute)
		active("after three hours")
		c.Kill(2)
		advance(5 * time.Minute)
		active("after a node died")
	})
}
