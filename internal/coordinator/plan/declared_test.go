package plan

import (
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// The result covers every present node that declares a daemon: whose spec is in force and why, how many declare
// the same, and which declare something else.
func TestExplainReportsWhoseSpecIsInForce(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	report := func(name string, minute int, specs ...daemon.Spec) Node {
		return Node{
			Member: node.Member{
				Identity: node.Identity{Name: name, ID: node.ID(name), Incarnation: node.Incarnation(name)}, State: node.Live,
				RegisteredAt: began.Add(time.Duration(minute) * time.Minute),
			},
			Advert: &daemon.Advert{Kinds: []daemon.Kind{"a"}, Specs: specs}, State: node.Live,
		}
	}
	spec := func(revision int64, instances int) daemon.Spec {
		return daemon.Spec{ID: "a", Revision: revision, Instances: instances}
	}
	explain := func(nodes ...Node) Declared {
		return Explain(Input{Now: began.Add(time.Hour), Nodes: nodes}, daemon.Unit{Daemon: "a"}).Declared
	}
	gone := report("gone", 9, spec(9, 9))
	gone.State = node.Removed

	d := explain(report("n1", 1, spec(0, 2)), report("n2", 2, spec(0, 2)), gone, report("n3", 3))
	if d.By.Name != "n2" || d.Same != 1 || len(d.Others) != 0 || d.Why != "" || !d.FirstRegisteredAt.Equal(began.Add(2*time.Minute)) {
		t.Errorf("all agree: %+v", d)
	}

	d = explain(report("n1", 1, spec(5, 2)), report("n2", 2, spec(4, 3)), report("n3", 3, spec(5, 2)))
	if d.By.Name != "n3" || d.Revision != 5 || d.Same != 1 || d.Why != "its revision is the highest" ||
		len(d.Others) != 1 || d.Others[0].Node.Name != "n2" || d.Others[0].Revision != 4 || d.Others[0].What != "revision 5, not 4; instances 2, not 3" {
		t.Errorf("another revision: %+v", d)
	}

	// A process that was away keeps its rank, because its first registration counts.
	back := report("n2", 9, spec(1, 3))
	back.Member.FirstRegisteredAt = began
	d = explain(report("n1", 1, spec(1, 2)), back, report("n0", 3, spec(0, 4)))
	if d.By.Name != "n1" || d.Why != "of the highest revision, its process registered last" || len(d.Others) != 2 ||
		d.Others[0].Node.Name != "n0" || d.Others[1].Node.Name != "n2" || !d.Others[1].FirstRegisteredAt.Equal(began) {
		t.Errorf("a return: %+v", d)
	}

	d = explain(report("n1", 1, daemon.Spec{ID: "a", Instances: -2}))
	if d.By != (node.Identity{}) || len(d.Others) != 1 || d.Others[0].What != "instances is -2, want 1 to 100000" {
		t.Errorf("none that can be planned: %+v", d)
	}
}
