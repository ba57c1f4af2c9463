package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// hooked is a cluster whose first node has these hooks.
func hooked(t *testing.T, nodes int, h coordinator.Hooks) *coordinatortest.Cluster {
	t.Helper()
	return coordinatortest.New(t, coordinatortest.Config{Nodes: nodes, Configure: func(i int, cfg *coordinator.Config) {
		if i == 0 {
			cfg.Hooks = h
		}
	}})
}

// recording writes one line for every call.
func recording(r *record[string]) coordinator.Hooks {
	return coordinator.Hooks{
		OnLeaderElected:  func(_ context.Context, t node.Term) { r.add(fmt.Sprintf("elected %d", t.Ordinal)) },
		OnLeaderLost:     func(t node.Term, why node.LossReason) { r.add(fmt.Sprintf("lost %d %s", t.Ordinal, why)) },
		OnNodeRegistered: func(m node.Member) { r.add("registered " + m.Name) },
		OnNodeRemoved:    func(m node.Member, why string) { r.add("removed " + m.Name + " " + why) },
		OnDaemonAssigned: func(f daemon.Fence) { r.add("assigned " + f.Unit.String()) },
		OnDaemonStarted:  func(f daemon.Fence) { r.add("started " + f.Unit.String()) },
		OnDaemonDraining: func(f daemon.Fence) { r.add("draining " + f.Unit.String()) },
		OnDaemonStopped:  func(f daemon.Fence, why string) { r.add("stopped " + f.Unit.String() + " " + why) },
		OnDaemonFailed:   func(f daemon.Fence, err error) { r.add("failed " + f.Unit.String() + " " + err.Error()) },
	}
}

// All nine hooks are called, once per event and in order.
func TestHooksReportEachStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var seen record[string]
		c := hooked(t, 1, recording(&seen))
		var attempts atomic.Int32
		agent := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			if attempts.Add(1) == 1 {
				return fmt.Errorf("disk full")
			}
			return worker(ctx, a)
		})
		c.Register(daemon.Spec{ID: "acme:x"}, agent)
		c.WaitUntil("it runs", func() bool { return attempts.Load() == 2 })
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(seen.all(), func(s string) bool { return strings.HasPrefix(s, "elected") || strings.HasPrefix(s, "lost") })
		want := []string{
			"registered node-0", "assigned acme:x/0", "started acme:x/0", "failed acme:x/0 disk full",
			"draining acme:x/0", "stopped acme:x/0 drained",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		if e, l := slices.Index(seen.all(), "elected 1"), slices.Index(seen.all(), "lost 1 shutdown"); e < 0 || l < e {
			t.Errorf("leadership: %q", seen.all())
		}
	})
}

// Node hooks are called on every node for every node, including those that die.
func TestNodeHooksOnEveryNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var seen [3]record[string]
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3, Configure: func(i int, cfg *coordinator.Config) {
			h := recording(&seen[i])
			cfg.Hooks = coordinator.Hooks{OnNodeRegistered: h.OnNodeRegistered, OnNodeRemoved: h.OnNodeRemoved}
		}})
		c.Elect()
		advance(3 * time.Second)
		c.Kill(2)
		if err := c.Stop(1); err != nil {
			t.Fatal(err)
		}
		advance(30 * time.Second)
		for i := range 2 {
			for _, name := range []string{"node-0", "node-1", "node-2"} {
				if n := seen[i].count("registered " + name); n != 1 {
					t.Errorf("node-%d was told %d times that %s registered: %q", i, n, name, seen[i].all())
				}
			}
		}
		removed := strings.Join(seen[0].all(), "\n")
		if strings.Count(removed, "removed node-1") != 1 || strings.Count(removed, "removed node-2") != 1 {
			t.Errorf("node-0 was told:\n%s", removed)
		}
	})
}

// A hook that never returns delays no heartbeat, election, agent or loss, and no other Hooks value.
// Calls queued behind it follow when it returns.
func TestSlowHookDelaysOnlyItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var fine, slow record[string]
		release := make(chan struct{})
		blocked := recording(&slow)
		blocked.OnNodeRegistered = func(node.Member) { <-release; slow.add("registered") }
		c := hooked(t, 1, coordinator.Tee(blocked, recording(&fine)))
		c.Register(daemon.Spec{ID: "acme:x"}, worker)
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") == 0 })
		advance(time.Minute)
		if c.Leader() != 0 {
			t.Error("a slow hook cost leadership")
		}
		if fine.count("started acme:x/0") != 1 {
			t.Errorf("the other Hooks value was told %q", fine.all())
		}
		if slow.count("started acme:x/0") != 0 {
			t.Error("hooks of one value came out of order")
		}
		if err := c.Node(0).Resign(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		advance(0)
		if slow.count("lost 1 resigned") != 1 {
			t.Error("a slow hook delays OnLeaderLost")
		}
		close(release)
		advance(0)
		slow.want(t, "after the release", "elected 1", "lost 1 resigned", "registered", "assigned acme:x/0", "started acme:x/0")
	})
}

// Panics are logged with the hook's name, and everything goes on.
func TestPanickingHooks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var text bytes.Buffer
		var mu sync.Mutex
		var calls record[string]
		boom := func(what string) { calls.add(what); panic("boom in " + what) }
		h := coordinator.Hooks{
			OnLeaderElected:  func(context.Context, node.Term) { boom("elected") },
			OnLeaderLost:     func(node.Term, node.LossReason) { boom("lost") },
			OnNodeRegistered: func(node.Member) { boom("registered") },
			OnDaemonStarted:  func(daemon.Fence) { boom("started") },
		}
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1, Configure: func(_ int, cfg *coordinator.Config) {
			cfg.Hooks = h
			cfg.Logger = slog.New(slog.NewTextHandler(&locked{mu: &mu, b: &text}, nil))
		}})
		c.Register(daemon.Spec{ID: "acme:x"}, worker)
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") == 0 })
		c.Resign()
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		for what, n := range map[string]int{"elected": 2, "lost": 2, "registered": 1, "started": 1} {
			if calls.count(what) != n {
				t.Errorf("%s was called %d times, want %d", what, calls.count(what), n)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{"hook=OnLeaderElected", "hook=OnNodeRegistered", "boom in registered"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("the log does not say %q", want)
			}
		}
	})
}

type locked struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// OnLeaderElected may block until its context ends. If it ignores that, the loss is still published
// within 100 ms, and the next term's call waits for it.
func TestElectedMayBlockAndLostDoesNotWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		var seen record[string]
		var leading atomic.Pointer[context.Context]
		var ended, lost record[time.Time]
		c := hooked(t, 2, coordinator.Hooks{
			OnLeaderElected: func(ctx context.Context, term node.Term) {
				leading.Store(&ctx)
				seen.add(fmt.Sprintf("enter %d", term.Ordinal))
				<-ctx.Done()
				ended.add(time.Now())
				<-release // ignores it
				seen.add(fmt.Sprintf("leave %d", term.Ordinal))
			},
			OnLeaderLost: func(term node.Term, _ node.LossReason) {
				if (*leading.Load()).Err() == nil {
					t.Error("the loss was told while the context is live")
				}
				lost.add(time.Now())
				seen.add(fmt.Sprintf("lost %d", term.Ordinal))
			},
		})
		if c.Elect() != 0 {
			c.Resign()
		}
		first, _, _ := c.Node(0).Leadership()
		c.Expire()
		n := first.Ordinal
		seen.want(t, "first term", fmt.Sprintf("enter %d", n), fmt.Sprintf("lost %d", n))
		if late := lost.all()[0].Sub(ended.all()[0]); late > 100*time.Millisecond {
			t.Errorf("the loss was told after %v", late)
		}
		c.WaitUntil("node-0 is back", func() bool { return c.Node(0).Status().SinceAnswer < time.Second })
		c.Resign() // node-1 gives leadership back
		second, _, ok := c.Node(0).Leadership()
		if !ok {
			t.Fatal("node-0 does not lead")
		}
		advance(5 * time.Second)
		if seen.count(fmt.Sprintf("enter %d", second.Ordinal)) != 0 {
			t.Error("OnLeaderElected of two terms ran at once")
		}
		close(release)
		advance(0)
		seen.want(t, "afterwards", fmt.Sprintf("enter %d", n), fmt.Sprintf("lost %d", n), fmt.Sprintf("leave %d", n),
			fmt.Sprintf("enter %d", second.Ordinal))
	})
}

// A term that begins and ends while an earlier call hangs is not skipped. Its loss is published
// after at most 100 ms, and its call follows, with a context that has ended.
func TestElectedIsNeverSkipped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		var seen record[string]
		c := hooked(t, 1, coordinator.Hooks{
			OnLeaderElected: func(ctx context.Context, term node.Term) {
				if term.Ordinal == 1 {
					<-release
				}
				seen.add(fmt.Sprintf("elected %d, live %v", term.Ordinal, ctx.Err() == nil))
			},
			OnLeaderLost: func(term node.Term, _ node.LossReason) { seen.add(fmt.Sprintf("lost %d", term.Ordinal)) },
		})
		c.Elect()
		for range 2 {
			usurpAndWait(t, c)
		}
		c.Elect()
		close(release)
		advance(0)
		seen.want(t, "hooks", "lost 1", "lost 2", "elected 1, live false", "elected 2, live false", "elected 3, live true")
	})
}

// usurpAndWait partitions the leader until its validity has ended, heals it, and waits until a node
// leads.
func usurpAndWait(t *testing.T, c *coordinatortest.Cluster) {
	t.Helper()
	i := c.Elect()
	_, ctx, _ := c.Node(i).Leadership()
	c.Partition(i)
	<-ctx.Done()
	advance(150 * time.Millisecond)
	c.Heal(i)
	c.Elect()
}

// A Tee of Tees calls every value; zero values cost nothing.
func TestTeeIsFlat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var a, b, d record[string]
		h := coordinator.Tee(coordinator.Tee(recording(&a), coordinator.Hooks{}), coordinator.Tee(recording(&b), recording(&d)))
		h.OnLeaderElected = func(context.Context, node.Term) { a.add("own") }
		c := hooked(t, 1, h)
		c.Elect()
		advance(0)
		for i, r := range []*record[string]{&a, &b, &d} {
			if r.count("elected 1") != 1 || r.count("registered node-0") != 1 {
				t.Errorf("hooks %d were told %q", i, r.all())
			}
		}
		if a.count("own") != 1 {
			t.Error("a function set on a Tee is not called")
		}
	})
}

// A log that blocks (a full pipe) delays nothing.
func TestBlockedLoggerDelaysNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		var seen record[string]
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1, Configure: func(_ int, cfg *coordinator.Config) {
			cfg.Logger = slog.New(blockedHandler{release})
			cfg.Hooks = recording(&seen)
		}})
		c.Elect()
		advance(time.Minute)
		_, ctx, ok := c.Node(0).Leadership()
		if !ok || ctx.Err() != nil {
			t.Error("a blocked log cost leadership")
		}
		if seen.count("elected 1") != 1 || seen.count("registered node-0") != 1 {
			t.Errorf("hooks were told %q", seen.all())
		}
		began := time.Now()
		if err := c.Stop(0); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("stopping took %v", took)
		}
		close(release)
	})
}

// A log that blocks delays neither the end of an agent that has failed, nor the end of the process
// that its spec asks for. The latter waits a moment for the last lines to be written.
func TestBlockedLoggerDelaysNoAgent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		var exited atomic.Int64
		began := time.Now()
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1, Configure: func(_ int, cfg *coordinator.Config) {
			cfg.Logger = slog.New(blockedHandler{release})
			cfg.Exit = func(int) { exited.Store(int64(time.Since(began))) }
		}})
		var attempts atomic.Int64
		c.Register(daemon.Spec{ID: "acme:fails", MaxFailures: -1}, daemon.AgentFunc(func(context.Context, *daemon.Assignment) error {
			attempts.Add(1)
			return errors.New("boom")
		}))
		c.Node(0).WhileLeader("work", func(context.Context, node.Term) error { return errors.New("boom") })
		hangs := make(chan struct{})
		c.Register(daemon.Spec{ID: "acme:hangs", OnAbandoned: "exit"}, daemon.AgentFunc(func(context.Context, *daemon.Assignment) error {
			<-hangs
			return nil
		}))
		c.WaitUntil("both run", func() bool { return c.Holder("acme:fails/0") == 0 && c.Holder("acme:hangs/0") == 0 })
		advance(30 * time.Second)
		if n := attempts.Load(); n < 5 {
			t.Errorf("%d attempts in half a minute: the log holds them up", n)
		}
		if c.Node(0).Status().Term.Ordinal < 2 {
			t.Error("leader-only work that keeps failing does not resign: the log holds it up")
		}
		began = time.Now()
		if err := c.Stop(0); err != nil {
			t.Error(err)
		}
		bound := lease.Fast().DrainTimeout + lease.Fast().StopTimeout + 2*time.Second
		if at := time.Duration(exited.Load()); at == 0 || at > bound {
			t.Errorf("the process would have ended after %v, want within %v", at, bound)
		}
		close(hangs)
		close(release)
	})
}

// What is logged before the process is ended has been written by then.
func TestLastWords(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex
		printed := ""
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1, Configure: func(_ int, cfg *coordinator.Config) {
			cfg.Logger = slog.New(slog.NewTextHandler(&locked{mu: &mu, b: &log}, nil)).WithGroup("app").With("x", 1)
			cfg.Exit = func(int) { mu.Lock(); printed = log.String(); mu.Unlock() }
		}})
		hangs := make(chan struct{})
		c.Register(daemon.Spec{ID: "acme:hangs", OnAbandoned: "exit"}, daemon.AgentFunc(func(context.Context, *daemon.Assignment) error {
			<-hangs
			return nil
		}))
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:hangs/0") == 0 })
		if err := c.Stop(0); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(printed, "run is abandoned") || !strings.Contains(printed, "app.unit=acme:hangs/0") {
			t.Errorf("the log said before the end:\n%s", printed)
		}
		close(hangs)
	})
}

type blockedHandler struct{ release chan struct{} }

func (b blockedHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (b blockedHandler) Handle(context.Context, slog.Record) error { <-b.release; return nil }
func (b blockedHandler) WithAttrs([]slog.Attr) slog.Handler        { return b }
func (b blockedHandler) WithGroup(string) slog.Handler             { return b }

var _ storage.Store = (*tap)(nil)
