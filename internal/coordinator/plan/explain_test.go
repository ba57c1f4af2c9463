package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// table writes an explanation as `daemon explain` might.
func table(e Explanation) []string {
	out := []string{fmt.Sprintf("next %q: %v", e.Next.Name, e.Why)}
	for _, r := range e.Rows {
		out = append(out, fmt.Sprintf("%s eligible=%t load=%g score=%g units=%d/%d %s", r.Node.Name, r.Eligible, r.Load, r.Score, r.Units, r.ZoneUnits, r.Verdict))
	}
	return out
}

func wantTable(t *testing.T, e Explanation, want ...string) {
	t.Helper()
	if got := table(e); !slices.Equal(got, want) {
		t.Errorf("explanation\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// mailer is a cluster in which each node is excluded for another reason.
func mailer(t *testing.T) Input {
	a := advert(daemon.Spec{ID: "a", Instances: 3, Requires: map[string]string{"gpu": "yes"}})
	on := func(name string) Node { return live(name, a).labelled("gpu", "yes", "zone", "z"+name[1:]) }
	free := row(t, "a/0", daemon.Deleted, "n6")
	free.Embargoes = []daemon.Embargo{
		{Incarnation: "i-n6", Until: epoch.Add(time.Minute), Length: time.Minute, Reason: "panic: boom"},
		{Incarnation: "i-n7", Until: epoch.Add(time.Second), Length: time.Minute},
		{Incarnation: "i-n1", Until: epoch},
	}
	return Input{
		Now: epoch,
		Nodes: []Node{
			on("n1"), on("n2"), on("n3").being(node.Late), live("n4", a).labelled("gpu", "no"), live("n5", advert()), on("n6"), on("n7"),
			live("n8", a),
		},
		Units: []daemon.Record{free, row(t, "a/1", daemon.Active, "n2"), row(t, "a/2", daemon.Active, "n3")},
	}
}

func TestExplainAUnitThatIsPlaced(t *testing.T) {
	t.Parallel()
	e := Explain(mailer(t), unit(t, "a/0"))
	if e.Decision == nil || e.Decision.Step != daemon.Assign || e.Decision.To.Name != "n1" {
		t.Errorf("decision %+v", e.Decision)
	}
	wantTable(t, e,
		`next "n1": least loaded (1.0 < 2.0); runner-up n2; 2 embargoed: n6, n7; 1 kind: n5; lacks gpu=yes: n4, n8; 1 late: n3`,
		`n1 eligible=true load=0 score=1 units=0/0 next: least loaded (1.0 < 2.0)`,
		`n2 eligible=true load=1 score=2 units=1/1 more load`,
		`n3 eligible=false load=1 score=2 units=1/0 late`,
		`n4 eligible=false load=0 score=1 units=0/0 lacks gpu=yes (has gpu=no)`,
		`n5 eligible=false load=0 score=1 units=0/0 does not run a`,
		`n6 eligible=false load=0 score=1 units=0/0 embargoed until 2026-05-01T12:01:00Z: panic: boom`,
		`n7 eligible=false load=0 score=1 units=0/0 embargoed until 2026-05-01T12:00:01Z`,
		`n8 eligible=false load=0 score=1 units=0/0 lacks gpu=yes`,
	)
}

// TestExplainAUnitThatRuns: the table shows where the unit would go if it were free.
func TestExplainAUnitThatRuns(t *testing.T) {
	t.Parallel()
	in := mailer(t)
	in.Nodes = in.Nodes[:3]
	in.Units[0].Embargoes = nil
	e := Explain(in, unit(t, "a/1"))
	if e.Decision != nil {
		t.Errorf("decision %+v", e.Decision)
	}
	wantTable(t, e, // this plan placed a/0 on n1; the row of n2 does not include the unit
		`next "n2": least loaded (1.0 < 2.0); runner-up n1; 1 late: n3`,
		`n1 eligible=true load=1 score=2 units=1/1 more load`,
		`n2 eligible=true load=0 score=1 units=0/0 next: least loaded (1.0 < 2.0)`,
		`n3 eligible=false load=1 score=2 units=1/0 late`,
	)
}

func TestExplainAUnitThatIsRevoked(t *testing.T) {
	t.Parallel()
	in := mailer(t)
	in.Nodes = in.Nodes[:3]
	in.Nodes[1].State = node.Draining
	e := Explain(in, unit(t, "a/1"))
	if e.Decision == nil || e.Decision.Step != daemon.Revoke || e.Decision.Reason.Rule != NodeDraining {
		t.Errorf("decision %+v", e.Decision)
	}
	if e.Next.Name != "n1" {
		t.Errorf("next %q: %v", e.Next.Name, e.Why)
	}
}

func TestExplainByWhatCandidatesLose(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a", Instances: 3})
	in := Input{
		Now: epoch,
		Nodes: []Node{
			live("n1", a).labelled("zone", "x"), live("n2", a).labelled("zone", "x").being(node.Late), live("n3", a).labelled("zone", "y"),
			live("n4", a).labelled("zone", "z"), live("n5", a).labelled("zone", "w"),
		},
		Units: []daemon.Record{
			row(t, "a/0", daemon.Deleted, ""), row(t, "a/1", daemon.Active, "n2"), row(t, "a/2", daemon.Active, "n4"),
			row(t, "b/0", daemon.Active, "n1"), row(t, "b/1", daemon.Active, "n3"), row(t, "b/2", daemon.Active, "n5"),
		},
	}
	e := Explain(in, unit(t, "a/0"))
	verdicts := map[string]string{}
	for _, r := range e.Rows {
		verdicts[r.Node.Name] = r.Verdict
	}
	other := map[string]string{"n3": "n5", "n5": "n3"}[e.Next.Name]
	for name, want := range map[string]string{
		e.Next.Name: "next: stable hash", other: "equal; later in hash order",
		"n1": "more units of the daemon in its zone", "n2": "late", "n4": "more units of the daemon",
	} {
		if verdicts[name] != want {
			t.Errorf("%s: %q, want %q", name, verdicts[name], want)
		}
	}
}

func TestExplainWhatHasNoPlace(t *testing.T) {
	t.Parallel()
	in := Input{
		Now: epoch, Nodes: []Node{live("n2", advert(daemon.Spec{ID: "a", Instances: 2})), live("n1", nil)},
		Units: []daemon.Record{row(t, "gone/0", daemon.Active, "n1"), row(t, "a/5", daemon.Active, "n2")},
	}
	wantTable(t, Explain(in, unit(t, "gone/0")),
		`next "": no node advertises it`,
		`n1 eligible=false load=1 score=0 units=0/0 no node advertises it`,
		`n2 eligible=false load=1 score=0 units=0/0 no node advertises it`,
	)
	e := Explain(in, unit(t, "a/5"))
	if e.Decision == nil || e.Decision.Step != daemon.Revoke {
		t.Errorf("decision %+v", e.Decision)
	}
	wantTable(t, e,
		`next "": instances reduced to 2`,
		`n1 eligible=false load=1 score=0 units=0/0 instances reduced to 2`,
		`n2 eligible=false load=1 score=0 units=0/0 instances reduced to 2`,
	)
	for _, nowhere := range []daemon.Unit{{}, {Daemon: "never", Index: 3}, {Daemon: "a", Index: -1}} {
		if e := Explain(in, nowhere); e.Next.Name != "" || e.Decision != nil || len(e.Rows) != 2 {
			t.Errorf("%v: %+v", nowhere, e)
		}
	}
	// A unit that is not declared yet would go to some node.
	e = Explain(in, unit(t, "a/1"))
	if e.Next.Name != "n2" || e.Decision == nil || e.Decision.Reason.Rule != NewlyDeclared {
		t.Errorf("a/1: %+v", e)
	}
}

func TestExplainUnplaced(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a"})
	e := Explain(Input{Now: epoch, Nodes: []Node{live("n1", a).being(node.Late)}, Units: []daemon.Record{row(t, "a/0", daemon.Deleted, "")}}, unit(t, "a/0"))
	if e.Decision != nil {
		t.Errorf("decision %+v", e.Decision)
	}
	wantTable(t, e, `next "": no eligible node; 1 late: n1`, `n1 eligible=false load=0 score=1 units=0/0 late`)
}

func TestWhyAsText(t *testing.T) {
	t.Parallel()
	for want, w := range map[string]Why{
		"least loaded (2.0 < 3.0); runner-up n2; 1 late: n3": {
			Rule: LeastLoaded, Chosen: "n1", RunnerUp: "n2", Value: 2, RunnerUpValue: 3,
			Filtered: map[Filter]Names{FilterLate: {Count: 1, Names: []string{"n3"}}},
		},
		"least loaded (0.333 < 0.334)":       {Rule: LeastLoaded, Value: 0.3333, RunnerUpValue: 0.3336},
		"least loaded (0.000000 < 0.000000)": {Rule: LeastLoaded, Value: 1e-9, RunnerUpValue: 2e-9},
		"zone spread (0 < 1)":                {Rule: ZoneSpread, RunnerUpValue: 1},
		"instances reduced to 2":             {Rule: InstancesReduced, Note: "to 2"},
		"quarantined: failed on 2 nodes: n1": {Rule: Quarantined, Note: "failed on 2 nodes: n1"},
	} {
		if got := w.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestJSON pins the JSON in events, which scripts read.
func TestJSON(t *testing.T) {
	t.Parallel()
	e := Explain(mailer(t), unit(t, "a/0"))
	got, err := json.Marshal(e.Why)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"rule":"least loaded","chosen":"n1","runner_up":"n2","value":1,"runner_up_value":2,"filtered":{` +
		`"embargoed":{"count":2,"names":["n6","n7"]},"kind":{"count":1,"names":["n5"]},"lacks gpu=yes":{"count":2,"names":["n4","n8"]},"late":{"count":1,"names":["n3"]}}}`
	if string(got) != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got, _ = json.Marshal(Why{Rule: NewlyDeclared}); string(got) != `{"rule":"declared"}` {
		t.Errorf("%s", got)
	}
	got, err = json.Marshal(e)
	if err != nil || !strings.HasPrefix(string(got), `{"unit":"a/0","decision":{"unit":"a/0","step":"assign","generation":7,"state":"deleted","to":{"name":"n1",`) {
		t.Errorf("%s, %v", got, err)
	}
}
