package coordinator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// twoGroups has the nodes 0 and 1 in one group, 2 and 3 in another, and 4 in none. The last three never lead.
func twoGroups(t *testing.T) *coordinatortest.Cluster {
	t.Helper()
	return coordinatortest.New(t, coordinatortest.Config{Nodes: 5, Configure: func(i int, cfg *coordinator.Config) {
		cfg.Group = []string{"shop", "shop", "billing", "billing", ""}[i]
		cfg.NeverLead = i >= 2
	}})
}

// Three services have a daemon of one name on one store. Each runs its own on its own nodes, and only there.
func TestGroupsRunTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := twoGroups(t)
		c.Register(daemon.Spec{ID: "acme:reports", Instances: 4}, worker)
		on := func(group string, nodes ...int) func() bool {
			return func() bool {
				for i := range 4 {
					if !slices.Contains(nodes, c.Holder(fmt.Sprintf("acme:reports%s/%d", group, i))) {
						return false
					}
				}
				return true
			}
		}
		c.WaitUntil("the units of the shop run on its nodes", on("@shop", 0, 1))
		c.WaitUntil("those of billing on its nodes", on("@billing", 2, 3))
		c.WaitUntil("those of no group on the other node", on("", 4))
		if c.Elect() > 1 {
			t.Errorf("node-%d leads", c.Leader())
		}

		c.Kill(2)
		c.WaitUntil("the other node of its group takes its units", on("@billing", 3))
		c.Kill(3)
		advance(5 * time.Minute)
		if !on("@shop", 0, 1)() || !on("", 4)() || !on("@billing", -1)() {
			t.Error("without a node of its group, a unit runs elsewhere, or others do not run")
		}
	})
}

// Everything that a node of a group declares is its group's, except queues.
func TestWhatIsOfAGroup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1, Configure: func(_ int, cfg *coordinator.Config) { cfg.Group = "billing" }})
		n := c.Node(0)
		source := coordinator.KeySource{Units: func(context.Context) ([]string, error) { return []string{"globex"}, nil }}
		for _, err := range []error{
			n.Register(daemon.Spec{ID: "acme:reports", Kind: "worker"}, worker),
			n.RegisterKeyed(keyedSpec, worker, source),
			n.RegisterBuiltin(daemon.Spec{ID: "emit:outbox/orders"}, worker),
			n.RegisterBuiltin(daemon.Spec{ID: "emit:queue/mail", Kind: "emit:queue"}, worker),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		units := []string{
			"acme:reports@billing/0", "acme:tenants@billing~globex", "acme:tenants:keys@billing/0", "emit:outbox/orders@billing/0", "emit:queue/mail/0",
		}
		all := func() bool {
			return !slices.ContainsFunc(units, func(u string) bool { return c.Holder(u) < 0 })
		}
		c.WaitUntil("all run", all)
		snap, err := c.Store().Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if m := snap.Nodes[0]; m.Group != "billing" || !snap.Advert(m).RunsKind("worker@billing") || !snap.Advert(m).RunsKind("emit:queue") {
			t.Errorf("group %q, kinds %v", m.Group, snap.Advert(m).Kinds)
		}
		if err := n.Register(daemon.Spec{ID: "acme:reports"}, worker); err == nil {
			t.Error("a daemon is registered twice")
		}
		n.Unregister("acme:reports")
		n.Unregister("emit:queue/mail")
		c.WaitUntil("these end", func() bool { return c.Holder(units[0]) < 0 && c.Holder(units[4]) < 0 })
		if c.Holder(units[1]) < 0 || c.Holder(units[3]) < 0 {
			t.Error("others end too")
		}
	})
}

func TestBadGroups(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"Shop", "a b", "a@b", "a/b", "-", strings.Repeat("x", 64)} {
		if _, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{Group: group}); err == nil || !strings.Contains(err.Error(), "does not match") {
			t.Errorf("%q: %v", group, err)
		}
	}
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{Group: strings.Repeat("x", 63)})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Register(daemon.Spec{ID: "acme:reports@shop"}, worker)
	if err == nil || !strings.Contains(err.Error(), `id is "acme:reports@shop", want it without @`) {
		t.Errorf("an ID with a group: %v", err)
	}
	if err := (storage.KeyChange{Daemon: "acme:tenants@Shop", Add: []string{"a"}}).Validate(); err == nil {
		t.Error("keys of a group that cannot be")
	}
}
