package coordinator_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

var keyedSpec = daemon.Spec{ID: "acme:tenants", Instances: daemon.Keyed}

// running makes an agent that notes what it runs.
func running(runs *record[string]) daemon.Agent {
	return daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		runs.add("start " + a.Key)
		defer runs.add("end " + a.Key)
		select {
		case <-a.Draining():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func changeKeys(t *testing.T, c *coordinatortest.Cluster, change storage.KeyChange) {
	t.Helper()
	change.Daemon = keyedSpec.ID
	if _, err := c.Store().ChangeKeys(t.Context(), change); err != nil {
		t.Fatal(err)
	}
}

// Keys run as soon as they are added, go elsewhere when their node dies, and end in order when they are removed.
func TestKeysComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
		var runs record[string]
		c.Register(keyedSpec, running(&runs))
		c.Elect()
		changeKeys(t, c, storage.KeyChange{Add: []string{"globex", "initech", "7"}})
		all := func() bool {
			return c.Holder("acme:tenants~globex") >= 0 && c.Holder("acme:tenants~initech") >= 0 && c.Holder("acme:tenants~7") >= 0
		}
		c.WaitUntil("all run", all)
		dead := c.Holder("acme:tenants~globex")
		c.Kill(dead)
		c.WaitUntil("it runs elsewhere", func() bool { return all() && c.Holder("acme:tenants~globex") != dead })
		changeKeys(t, c, storage.KeyChange{Remove: []string{"globex"}})
		ended := func() bool { return slices.Contains(runs.all(), "end globex") && c.Holder("acme:tenants~globex") < 0 }
		c.WaitUntil("it has ended", ended)
		before := unitRow(t, c, "acme:tenants~globex")
		if before.Forced || !before.Retired || before.State != daemon.Deleted {
			t.Errorf("after its removal: %+v", before)
		}
		changeKeys(t, c, storage.KeyChange{Add: []string{"globex"}})
		c.WaitUntil("it runs again", all)
		if again := unitRow(t, c, "acme:tenants~globex"); again.Generation <= before.Generation {
			t.Errorf("generation %d after %d", again.Generation, before.Generation)
		}
	})
}

func unitRow(t *testing.T, c *coordinatortest.Cluster, text string) daemon.Record {
	t.Helper()
	snap, err := c.Store().Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range snap.Units {
		if r.Unit.String() == text {
			return r
		}
	}
	t.Fatalf("there is no unit %s", text)
	return daemon.Record{}
}

// One node asks the source. What it cannot use changes nothing, and the status of its unit says why.
func TestKeySource(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
		var list atomic.Pointer[[]string]
		var fails atomic.Pointer[error]
		set := func(keys ...string) { list.Store(&keys) }
		set("a", "b", "b")
		var runs record[string]
		source := coordinator.KeySource{Every: time.Second, Units: func(context.Context) ([]string, error) {
			if err := fails.Load(); err != nil {
				return nil, *err
			}
			return *list.Load(), nil
		}}
		for i := range 3 {
			if err := c.Node(i).RegisterKeyed(keyedSpec, running(&runs), source); err != nil {
				t.Fatal(err)
			}
		}
		have := func(want string) func() bool {
			return func() bool {
				snap, err := c.Store().Snapshot(t.Context())
				return err == nil && strings.Join(storage.Keys(snap, keyedSpec.ID), ",") == want
			}
		}
		c.WaitUntil("the keys are there", have("a,b"))
		c.Kill(c.Holder("acme:tenants:keys/0"))
		set("b", "c")
		c.WaitUntil("another node asks", have("b,c"))
		for _, bad := range [][]string{{}, {"b", strings.Repeat("x", 1<<20)}, {"b", "new\nline"}} {
			set(bad...)
			advance(time.Minute)
			if !have("b,c")() {
				t.Errorf("%.20q changes the keys", bad)
			}
		}
		c.WaitUntil("the row says why", func() bool {
			return strings.Contains(unitRow(t, c, "acme:tenants:keys/0").Error, "cannot be printed")
		})
		set("b", "c", "d")
		c.WaitUntil("the source is good again", have("b,c,d"))
		broken := errors.New("the database is away")
		fails.Store(&broken)
		advance(time.Minute)
		fails.Store(nil)
		set("d")
		c.WaitUntil("the source is back", have("d"))
	})
}

// A keyed daemon that is taken back takes its source along, and can be registered again with another one. A daemon that only
// has the name of a source stays.
func TestUnregisterEndsTheSource(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]string{"of no group": "", "of a group": "shop"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := coordinatortest.New(t, coordinatortest.Config{Configure: func(_ int, cfg *coordinator.Config) { cfg.Group = group }})
				n, requested := c.Node(0), map[string]int{}
				source := func(name string) coordinator.KeySource {
					return coordinator.KeySource{Every: time.Second, Units: func(context.Context) ([]string, error) { requested[name]++; return []string{name}, nil }}
				}
				if err := n.RegisterKeyed(keyedSpec, running(&record[string]{}), source("first")); err != nil {
					t.Fatal(err)
				}
				c.Register(daemon.Spec{ID: "acme:reports"}, worker)
				c.Register(daemon.Spec{ID: "acme:reports:keys"}, worker)
				advance(time.Minute)
				n.Unregister(keyedSpec.ID)
				n.Unregister("acme:reports")
				advance(time.Minute)
				before := requested["first"]
				if err := n.RegisterKeyed(keyedSpec, running(&record[string]{}), source("second")); err != nil {
					t.Fatal(err)
				}
				advance(time.Minute)
				if requested["first"] != before || before == 0 || requested["second"] == 0 {
					t.Errorf("the calls of the sources were %v, of the first one %d when it was taken back", requested, before)
				}
				if c.Holder(string(daemon.ID("acme:reports:keys").In(group))+"/0") != 0 {
					t.Error("a daemon that is no source was taken back")
				}
			})
		})
	}
}

func TestRegisterKeyedRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		good := coordinator.KeySource{Units: func(context.Context) ([]string, error) { return nil, nil }}
		for want, register := range map[string]func() error{
			"instances is 2, want daemon.Keyed": func() error {
				return c.Node(0).RegisterKeyed(daemon.Spec{ID: "a", Instances: 2}, running(&record[string]{}), good)
			},
			"has no Units": func() error {
				return c.Node(0).RegisterKeyed(keyedSpec, running(&record[string]{}), coordinator.KeySource{})
			},
			"Every is -1s": func() error {
				return c.Node(0).RegisterKeyed(keyedSpec, running(&record[string]{}), coordinator.KeySource{Units: good.Units, Every: -time.Second})
			},
			"the agent is nil": func() error { return c.Node(0).RegisterKeyed(keyedSpec, nil, good) },
		} {
			if err := register(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
	})
}

// A daemon that a node takes back leaves that node, and ends in order once no node declares it.
func TestUnregisterEndsItsUnits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		var runs record[string]
		c.Register(daemon.Spec{ID: "acme:reports", Instances: 2}, running(&runs))
		both := func() bool { return c.Holder("acme:reports/0") >= 0 && c.Holder("acme:reports/1") >= 0 }
		c.WaitUntil("both run", both)
		c.Node(0).Unregister("acme:reports")
		c.WaitUntil("both run on the other node", func() bool { return c.Holder("acme:reports/0") == 1 && c.Holder("acme:reports/1") == 1 })
		c.Node(1).Unregister("acme:reports")
		c.WaitUntil("both have ended", func() bool { return c.Holder("acme:reports/0") < 0 && c.Holder("acme:reports/1") < 0 })
		for _, text := range []string{"acme:reports/0", "acme:reports/1"} {
			if r := unitRow(t, c, text); r.Forced || r.State != daemon.Deleted {
				t.Errorf("%+v", r)
			}
		}
		if err := c.Node(0).Register(daemon.Spec{ID: "acme:reports", Instances: 2}, running(&runs)); err != nil {
			t.Fatal(err)
		}
		c.WaitUntil("both run again", both)
	})
}
