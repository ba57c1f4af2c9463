package plan_test

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// cluster is two nodes, one of them late, and a daemon of two units, one of them free.
func cluster() plan.Input {
	advert := &daemon.Advert{
		Kinds: []daemon.Kind{"acme:reports"},
		Specs: []daemon.Spec{{ID: "acme:reports", Instances: 2}},
	}
	node1 := node.Identity{Name: "n1", ID: "1", Incarnation: "a"}
	node2 := node.Identity{Name: "n2", ID: "2", Incarnation: "b"}
	return plan.Input{
		Now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
		Nodes: []plan.Node{
			{Member: node.Member{Identity: node1}, Advert: advert, State: node.Live},
			{Member: node.Member{Identity: node2}, Advert: advert, State: node.Late},
		},
		Units: []daemon.Record{
			{Unit: daemon.Unit{Daemon: "acme:reports", Index: 0}, State: daemon.Active, Holder: node1, Generation: 5},
			{Unit: daemon.Unit{Daemon: "acme:reports", Index: 1}, State: daemon.Deleted, Holder: node2, Generation: 6, Reason: "not drained within 30s"},
		},
	}
}

func ExampleMake() {
	for _, d := range plan.Make(cluster()).Decisions {
		fmt.Printf("%s %s to %s: %s\n", d.Step, d.Unit, d.To.Name, d.Reason)
	}
	// Output: assign acme:reports/1 to n1: only candidate; left n2: not drained within 30s; 1 late: n2
}

func ExampleExplain() {
	e := plan.Explain(cluster(), daemon.Unit{Daemon: "acme:reports", Index: 1})
	for _, r := range e.Rows {
		fmt.Printf("%s  eligible %-5t  load %g  score %g  %s\n", r.Node.Name, r.Eligible, r.Load, r.Score, r.Verdict)
	}
	// Output:
	// n1  eligible true   load 1  score 2  next: only candidate
	// n2  eligible false  load 0  score 1  late
}
