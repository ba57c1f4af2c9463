package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// Invalid registrations return an error with the reason, and leave nothing behind.
func TestRegisterRefuses(t *testing.T) {
	t.Parallel()
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Register(daemon.Spec{ID: "acme:once"}, worker); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		spec    daemon.Spec
		agent   daemon.Agent
		message string
	}{
		{"empty id", daemon.Spec{}, worker, "daemon id is empty"},
		{"long id", daemon.Spec{ID: daemon.ID(strings.Repeat("x", 200))}, worker, "200 characters"},
		{"bad id", daemon.Spec{ID: "Acme Reports"}, worker, "does not match"},
		{"twice", daemon.Spec{ID: "acme:once"}, worker, "registered on this node already"},
		{"reserved", daemon.Spec{ID: "emit:mine"}, worker, "reserved"},
		{"no agent", daemon.Spec{ID: "acme:none"}, nil, "agent is nil"},
		{"bad spec", daemon.Spec{ID: "acme:x", Instances: -2}, worker, "instances is -2"},
		{"never due", daemon.Spec{ID: "acme:x"}, daemon.Cron("0 0 30 2 *", nothing), "never comes"},
		{"short acknowledge timeout", daemon.Spec{ID: "acme:x", AcknowledgeTimeout: time.Second}, worker, "register acme:x: acknowledge_timeout 1s is too short"},
		{"short drain timeout", daemon.Spec{ID: "acme:x", DrainTimeout: time.Second}, worker, "register acme:x: drain_timeout 1s is too short"},
		{"stalls between its calls", daemon.Spec{ID: "acme:x", StallTimeout: 10 * time.Second}, daemon.Every(time.Hour, nothing), "stall_timeout is 10s, want more than 10s"},
		{"always due", daemon.Spec{ID: "acme:x"}, daemon.Every(0, nothing), "the interval is 0s"},
	} {
		if err := c.Register(tc.spec, tc.agent); err == nil || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s: %v, want %q in it", tc.name, err, tc.message)
		}
	}
	if err := c.RegisterBuiltin(daemon.Spec{ID: "acme:x"}, worker); err == nil {
		t.Error("a built-in daemon without the prefix was accepted")
	}
	if err := c.RegisterBuiltin(daemon.Spec{ID: "emit:sweeper"}, worker); err != nil {
		t.Error(err)
	}
	if err := c.RegisterBuiltin(daemon.Spec{ID: "emit:sweeper"}, worker); err == nil {
		t.Error("a built-in daemon was registered twice")
	}
	if err := c.RegisterBuiltin(daemon.Spec{ID: "emit:sweeper", Instances: 3, Revision: 1}, worker); err != nil {
		t.Errorf("a higher revision: %v", err)
	}
	if err := c.RegisterBuiltin(daemon.Spec{ID: "emit:sweeper", Revision: 1}, worker); err == nil {
		t.Error("registered the same revision twice")
	}
}

// A daemon registered while the cluster runs is planned at once, even if the leader does not know
// it.
func TestRegisterAfterRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
		leader := c.Elect()
		advance(10 * time.Second)
		other := (leader + 1) % 3
		began := time.Now()
		if err := c.Node(other).Register(daemon.Spec{ID: "acme:late", Instances: 2}, worker); err != nil {
			t.Fatal(err)
		}
		c.WaitUntil("both run", func() bool { return c.Holder("acme:late/0") == other && c.Holder("acme:late/1") == other })
		if took := time.Since(began); took > 2500*time.Millisecond {
			t.Errorf("they run after %v", took)
		}
	})
}

// Traits, labels and fixed identity reach the store. Parts that are not fixed are drawn.
func TestIdentityAndTraits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		id := node.ID("0190ffff-0000-7000-8000-00000000abcd")
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2, Configure: func(i int, cfg *coordinator.Config) {
			if i == 0 {
				cfg.Node = node.Identity{Name: "alpha", ID: node.ID(strings.ToUpper(string(id))), Incarnation: "ignored"}
				cfg.Labels = map[string]string{"zone": "a"}
				cfg.Capacity, cfg.Version, cfg.Address, cfg.NeverLead = 3, "1.2.3", "10.0.0.1:7070", true
			}
		}})
		c.Elect()
		advance(time.Second)
		snap, err := c.Store().Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(snap.Nodes, func(m node.Member) bool { return m.Name == "alpha" })
		if i < 0 {
			t.Fatalf("nodes: %+v", snap.Nodes)
		}
		m := snap.Nodes[i]
		if m.ID != id || m.Incarnation == "ignored" || m.Incarnation == "" || m.Labels["zone"] != "a" || m.Capacity != 3 ||
			m.Version != "1.2.3" || m.Address != "10.0.0.1:7070" || !m.NeverLead {
			t.Errorf("member: %+v", m)
		}
		if o := snap.Nodes[1-i]; o.ID == "" || o.ID == id || o.Incarnation == m.Incarnation {
			t.Errorf("other: %+v", o.Identity)
		}
		if got := c.Node(0).Node(); got != m.Identity {
			t.Errorf("Node says %+v, the store %+v", got, m.Identity)
		}
	})
}

// The second live process with one ID is refused and ends, with an error that names the first. A
// process that is started after a kill -9 joins when the first is gone.
func TestIDInUse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		id := node.ID("0190ffff-0000-7000-8000-00000000abcd")
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1, Configure: func(_ int, cfg *coordinator.Config) { cfg.Node.ID = id }})
		c.Elect()
		second := c.Add()
		advance(10 * time.Second)
		err := c.Ended(second)
		var inUse *storage.IDInUseError
		if !errors.As(err, &inUse) || inUse.Holder != c.Node(0).Node() {
			t.Errorf("the second ended with %v, want who has its id", err)
		}
		if c.Leader() != 0 {
			t.Error("the second disturbed the first")
		}
		c.Kill(0)
		third := c.Add()
		advance(time.Second)
		if c.Node(third).Started()["heartbeat"] == nil {
			t.Error("it joined while the first may live")
		}
		c.WaitUntil("the third has joined", func() bool { return c.Node(third).Started()["heartbeat"] == nil })
	})
}

// A node that names another cluster than the store's ends with both names in the error and disturbs
// nothing.
func TestOtherCluster(t *testing.T) {
	bubble(t, func(t *testing.T) {
		names := []string{"production", "staging"}
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1, Configure: func(i int, cfg *coordinator.Config) { cfg.Cluster = names[i] }})
		c.Elect()
		leading := c.Node(0).Snapshot
		before, err := leading(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second := c.Add()
		advance(10 * time.Second)
		var other *storage.OtherClusterError
		if err := c.Ended(second); !errors.As(err, &other) || *other != (storage.OtherClusterError{Store: "production", Node: "staging"}) {
			t.Errorf("it ended with %v, want both names", err)
		}
		after, err := leading(t.Context())
		if err != nil || after.Head != before.Head || len(after.Nodes) != 1 || c.Leader() != 0 {
			t.Errorf("%v; it disturbed the cluster: %+v", err, after)
		}
	})
}

// The error names all faults of the configuration at once.
func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	store := memory.Open(memory.Config{})
	for name, tc := range map[string]struct {
		cfg     coordinator.Config
		message []string
	}{
		"several": {
			coordinator.Config{Profile: "slow", Capacity: -1, Node: node.Identity{ID: "one"}},
			[]string{`profile is "slow"`, "capacity is -1", `node id "one" is not a UUID`},
		},
		"timings that quarrel": {
			coordinator.Config{Timing: coordinator.Timing{LeaseDuration: 20 * time.Second, QueryTimeout: 20 * time.Second}},
			[]string{"lease_duration 20s", "query_timeout 20s", "heartbeat_interval 15s"},
		},
		"negative": {
			coordinator.Config{Profile: "fast", Timing: coordinator.Timing{StopTimeout: -time.Second}},
			[]string{"stop_timeout is -1s"},
		},
	} {
		_, err := coordinator.New(store, tc.cfg)
		for _, want := range tc.message {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", name, err, want)
			}
		}
	}
	if _, err := coordinator.New(nil, coordinator.Config{}); err == nil {
		t.Error("a nil store was accepted")
	}
	for _, cfg := range []coordinator.Config{{}, {Profile: "fast"}, {Profile: "fast", Timing: coordinator.Timing{SettleWindow: -1}}} {
		if _, err := coordinator.New(store, cfg); err != nil {
			t.Error(err)
		}
	}
}

// An agent can read how long its assignment is valid.
func TestAgentsSeeTheirTrust(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		var seen record[bool]
		c.Register(daemon.Spec{ID: "acme:x"}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			<-time.After(3 * time.Second)
			left, ok := daemon.Validity(ctx)
			seen.add(ok && left > time.Second && left < 6*time.Second)
			return worker(ctx, a)
		}))
		c.WaitUntil("it looked", func() bool { return len(seen.all()) == 1 })
		seen.want(t, "trust", true)
	})
}

// A commit, report or heartbeat is applied, but its answer is lost. This changes nothing: the unit
// runs exactly once at a time and goes on.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"heartbeat", "report", "commit", "snapshot", "stamp", "leave"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c, taps := tapped(t, coordinatortest.Config{Nodes: 2})
				var lost atomic.Int32
				for _, tp := range taps {
					tp.set(nil, func(ctx context.Context, what string, _ any, err error) error {
						if what == op && lost.Add(1) <= 2 {
							<-ctx.Done()
							return ctx.Err()
						}
						return err
					})
				}
				var running [2]atomic.Int32
				c.Register(daemon.Spec{ID: "acme:x", Instances: 2}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
					if running[a.Index].Add(1) > 1 {
						t.Errorf("%s runs twice", a.Unit)
					}
					defer running[a.Index].Add(-1)
					return worker(ctx, a)
				}))
				both := func() bool { return c.Holder("acme:x/0") >= 0 && c.Holder("acme:x/1") >= 0 }
				c.WaitUntil("both run", both)
				c.Resign()
				advance(10 * time.Second)
				c.WaitUntil("both run", both)
				if lost.Load() == 0 && op != "leave" {
					t.Error("no reply was lost: the test shows nothing")
				}
			})
		})
	}
}

// A leader that was paused beyond its lease does nothing that the store accepts: its commit carries
// the replaced term.
func TestPausedLeaderWritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{Nodes: 2})
		i := c.Elect()
		paused, goOn := make(chan struct{}), make(chan struct{})
		var outcome record[string]
		taps[i].set(func(ctx context.Context, op string, req any, _ error) error {
			if op != "commit" || len(outcome.all()) > 0 {
				return nil
			}
			outcome.add("paused")
			close(paused)
			<-goOn
			// What was on its way arrives, although no caller waits for the answer any more.
			_, err := c.Store().Commit(context.WithoutCancel(ctx), req.(storage.Commit))
			outcome.add(fmt.Sprint("refused: ", errors.Is(err, storage.ErrTermLost)))
			return err
		}, nil)
		c.Register(daemon.Spec{ID: "acme:x"}, worker)
		<-paused
		c.Partition(i)
		c.WaitUntil("the other leads", func() bool { return c.Leader() == 1-i })
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") >= 0 })
		gen := generation(t, c)
		c.Heal(i)
		outcome.add("resumed")
		close(goOn)
		advance(2 * time.Second)
		outcome.want(t, "the old leader's commit", "paused", "resumed", "refused: true")
		if generation(t, c) != gen {
			t.Error("the old leader's commit changed the unit")
		}
	})
}

func generation(t *testing.T, c *coordinatortest.Cluster) int64 {
	t.Helper()
	snap, err := c.Store().Snapshot(t.Context())
	if err != nil || len(snap.Units) != 1 {
		t.Fatalf("%+v, %v", snap, err)
	}
	return snap.Units[0].Generation
}

// A daemon registered while a heartbeat is in flight is still advertised after that is answered.
func TestRegisterDuringHeartbeat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{})
		c.Elect()
		under, goOn := make(chan struct{}, 1), make(chan struct{})
		taps[0].set(nil, func(_ context.Context, op string, _ any, err error) error {
			if op == "heartbeat" {
				select {
				case under <- struct{}{}:
				default:
				}
				<-goOn
			}
			return err
		})
		<-under
		c.Register(daemon.Spec{ID: "acme:x"}, worker)
		advance(0)
		close(goOn)
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") == 0 })
	})
}

// A node that advertises a built-in kind runs a daemon of that kind that only another node has
// declared, at once and without a failure.
func TestAKindRunsItsDaemons(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		kind := func(id daemon.ID, instances int) daemon.Spec {
			return daemon.Spec{ID: id, Kind: "emit:queue", Instances: instances}
		}
		for i := range 2 {
			if err := c.Node(i).RegisterBuiltin(kind("emit:queue/a", 1), worker); err != nil {
				t.Fatal(err)
			}
		}
		c.Elect()
		c.WaitUntil("the first runs", func() bool { return c.Holder("emit:queue/a/0") >= 0 })
		if err := c.Node(0).RegisterBuiltin(kind("emit:queue/b", 3), worker); err != nil {
			t.Fatal(err)
		}
		c.WaitUntil("the second runs on both nodes", func() bool {
			held := map[int]bool{}
			for i := range 3 {
				held[c.Holder(fmt.Sprint("emit:queue/b/", i))] = true
			}
			return held[0] && held[1] && !held[-1]
		})
		snap, err := c.Store().Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range snap.Units {
			if u.Failures > 0 || len(u.Embargoes) > 0 {
				t.Errorf("%s has failed %d times, embargoes %v", u.Unit, u.Failures, u.Embargoes)
			}
		}
	})
}
