package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/emitd/emitd/daemon"
)

// union is what present nodes advertise, taken together.
type union struct {
	specs  map[daemon.ID]daemon.Spec // in force, with defaults applied
	sorted []word                    // the same by daemon
	// overruled are in the order in which they were met until sort.
	overruled []Disagreement
}

// word is a spec in force and the node whose word it is.
type word struct {
	spec daemon.Spec
	by   *Node
}

// unite finds the specs in force.
func unite(nodes []Node) *union {
	offers := adverts(nodes)
	size := 0
	for _, n := range offers {
		size = max(size, len(n.Advert.Specs))
	}
	u := &union{specs: make(map[daemon.ID]daemon.Spec, size), sorted: make([]word, 0, size)}
	for _, n := range offers { // newest first: the first usable word on a daemon wins
		for i := range n.Advert.Specs {
			u.hear(n, n.Advert.Specs[i].WithDefaults())
		}
	}
	u.sort()
	return u
}

// hear takes a spec in, or notes why not.
func (u *union) hear(n *Node, spec daemon.Spec) {
	note := Disagreement{Daemon: spec.ID, Loser: n.Member.Identity}
	if wins, ok := u.specs[spec.ID]; ok {
		note.What = difference(&wins, &spec)
	} else {
		note.What = unusable(&spec)
		if note.What == "" {
			u.specs[spec.ID] = spec
			u.sorted = append(u.sorted, word{spec: spec, by: n})
		}
	}
	if note.What != "" {
		u.overruled = append(u.overruled, note)
	}
}

// sort puts everything in order and finds the winners of disagreements.
func (u *union) sort() {
	byID := func(a, b word) int { return cmp.Compare(a.spec.ID, b.spec.ID) }
	if !slices.IsSortedFunc(u.sorted, byID) {
		slices.SortFunc(u.sorted, byID)
	}
	for i := range u.overruled {
		d := &u.overruled[i]
		at, ok := slices.BinarySearchFunc(u.sorted, d.Daemon, func(w word, id daemon.ID) int { return cmp.Compare(w.spec.ID, id) })
		if ok {
			d.Winner = u.sorted[at].by.Member.Identity
		}
	}
	slices.SortStableFunc(u.overruled, func(a, b Disagreement) int {
		return cmp.Or(cmp.Compare(a.Daemon, b.Daemon), cmp.Compare(a.Loser.Incarnation, b.Loser.Incarnation))
	})
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
