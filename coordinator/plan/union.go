package plan

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
)

// union is what present nodes advertise, taken together.
type union struct {
	words []word // in force, by daemon once sort was called
	// known is where each daemon is in words while they are heard; nil where none can come twice.
	known map[daemon.ID]int
	// overruled are in the order in which they were met until sort.
	overruled []Disagreement
}

// word is a spec in force, as it was advertised, and the node whose word it is. It is not copied:
// there may be thousands, and hardly any of them is asked for.
type word struct {
	spec *daemon.Spec
	by   *Node
}

// Specs are the specs in force.
type Specs struct{ words []word }

// Of returns the spec of a daemon, with defaults applied.
func (s Specs) Of(id daemon.ID) (daemon.Spec, bool) {
	at, ok := find(s.words, id)
	if !ok {
		return daemon.Spec{}, false
	}
	return s.words[at].spec.WithDefaults(), true
}

// All returns the specs, with defaults applied, in order of daemons.
func (s Specs) All() iter.Seq[daemon.Spec] {
	return func(yield func(daemon.Spec) bool) {
		for _, w := range s.words {
			if !yield(w.spec.WithDefaults()) {
				return
			}
		}
	}
}

func find(words []word, id daemon.ID) (int, bool) {
	return slices.BinarySearchFunc(words, id, func(w word, id daemon.ID) int { return cmp.Compare(w.spec.ID, id) })
}

// unite finds the specs in force.
func unite(nodes []Node) *union {
	offers := adverts(nodes)
	size := 0
	for _, n := range offers {
		size = max(size, len(n.Advert.Specs))
	}
	u := &union{words: make([]word, 0, size)}
	if len(offers) > 1 || len(offers) == 1 && !inOrder(offers[0].Advert.Specs) {
		u.known = make(map[daemon.ID]int, size)
	}
	// Newest first: the first usable word of the highest revision wins. Lower revisions come after it.
	highest := revisions(offers)
	var behind []word
	for _, n := range offers {
		for i := range n.Advert.Specs {
			said := &n.Advert.Specs[i]
			if said.Revision < highest[said.ID] {
				behind = append(behind, word{said, n})
			} else {
				u.hear(n, said)
			}
		}
	}
	slices.SortStableFunc(behind, func(a, b word) int { return cmp.Compare(b.spec.Revision, a.spec.Revision) })
	for _, w := range behind {
		u.hear(w.by, w.spec)
	}
	u.sort()
	return u
}

// revisions returns the highest revision of each daemon that has one above zero: hardly any has.
func revisions(offers []*Node) map[daemon.ID]int64 {
	var out map[daemon.ID]int64
	for _, n := range offers {
		for i := range n.Advert.Specs {
			if s := &n.Advert.Specs[i]; s.Revision > out[s.ID] {
				if out == nil {
					out = map[daemon.ID]int64{}
				}
				out[s.ID] = s.Revision
			}
		}
	}
	return out
}

// inOrder reports whether the specs are in order and none is of the same daemon as another, as
// nodes send them.
func inOrder(specs []daemon.Spec) bool {
	for i := 1; i < len(specs); i++ {
		if specs[i-1].ID >= specs[i].ID {
			return false
		}
	}
	return true
}

// hear takes a spec in, or notes why not.
func (u *union) hear(n *Node, said *daemon.Spec) {
	spec := said.WithDefaults()
	var what, why string
	if at, ok := u.known[said.ID]; ok {
		wins := u.words[at].spec.WithDefaults()
		if what = difference(&wins, &spec); wins.Revision != spec.Revision {
			why = "its revision is higher"
		} else {
			why = "its process registered last"
		}
	} else if what = unusable(&spec); what == "" {
		if u.known != nil {
			u.known[said.ID] = len(u.words)
		}
		u.words = append(u.words, word{spec: said, by: n})
	}
	if what != "" {
		u.overruled = append(u.overruled, Disagreement{Daemon: said.ID, Loser: n.Member.Identity, What: what, Why: why})
	}
}

// sort puts everything in order and finds the winners of disagreements.
func (u *union) sort() {
	byID := func(a, b word) int { return cmp.Compare(a.spec.ID, b.spec.ID) }
	if !slices.IsSortedFunc(u.words, byID) {
		slices.SortFunc(u.words, byID)
	}
	for i := range u.overruled {
		d := &u.overruled[i]
		if at, ok := find(u.words, d.Daemon); ok {
			d.Winner = u.words[at].by.Member.Identity
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

// firstRegistered is when the node's process registered for the first time. One that was paused and
// returns has a new registration and no newer program.
func firstRegistered(n *Node) time.Time {
	first := n.Member.FirstRegisteredAt
	if first.IsZero() || first.After(n.Member.RegisteredAt) {
		return n.Member.RegisteredAt
	}
	return first
}

// byRegistration orders nodes newest first.
func byRegistration(a, b *Node) int {
	return cmp.Or(
		firstRegistered(b).Compare(firstRegistered(a)),
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
		{"revision", wins.Revision, loses.Revision},
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
	return a.Kind == b.Kind && a.Revision == b.Revision && a.Instances == b.Instances && a.Weight == b.Weight &&
		a.Spread == b.Spread && a.WaitReady == b.WaitReady &&
		a.AcknowledgeTimeout == b.AcknowledgeTimeout && a.DrainTimeout == b.DrainTimeout &&
		a.StallTimeout == b.StallTimeout && a.MaxFailures == b.MaxFailures &&
		a.OnAbandoned == b.OnAbandoned && maps.Equal(a.Requires, b.Requires)
}
