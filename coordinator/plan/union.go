package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/emitd/emitd/daemon"
)

// declared is a spec in force and the node whose word it is.
type declared struct {
	spec daemon.Spec
	by   *Node
}

// union returns the specs in force, sorted by daemon, and what was overruled.
func union(nodes []Node) ([]declared, []Disagreement) {
	offers := adverts(nodes)
	size := 0
	for _, n := range offers {
		size = max(size, len(n.Advert.Specs))
	}
	var (
		specs   = make([]declared, 0, size)
		at      = make(map[daemon.ID]int, size)
		overrun []Disagreement
	)
	for _, n := range offers { // newest first: the first usable word on a daemon wins
		for i := range n.Advert.Specs {
			spec := n.Advert.Specs[i].WithDefaults()
			j, known := at[spec.ID]
			switch {
			case known:
				if what := difference(&specs[j].spec, &spec); what != "" {
					overrun = append(overrun, Disagreement{
						Daemon: spec.ID, Winner: specs[j].by.Member.Identity, Loser: n.Member.Identity, What: what,
					})
				}
			case unusable(&spec) != "":
				overrun = append(overrun, Disagreement{Daemon: spec.ID, Loser: n.Member.Identity, What: unusable(&spec)})
			default:
				at[spec.ID] = len(specs)
				specs = append(specs, declared{spec: spec, by: n})
			}
		}
	}
	byID := func(a, b declared) int { return cmp.Compare(a.spec.ID, b.spec.ID) }
	if !slices.IsSortedFunc(specs, byID) {
		slices.SortFunc(specs, byID)
	}
	slices.SortStableFunc(overrun, func(a, b Disagreement) int {
		return cmp.Or(cmp.Compare(a.Daemon, b.Daemon), cmp.Compare(a.Loser.Incarnation, b.Loser.Incarnation))
	})
	return specs, overrun
}

// adverts returns one node for each distinct advert, the one that registered last, newest first.
func adverts(nodes []Node) []*Node {
	newest := map[*daemon.Advert]*Node{}
	for i := range nodes {
		n := &nodes[i]
		if !n.present() || n.Advert == nil {
			continue
		}
		if old := newest[n.Advert]; old == nil || byRegistration(n, old) < 0 {
			newest[n.Advert] = n
		}
	}
	return slices.SortedFunc(maps.Values(newest), byRegistration)
}

// byRegistration orders nodes newest first.
func byRegistration(a, b *Node) int {
	return cmp.Or(
		b.Member.RegisteredAt.Compare(a.Member.RegisteredAt),
		cmp.Compare(b.Member.Incarnation, a.Member.Incarnation),
	)
}

// maxWeight keeps sums of weights exact, whatever is advertised.
const maxWeight = 1 << 30

// unusable says why a spec cannot be planned; "" if it can. It asks only what placement rests on:
// that a spec is well formed is checked where it is registered, and an advert may hold thousands.
func unusable(s *daemon.Spec) string {
	switch {
	case s.ID == "":
		return "the daemon has no id"
	case s.Instances < 1 || s.Instances > daemon.MaxInstances:
		return fmt.Sprintf("instances is %d, want 1 to %d", s.Instances, daemon.MaxInstances)
	case s.Weight < 1 || s.Weight > maxWeight:
		return fmt.Sprintf("weight is %d, want 1 to %d", s.Weight, maxWeight)
	}
	return ""
}

// difference says what the spec in force has that the other has not; "" if they are equal.
func difference(wins, loses *daemon.Spec) string {
	if same(wins, loses) {
		return ""
	}
	var out []string
	for _, f := range []struct {
		name string
		a, b any
	}{
		{"kind", wins.Kind, loses.Kind},
		{"instances", wins.Instances, loses.Instances},
		{"weight", wins.Weight, loses.Weight},
		{"requires", fmt.Sprint(wins.Requires), fmt.Sprint(loses.Requires)},
		{"spread", wins.Spread, loses.Spread},
		{"wait_ready", wins.WaitReady, loses.WaitReady},
		{"acknowledge_timeout", wins.AcknowledgeTimeout, loses.AcknowledgeTimeout},
		{"drain_timeout", wins.DrainTimeout, loses.DrainTimeout},
		{"stall_timeout", wins.StallTimeout, loses.StallTimeout},
		{"max_failures", wins.MaxFailures, loses.MaxFailures},
		{"on_abandoned", wins.OnAbandoned, loses.OnAbandoned},
	} {
		if f.a != f.b {
			out = append(out, fmt.Sprintf("%s %v, not %v", f.name, f.a, f.b))
		}
	}
	return strings.Join(out, "; ")
}

// same compares without allocating: nearly always, specs are equal.
func same(a, b *daemon.Spec) bool {
	return a.Kind == b.Kind && a.Instances == b.Instances && a.Weight == b.Weight &&
		a.Spread == b.Spread && a.WaitReady == b.WaitReady &&
		a.AcknowledgeTimeout == b.AcknowledgeTimeout && a.DrainTimeout == b.DrainTimeout &&
		a.StallTimeout == b.StallTimeout && a.MaxFailures == b.MaxFailures &&
		a.OnAbandoned == b.OnAbandoned && maps.Equal(a.Requires, b.Requires)
}
