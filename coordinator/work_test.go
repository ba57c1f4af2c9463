package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// Leader-only work starts when leadership is gained and ends when it is lost, on the leader and on
// no other node, whether it was registered before or after.
func TestWorkFollowsLeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		var seen record[string]
		work := func(i int) func(context.Context, node.Term) error {
			return func(ctx context.Context, term node.Term) error {
				seen.add(fmt.Sprintf("begin %d on %d", term.Ordinal, i))
				<-ctx.Done()
				seen.add(fmt.Sprintf("end %d on %d", term.Ordinal, i))
				return ctx.Err()
			}
		}
		c.Node(0).WhileLeader("w", work(0))
		a := c.Elect()
		c.Node(1).WhileLeader("w", work(1)) // it may lead already
		b := c.Resign()
		advance(0)
		seen.want(t, "work", fmt.Sprintf("begin 1 on %d", a), fmt.Sprintf("end 1 on %d", a), fmt.Sprintf("begin 2 on %d", b))
	})
}

// Work that keeps failing for a lease makes the node resign, but not sooner: a store that is away
// for a moment makes work that uses it fail on every node.
func TestWorkThatFailsResigns(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("no such table") },
		"panic": func() error { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
				i := c.Elect()
				seen := follow(t, c.Node(i))
				starts, began := 0, time.Now()
				c.Node(i).WhileLeader("sick", func(context.Context, node.Term) error { starts++; return fail() })
				c.WaitUntil("the other leads", func() bool { return c.Leader() == 1-i })
				if took := time.Since(began); took < lease.Fast().LeaseDuration || starts < 4 {
					t.Errorf("given up after %d starts in %v", starts, took)
				}
				if tr := seen.all(); tr[len(tr)-1].Reason != node.PassesFailed {
					t.Errorf("transitions: %+v", tr)
				}
			})
		})
	}
}

// Failures far apart are not in a row, and nil ends the work of a term.
func TestWorkFailuresInARow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		c.Elect()
		_, ctx, _ := c.Node(0).Leadership()
		starts, once := 0, 0
		c.Node(0).WhileLeader("flaky", func(ctx context.Context, _ node.Term) error {
			starts++
			select {
			case <-time.After(lease.Fast().LeaseDuration):
				return errors.New("connection lost")
			case <-ctx.Done():
				return nil
			}
		})
		c.Node(0).WhileLeader("once", func(context.Context, node.Term) error { once++; return nil })
		advance(10 * lease.Fast().LeaseDuration)
		if ctx.Err() != nil || starts < 9 {
			t.Errorf("after %d starts: %v", starts, context.Cause(ctx))
		}
		if once != 1 {
			t.Errorf("work that was done was started %d times", once)
		}
	})
}

// While work does not return, the term is not given up, because the work may still act. The next
// term's call waits for it.
func TestWorkThatDoesNotReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		i := c.Elect()
		release := make(chan struct{})
		calls, running := 0, 0
		c.Node(i).WhileLeader("stubborn", func(context.Context, node.Term) error {
			calls++
			running++
			defer func() { running-- }()
			<-release
			return nil
		})
		advance(0)
		began := time.Now()
		if err := c.Node(i).Resign(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		advance(2 * time.Second)
		if snap, _ := c.Store().Snapshot(t.Context()); snap.Term.Vacant {
			t.Error("the term was given up while its work runs")
		}
		c.WaitUntil("the other leads", func() bool { return c.Leader() == 1-i })
		if took := time.Since(began); took < 3*time.Second {
			t.Errorf("the other leads after %v although the lease has to run out", took)
		}
		c.Resign() // another node has led, so i may campaign
		c.WaitUntil("it leads again", func() bool { return c.Leader() == i })
		advance(time.Second)
		if calls != 1 || running != 1 {
			t.Errorf("%d calls, %d at once", calls, running)
		}
		close(release)
		advance(0)
		if calls != 2 {
			t.Error("the next term's call did not come")
		}
	})
}
