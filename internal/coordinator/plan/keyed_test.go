package plan

import (
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

var keyed = daemon.Spec{ID: "acme:t", Instances: daemon.Keyed}

func retired(r daemon.Record) daemon.Record { r.Retired = true; return r }

// TestKeyed: each case has two nodes that declare a keyed daemon, unless it says otherwise.
func TestKeyed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		nodes []Node
		units []daemon.Record
		want  []string
	}{
		{"no key, no unit", livesOf(2, advert(keyed)), nil, nil},
		{
			"keys are placed evenly", livesOf(2, advert(keyed)),
			[]daemon.Record{row(t, "acme:t~a", daemon.Unassigned, ""), row(t, "acme:t~b", daemon.Deleted, ""), row(t, "acme:t~c", daemon.Active, "n2")},
			[]string{"acme:t~a: assign to n1 (least loaded (1.0 < 2.0); runner-up n2)", "acme:t~b: assign to n1 (stable hash; runner-up n2)"},
		},
		{
			"a removed key leaves its node", livesOf(2, advert(keyed)),
			[]daemon.Record{retired(row(t, "acme:t~a", daemon.Active, "n1")), retired(row(t, "acme:t~b", daemon.Assigning, "n1")), retired(row(t, "acme:t~c", daemon.Revoking, "n1"))},
			[]string{"acme:t~a: revoke (key removed)", "acme:t~b: revoke (key removed)"},
		},
		{
			"also if nobody declares its daemon", livesOf(2, nil),
			[]daemon.Record{retired(row(t, "acme:t~a", daemon.Active, "gone"))},
			[]string{"acme:t~a: revoke (key removed)"},
		},
		{
			"a removed key that is free stays so", livesOf(2, advert(keyed)),
			[]daemon.Record{retired(row(t, "acme:t~a", daemon.Deleted, "")), retired(row(t, "acme:t~b", daemon.Unassigned, ""))},
			nil,
		},
		{
			"a key waits for a node that declares its daemon, however long", livesOf(2, nil),
			[]daemon.Record{row(t, "acme:t~a", daemon.Unassigned, "")},
			[]string{"acme:t~a: unplaced (no node advertises it)"},
		},
		{
			"a daemon that has become keyed gives its indexes up", livesOf(1, advert(keyed)),
			[]daemon.Record{row(t, "acme:t/0", daemon.Active, "n1"), row(t, "acme:t/1", daemon.Deleted, ""), row(t, "acme:t~a", daemon.Active, "n1")},
			[]string{"acme:t/0: revoke (instances reduced to 0)", "acme:t/1: retire (instances reduced to 0)"},
		},
		{
			"a daemon that is keyed no longer keeps its keys for later", livesOf(1, advert(daemon.Spec{ID: "acme:t", Instances: 2})),
			[]daemon.Record{row(t, "acme:t/0", daemon.Active, "n1"), row(t, "acme:t~a", daemon.Active, "n1"), row(t, "acme:t~b", daemon.Deleted, "")},
			[]string{"acme:t/1: declare (declared)", "acme:t~a: revoke (the daemon has no keys any more)", "acme:t~b: unplaced (no node advertises it with keys)"},
		},
		{
			"daemons whose names are alike stay apart", livesOf(1, advert(keyed, daemon.Spec{ID: "acme:t-2"}, daemon.Spec{ID: "acme:t/x"})),
			[]daemon.Record{row(t, "acme:t/x/0", daemon.Active, "n1"), row(t, "acme:t~7", daemon.Active, "n1"), row(t, "acme:t-2/0", daemon.Active, "n1")},
			nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := Make(Input{Now: epoch, RetireAfter: 1, Nodes: c.nodes, Units: c.units})
			wantReported(t, got, c.want...)
		})
	}
}

// TestNotDeclared: a live node that has taken a daemon back gives its units up.
func TestNotDeclared(t *testing.T) {
	t.Parallel()
	old, other := advert(daemon.Spec{ID: "a", Instances: 2}, daemon.Spec{ID: "b"}), advert(daemon.Spec{ID: "b"})
	units := []daemon.Record{row(t, "a/0", daemon.Active, "n1"), row(t, "a/1", daemon.Active, "n2"), row(t, "b/0", daemon.Active, "n1")}
	kind := advert(daemon.Spec{ID: "b"})
	kind.Kinds = append(kind.Kinds, "a")
	for _, c := range []struct {
		name   string
		n1, n2 Node
		want   []string
	}{
		{"both declare it", live("n1", old), live("n2", old), nil},
		{"nobody does", live("n1", other), live("n2", other), []string{
			"a/0: revoke (its node no longer declares it n1)", "a/1: revoke (its node no longer declares it n2)",
		}},
		{"one does not", live("n1", other), live("n2", old), []string{"a/0: revoke (its node no longer declares it n1)"}},
		{"one declares it differently", live("n1", advert(daemon.Spec{ID: "a", Instances: 9, Kind: "other"}, daemon.Spec{ID: "b"})), live("n2", advert(daemon.Spec{ID: "a", Instances: 2, Revision: 1}, daemon.Spec{ID: "b"})), []string{
			"a: n2 over n1: kind a, not other; revision 1, not 0; instances 2, not 9",
		}},
		{"one runs its kind and does not know it yet", live("n1", kind), live("n2", old), nil},
		{"a late node may still declare it", live("n1", other).being(node.Late), live("n2", old), nil},
		{"of a dead node nothing is known", live("n1", other).being(node.Removed), live("n2", old), nil},
		{"its holder has no advert", live("n1", nil), live("n2", old), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			wantReported(t, Make(Input{Now: epoch, Nodes: []Node{c.n1, c.n2}, Units: units}), append([]string{}, c.want...)...)
		})
	}
}
