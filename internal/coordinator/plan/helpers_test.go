package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// epoch is the store's clock in all tests.
var epoch = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// advert advertises specs and the kinds to run them.
func advert(specs ...daemon.Spec) *daemon.Advert {
	a := &daemon.Advert{Specs: specs}
	for _, s := range specs {
		a.Kinds = append(a.Kinds, s.WithDefaults().Kind)
	}
	return a
}

// live returns a live node whose incarnation is "i-" and its name.
func live(name string, a *daemon.Advert) Node {
	return Node{
		Member: node.Member{
			Identity:     node.Identity{Name: name, ID: node.ID("id-" + name), Incarnation: node.Incarnation("i-" + name)},
			State:        node.Live,
			RegisteredAt: epoch.Add(-time.Hour),
		},
		Advert: a,
		State:  node.Live,
	}
}

// livesOf returns n nodes, n1 the first, with one shared advert.
func livesOf(n int, a *daemon.Advert) []Node {
	out := make([]Node, n)
	for i := range out {
		out[i] = live(fmt.Sprintf("n%d", i+1), a)
	}
	return out
}

func (n Node) labelled(pairs ...string) Node {
	n.Member.Labels = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		n.Member.Labels[pairs[i]] = pairs[i+1]
	}
	return n
}

func (n Node) sized(capacity int) Node { n.Member.Capacity = capacity; return n }
func (n Node) being(s node.State) Node { n.State = s; return n }
func (n Node) first(ago time.Duration) Node {
	n.Member.FirstRegisteredAt = epoch.Add(-ago)
	return n
}

func (n Node) born(ago time.Duration) Node { n.Member.RegisteredAt = epoch.Add(-ago); return n }

func unit(t testing.TB, text string) daemon.Unit {
	t.Helper()
	u, err := daemon.ParseUnit(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// row returns a unit's row; an empty holder is none.
func row(t testing.TB, text string, s daemon.State, holder string) daemon.Record {
	t.Helper()
	r := daemon.Record{Unit: unit(t, text), State: s, Since: epoch.Add(-time.Minute)}
	if s != daemon.Unassigned {
		r.Generation = 7
	}
	if holder != "" {
		r.Holder = node.Identity{Name: holder, ID: node.ID("id-" + holder), Incarnation: node.Incarnation("i-" + holder)}
	}
	return r
}

// settle applies plans, at once and without failures, until nothing changes.
func settle(t interface {
	Helper()
	Fatal(...any)
}, in Input,
) Input {
	t.Helper()
	for range 10 {
		p := Make(in)
		if len(p.Decisions) == 0 {
			return in
		}
		in.Units = carryOut(in.Units, p.Decisions)
	}
	t.Fatal("plans do not come to an end")
	return in
}

func carryOut(units []daemon.Record, ds []Decision) []daemon.Record {
	units = slices.Clone(units)
	at := make(map[daemon.Unit]int, len(units))
	for i := range units {
		at[units[i].Unit] = i
	}
	for _, d := range ds {
		i, ok := at[d.Unit]
		if !ok {
			units = append(units, daemon.Record{Unit: d.Unit, State: daemon.Unassigned, Since: epoch})
			continue
		}
		r := &units[i]
		switch d.Step {
		case daemon.Assign:
			r.State, r.Holder, r.Generation = daemon.Active, d.To, r.Generation+1
		case daemon.Revoke:
			r.State = daemon.Deleted
		default:
			r.Retired = d.Retired
		}
	}
	return units
}

// spread returns how many units each node holds: "n1:2 n2:2".
func spread(units []daemon.Record) string {
	counts := map[string]int{}
	for _, r := range units {
		if !r.State.IsFree() {
			counts[r.Holder.Name]++
		}
	}
	var out []string
	for name, n := range counts {
		out = append(out, fmt.Sprintf("%s:%d", name, n))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// told writes a plan in lines, one for each decision or other entry.
func reported(p Plan) []string {
	out := []string{}
	for _, d := range p.Decisions {
		what := string(d.Step)
		switch {
		case d.Step == daemon.Assign:
			what += " to " + d.To.Name
		case d.Step == "" && d.Retired:
			what = "retire"
		case d.Step == "":
			what = "declare"
		}
		out = append(out, fmt.Sprintf("%s: %s (%s)", d.Unit, what, d.Reason))
	}
	for _, u := range p.Unplaced {
		out = append(out, fmt.Sprintf("%s: unplaced (%s)", u.Unit, u.Why))
	}
	for _, u := range p.Unknown {
		out = append(out, fmt.Sprintf("%s: unknown state %s", u.Unit, u.State))
	}
	for _, d := range p.Disagreements {
		out = append(out, fmt.Sprintf("%s: %s over %s: %s", d.Daemon, d.Winner.Name, d.Loser.Name, d.What))
	}
	return out
}

func wantReported(t *testing.T, p Plan, want ...string) {
	t.Helper()
	if got := reported(p); !slices.Equal(got, want) {
		t.Errorf("plan says\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}
