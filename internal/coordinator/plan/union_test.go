package plan

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

func TestTheUnionOfWhatNodesAdvertise(t *testing.T) {
	t.Parallel()
	a1, a2, b := daemon.Spec{ID: "a", Instances: 1}, daemon.Spec{ID: "a", Instances: 2, Weight: 5}, daemon.Spec{ID: "b"}
	old, young := advert(a1), advert(a2, b)
	const hour = time.Hour
	over := "a: n2 over n1: instances 2, not 1; weight 5, not 1"
	for _, tt := range []struct {
		story     string
		nodes     []Node
		instances int
		want      []string
	}{
		{"one voice", []Node{live("n1", old)}, 1, nil},
		{"replicas of one binary agree", []Node{live("n1", old), live("n2", advert(a1))}, 1, nil},
		{"an advert that names a daemon twice: the first word", []Node{live("n1", advert(a1, a2))}, 1, []string{"a: n1 over n1: instances 1, not 2; weight 1, not 5"}},
		{"a default and its zero are the same", []Node{live("n1", advert(daemon.Spec{ID: "a"})), live("n2", advert(daemon.Spec{ID: "a", Weight: 1, Kind: "a", Spread: "zone"}))}, 1, nil},
		{"the newest registration wins", []Node{live("n1", old).born(2 * hour), live("n2", young).born(hour)}, 2, []string{over}},
		{
			"a return is no newer word",
			[]Node{live("n1", old).born(0).first(2 * hour), live("n2", young).born(hour)},
			2,
			[]string{over},
		},
		{
			"a first registration that the row's own contradicts does not count",
			[]Node{live("n1", old).born(2 * hour).first(-hour), live("n2", young).born(hour)},
			2,
			[]string{over},
		},
		{
			"a higher revision wins, whoever is newer",
			[]Node{live("n2", advert(daemon.Spec{ID: "a", Instances: 2, Revision: 7})).born(2 * hour), live("n1", old).born(hour)},
			2,
			[]string{"a: n2 over n1: revision 7, not 0; instances 2, not 1"},
		},
		{
			"unless it cannot be planned",
			[]Node{live("n2", advert(daemon.Spec{ID: "a", Weight: -1, Revision: 7})).born(2 * hour), live("n1", old).born(hour)},
			1,
			[]string{"a: n1 over n2: weight is -1, want 1 to 1073741824"},
		},
		{"also one that takes nothing", []Node{live("n1", old).born(2 * hour), live("n2", young).born(hour).being(node.Draining)}, 2, []string{over}},
		{"but not a dead one", []Node{live("n1", old).born(2 * hour), live("n2", young).born(hour).being(node.Removed)}, 1, nil},
		{"an equal age is settled by incarnation", []Node{live("n2", young), live("n1", old)}, 2, []string{over}},
		{
			"each losing advert is named once, by its youngest node",
			[]Node{live("n0", old).born(4 * hour), live("n1", old).born(2 * hour), live("n2", young).born(hour), live("n3", old).born(3 * hour)},
			2,
			[]string{over},
		},
		{
			"the youngest node of an advert speaks for all who share it",
			[]Node{live("n2", young).born(2 * hour), live("n1", old).born(3 * hour), live("n3", old).born(hour)},
			1,
			[]string{"a: n3 over n2: instances 1, not 2; weight 1, not 5"},
		},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			p := Make(Input{Now: epoch, Nodes: tt.nodes})
			if got, _ := p.Specs.Of("a"); got.Instances != tt.instances {
				t.Errorf("%d instances, want %d", got.Instances, tt.instances)
			}
			p.Decisions, p.Unplaced = nil, nil
			wantReported(t, p, tt.want...)
		})
	}
}

// TestAnUnusableSpecDisturbsNobody: an unusable spec loses to any other spec of its daemon. If
// there is no other, the daemon counts as not advertised. Everything else goes on.
func TestAnUnusableSpecDisturbsNobody(t *testing.T) {
	t.Parallel()
	for _, bad := range []daemon.Spec{
		{ID: "a", Instances: -2}, {ID: "a", Instances: daemon.MaxInstances + 1}, {ID: "a", Weight: -1}, {ID: "a", Weight: maxWeight + 1},
	} {
		in := Input{
			Now: epoch, Nodes: []Node{live("n1", advert(bad, daemon.Spec{ID: "b"})), live("n2", advert(daemon.Spec{ID: "a"})).born(2 * time.Hour)},
			Units: []daemon.Record{row(t, "a/0", daemon.Deleted, ""), row(t, "b/0", daemon.Deleted, "")},
		}
		p := Make(in)
		if len(p.Disagreements) != 1 || p.Disagreements[0].Winner.Name != "n2" || p.Disagreements[0].Loser.Name != "n1" {
			t.Errorf("%+v: %+v", bad, p.Disagreements)
		}
		p.Disagreements = nil
		wantReported(t, p, "a/0: assign to n1 (stable hash; runner-up n2)", "b/0: assign to n1 (only candidate; 1 kind: n2)")

		in.Nodes = in.Nodes[:1]
		p = Make(in)
		if len(p.Disagreements) != 1 || p.Disagreements[0].Winner.Name != "" || p.Disagreements[0].What == "" {
			t.Errorf("%+v: %+v", bad, p.Disagreements)
		}
		p.Disagreements = nil
		wantReported(t, p, "b/0: assign to n1 (only candidate)", "a/0: unplaced (no node advertises it)")
	}
	if unusable(&daemon.Spec{Instances: 1, Weight: 1}) == "" {
		t.Error("a spec without an id is usable")
	}
}

// TestEveryFieldOfASpecIsCompared changes the fields one by one, so that a field that is added
// later cannot be forgotten.
func TestEveryFieldOfASpecIsCompared(t *testing.T) {
	t.Parallel()
	base := daemon.Spec{ID: "a"}.WithDefaults()
	if what := difference(&base, &base); what != "" {
		t.Errorf("differs from itself: %s", what)
	}
	for i := range reflect.TypeFor[daemon.Spec]().NumField() {
		field := reflect.TypeFor[daemon.Spec]().Field(i)
		if field.Name == "ID" {
			continue
		}
		other := base
		switch v := reflect.ValueOf(&other).Elem().Field(i); v.Kind() {
		case reflect.String:
			v.SetString("x")
		case reflect.Int, reflect.Int64:
			v.SetInt(77)
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Map:
			v.Set(reflect.ValueOf(map[string]string{"k": "v"}))
		default:
			t.Fatalf("a field of kind %v: teach the test", v.Kind())
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if what := difference(&other, &base); !strings.HasPrefix(what, name+" ") {
			t.Errorf("%s: difference is %q", field.Name, what)
		}
	}
}

func TestUnusableAdvertsAreNotRead(t *testing.T) {
	t.Parallel()
	// A tombstone is not a node: neither its advert nor its units count.
	gone := live("n1", advert(daemon.Spec{ID: "a"}))
	gone.Member.State = node.Removed
	wantReported(t, Make(Input{Now: epoch, Nodes: []Node{gone, live("n2", nil)}, Units: []daemon.Record{row(t, "a/0", daemon.Deleted, "")}}),
		"a/0: unplaced (no node advertises it)")
}
