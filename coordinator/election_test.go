package coordinator_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// A single node elects itself with its first heartbeat, whether or not the store has wake-ups. It
// gives everything up when it stops.
func TestStartGainsStopResigns(t *testing.T) {
	t.Parallel()
	for _, wakeUps := range []bool{true, false} {
		t.Run(map[bool]string{true: "wake-ups", false: "poll"}[wakeUps], func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				cfg := coordinatortest.Config{}
				if !wakeUps {
					cfg.Wrap = func(_ int, s storage.Store) storage.Store { return struct{ storage.Store }{s} }
				}
				c := coordinatortest.New(t, cfg)
				seen := follow(t, c.Node(0))
				advance(100 * time.Millisecond)
				term, ctx, ok := c.Node(0).Leadership()
				if !ok || ctx.Err() != nil || term.Ordinal != 1 {
					t.Fatalf("after the first heartbeat: term %v, context %v, leading %v", term, ctx.Err(), ok)
				}
				if err := c.Stop(0); err != nil {
					t.Fatal(err)
				}
				advance(0)
				got := leads(seen)
				if len(got) == 3 && !got[0] { // subscribed before the first heartbeat was answered
					got = got[1:]
				}
				if !slices.Equal(got, []bool{true, false}) {
					t.Errorf("transitions: %v", seen.all())
				}
				if _, ctx, ok := c.Node(0).Leadership(); ok || !errors.Is(context.Cause(ctx), coordinator.ErrNotLeading) {
					t.Errorf("after the stop: leading %v, cause %v", ok, context.Cause(ctx))
				}
				snap, err := c.Store().Snapshot(t.Context())
				if err != nil || !snap.Term.Vacant || snap.Nodes[0].Present() {
					t.Errorf("after the stop the store says term %+v, nodes %+v, %v", snap.Term, snap.Nodes, err)
				}
			})
		})
	}
}

// One of two competing nodes leads. When it stops, the other leads within a moment, with a higher
// number. After both have stopped no node leads.
func TestCompetingNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		first := c.Elect()
		one, _, _ := c.Node(first).Leadership()
		advance(3 * lease.Fast().LeaseDuration)
		if c.Leader() != first {
			t.Fatal("leadership moved although nothing happened")
		}
		other := 1 - first
		if _, _, ok := c.Node(other).Leadership(); ok {
			t.Fatal("two nodes lead")
		}
		if err := c.Stop(first); err != nil {
			t.Fatal(err)
		}
		advance(100 * time.Millisecond)
		two, _, ok := c.Node(other).Leadership()
		if !ok || two.Number <= one.Number || two.Ordinal != one.Ordinal+1 {
			t.Fatalf("100 ms after the leader's clean stop: term %v after %v, leading %v", two, one, ok)
		}
		if err := c.Stop(other); err != nil {
			t.Fatal(err)
		}
		if snap, _ := c.Store().Snapshot(t.Context()); snap.Term.Held() {
			t.Errorf("everybody stopped, but the store says %+v", snap.Term)
		}
	})
}

// Two stores are two clusters.
func TestStoresElectIndependently(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := coordinatortest.New(t, coordinatortest.Config{}), coordinatortest.New(t, coordinatortest.Config{})
		if a.Elect() != 0 || b.Elect() != 0 {
			t.Error("one node each should lead")
		}
	})
}

// Leadership lasts over many renewals.
func TestLeadershipIsSustained(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{Nodes: 1})
		var renewals record[int64]
		taps[0].set(func(_ context.Context, _ string, req any, _ error) error {
			if hb, ok := req.(storage.Heartbeat); ok && hb.TermRequest.Renew != 0 {
				renewals.add(hb.TermRequest.Renew)
			}
			return nil
		}, nil)
		c.Elect()
		_, ctx, _ := c.Node(0).Leadership()
		advance(10 * lease.Fast().LeaseDuration)
		if ctx.Err() != nil {
			t.Errorf("leadership ended: %v", context.Cause(ctx))
		}
		if n := len(renewals.all()); n < 40 || n > 60 {
			t.Errorf("%d renewals in 50 s, want about one a second", n)
		}
	})
}

// A resignation right after the election moves leadership to another live node, every time.
func TestResignMovesLeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
		for range 10 {
			before := c.Elect()
			began := time.Now()
			if after := c.Resign(); after == before {
				t.Fatalf("node-%d resigned and leads again", before)
			}
			if took := time.Since(began); took > 300*time.Millisecond {
				t.Errorf("the hand-over took %v", took)
			}
		}
	})
}

// A single node campaigns again after its pause. Resigning without leading is an error. A burst of
// requests to resign is one resignation.
func TestResignAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		c.Elect()
		seen := follow(t, c.Node(0))
		var errs record[bool]
		for range 5 {
			go func() { errs.add(c.Node(0).Resign(t.Context(), 20*time.Second) == nil) }()
		}
		advance(time.Second)
		if errs.count(true) == 0 {
			t.Error("no wish to resign was granted")
		}
		if err := c.Node(0).Resign(t.Context(), 0); !errors.Is(err, coordinator.ErrNotLeading) {
			t.Errorf("resigning without leading: %v", err)
		}
		advance(17 * time.Second)
		if c.Leader() != -1 {
			t.Error("it leads within its cooldown although nobody else has led")
		}
		advance(5 * time.Second)
		if c.Leader() != 0 {
			t.Error("it does not stand again after its cooldown")
		}
		if got := leads(seen); !slices.Equal(got, []bool{true, false, true}) {
			t.Errorf("five wishes made the transitions %v", seen.all())
		}
		if tr := seen.all()[1]; tr.Reason != node.Resigned || tr.Term.Ordinal != 1 {
			t.Errorf("the loss is told as %+v", tr)
		}
	})
}

// A request to resign during a renewal is carried out, and the renewal's answer does not bring the
// term back.
func TestResignWhileRenewing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{Nodes: 2})
		i := c.Elect()
		renewing, goOn := make(chan struct{}, 1), make(chan struct{})
		taps[i].set(nil, func(ctx context.Context, op string, req any, err error) error {
			if hb, ok := req.(storage.Heartbeat); ok && hb.TermRequest.Renew != 0 {
				select {
				case renewing <- struct{}{}:
				default:
				}
				<-goOn
			}
			return err
		})
		<-renewing
		if err := c.Node(i).Resign(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		close(goOn)
		advance(500 * time.Millisecond)
		if got := c.Leader(); got != 1-i {
			t.Errorf("after the resignation node %d leads, want %d", got, 1-i)
		}
	})
}

// Another node took the term without the leader's knowledge. The leader loses, publishes that,
// leaves the newer term alone, and becomes a candidate.
func TestReplacedBehindItsBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		c.Elect()
		seen := follow(t, c.Node(0))
		usurp(t, c)
		advance(1500 * time.Millisecond)
		if tr := seen.all(); len(tr) != 2 || tr[1].Reason != node.Replaced {
			t.Fatalf("transitions: %+v", tr)
		}
		snap, err := c.Store().Snapshot(t.Context())
		if err != nil || snap.Term.Leader.Name != "usurper" || snap.Term.Vacant {
			t.Errorf("the newer term was touched: %+v, %v", snap.Term, err)
		}
		if c.Leader() != -1 {
			t.Error("it leads beside the usurper")
		}
		advance(2 * lease.Fast().LeaseDuration) // the new leader never renews
		if c.Leader() != 0 {
			t.Error("it did not take over from the silent usurper")
		}
	})
}

// usurp makes another node take the term, as a candidate would that saw it unchanged for a lease.
func usurp(t *testing.T, c *coordinatortest.Cluster) node.Identity {
	t.Helper()
	snap, err := c.Store().Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	who := node.Identity{Name: "usurper", ID: "0190aaaa-0000-7000-8000-000000000001", Incarnation: "0190aaaa-0000-7000-8000-000000000002"}
	r, err := c.Store().Heartbeat(t.Context(), storage.Heartbeat{
		Node: who, Seq: 1, Advert: &daemon.Advert{}, TTL: time.Minute, EventsAfter: -1,
		TermRequest: storage.TermRequest{
			Lease: lease.Fast().LeaseDuration, Campaign: true, Unchanged: true,
			SeenTerm: snap.Term.Number, SeenRenewals: snap.Lease.Renewals,
		},
	})
	if err != nil || r.Verdict != storage.Elect {
		t.Fatalf("the usurper was not elected: %+v, %v", r, err)
	}
	return who
}

// NeverLead holds, even if there is no other node.
func TestNeverLead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Configure: func(_ int, cfg *coordinator.Config) { cfg.NeverLead = true }})
		advance(time.Minute)
		if c.Leader() != -1 {
			t.Error("a node with NeverLead leads")
		}
	})
}

// Starting and stopping again and again leaves nothing behind, and leadership always moves on.
func TestStartStopStress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		for i := range 20 {
			c.Elect()
			if err := c.Stop(i); err != nil {
				t.Fatal(err)
			}
			c.Add()
		}
		c.Elect()
	})
}
