package plan

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
)

// union is the union of what present nodes advertise.
type union struct {
	inForce []advertisedSpec // the specs in force; sorted by daemon after sort
	// known is the position of each daemon in words while specs are added; nil if no daemon can
	// occur twice.
	known map[daemon.ID]int
	// disagreements are the specs that are not in force, in the order of the adverts until sort.
	disagreements []Disagreement
}

// advertisedSpec is a spec in force, as it was advertised, and the node that advertised it. The spec is not
// copied: there may be thousands, and few of them are ever read.
type advertisedSpec struct {
	spec *daemon.Spec
	by   *Node
}

// Specs are the specs in force.
type Specs struct{ inForce []advertisedSpec }

// Of returns the spec of a daemon, with defaults applied.
func (s Specs) Of(id daemon.ID) (daemon.Spec, bool) {
	at, ok := find(s.inForce, id)
	if !ok {
		return daemon.Spec{}, false
	}
	return s.inForce[at].spec.WithDefaults(), true
}

// All returns the specs, with defaults applied, in order of daemons.
func (s Specs) All() iter.Seq[daemon.Spec] {
	return func(yield func(daemon.Spec) bool) {
		for _, w := range s.inForce {
			if !yield(w.spec.WithDefaults()) {
				return
			}
		}
	}
}

func find(words []advertisedSpec, id daemon.ID) (int, bool) {
	return slices.BinarySearchFunc(words, id, func(w advertisedSpec, id daemon.ID) int { return cmp.Compare(w.spec.ID, id) })
}

// newUnion finds the specs in force.
func newUnion(nodes []Node) *union {
	offers := adverts(nodes)
	size := 0
	for _, n := range offers {
		size = max(size, len(n.Advert.Specs))
	}
	u := &union{inForce: make([]advertisedSpec, 0, size)}
	if len(offers) > 1 || len(offers) == 1 && !inOrder(offers[0].Advert.Specs) {
		u.known = make(map[daemon.ID]int, size)
	}
	// The newest process comes first, so the first usable spec of the highest revision wins. Lower
	// revisions come after all of these.
	highest := revisions(offers)
	var behind []advertisedSpec
	for _, n := range offers {
		for i := range n.Advert.Specs {
			advertised := &n.Advert.Specs[i]
			if advertised.Revision < highest[advertised.ID] {
				behind = append(behind, advertisedSpec{advertised, n})
			} else {
				u.add(n, advertised)
			}
		}
	}
	slices.SortStableFunc(behind, func(a, b advertisedSpec) int { return cmp.Compare(b.spec.Revision, a.spec.Revision) })
	for _, w := range behind {
		u.add(w.by, w.spec)
	}
	u.sort()
	return u
}

// revisions returns the highest revision of each daemon that has one above zero. Few have.
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

// inOrder reports whether the specs are sorted by daemon without duplicates, as nodes send them.
func inOrder(specs []daemon.Spec) bool {
	for i := 1; i < len(specs); i++ {
		if specs[i-1].ID >= specs[i].ID {
			return false
		}
	}
	return true
}

// add adds a spec to the union, or notes why it is not in force.
func (u *union) add(n *Node, advertised *daemon.Spec) {
	spec := advertised.WithDefaults()
	var what, why string
	if at, ok := u.known[advertised.ID]; ok {
		wins := u.inForce[at].spec.WithDefaults()
		if what = difference(&wins, &spec); wins.Revision != spec.Revision {
			why = "its revision is higher"
		} else {
			why = "its process registered last"
		}
	} else if what = unusable(&spec); what == "" {
		if u.known != nil {
			u.known[advertised.ID] = len(u.inForce)
		}
		u.inForce = append(u.inForce, advertisedSpec{spec: advertised, by: n})
	}
	if what != "" {
		u.disagreements = append(u.disagreements, Disagreement{Daemon: advertised.ID, Loser: n.Member.Identity, What: what, Why: why})
	}
}

// sort puts everything in order and fills in the winners of disagreements.
func (u *union) sort() {
	byID := func(a, b advertisedSpec) int { return cmp.Compare(a.spec.ID, b.spec.ID) }
	if !slices.IsSortedFunc(u.inForce, byID) {
		slices.SortFunc(u.inForce, byID)
	}
	for i := range u.disagreements {
		d := &u.disagreements[i]
		if at, ok := find(u.inForce, d.Daemon); ok {
			d.Winner = u.inForce[at].by.Member.Identity
		}
	}
	slices.SortStableFunc(u.disagreements, func(a, b Disagreement) int {
		return cmp.Or(cmp.Compare(a.Daemon, b.Daemon), cmp.Compare(a.Loser.Incarnation, b.Loser.Incarnation))
	})
}

// adverts returns one node for each distinct advert, the one that registered last. They are sorted,
// newest first.
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

// firstRegistered returns when the node's process registered for the first time. A process that was
// paused and returns has a new registration, but no newer program.
func firstRegistered(n *Node) time.Time {
	first := n.Member.FirstRegisteredAt
	if first.IsZero() || first.After(n.Member.RegisteredAt) {
		return n.Member.RegisteredAt
	}
	return first
}

// byRegistration orders nodes by their first registration, newest first.
func byRegistration(a, b *Node) int {
	return cmp.Or(
		firstRegistered(b).Compare(firstRegistered(a)),
		cmp.Compare(b.Member.Incarnation, a.Member.Incarnation),
	)
}

// maxWeight keeps sums of weights exact in a float64, whatever nodes advertise.
const maxWeight = 1 << 30

// unusable returns why a spec cannot be planned, or "". It checks only what placement depends on.
// Register checks the rest, and an advert may hold thousands of specs.
func unusable(s *daemon.Spec) string {
	switch {
	case s.ID == "":
		return "the daemon has no id"
	case s.Instances < 1 && !s.Keyed() || s.Instances > daemon.MaxInstances:
		return fmt.Sprintf("instances is %d, want 1 to %d", s.Instances, daemon.MaxInstances)
	case s.Weight < 1 || s.Weight > maxWeight:
		return fmt.Sprintf("weight is %d, want 1 to %d", s.Weight, maxWeight)
	}
	return ""
}

// difference returns where the winning spec differs from the losing one; "" if they are equal.
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
		{"instances", instancesText(wins), instancesText(loses)},
		{"weight", wins.Weight, loses.Weight},
		{"requires", fmt.Sprint(wins.Requires), fmt.Sprint(loses.Requires)},
		{"spread", wins.Spread, loses.Spread},
		{"wait_ready", wins.WaitReady, loses.WaitReady},
		{"acknowledge_timeout", wins.AcknowledgeTimeout, loses.AcknowledgeTimeout},
		{"drain_timeout", wins.DrainTimeout, loses.DrainTimeout},
		{"stall_timeout", wins.StallTimeout, loses.StallTimeout},
		{"max_failures", wins.MaxFailures, loses.MaxFailures},
		{"on_abandoned", wins.OnAbandoned, loses.OnAbandoned},
		{"no_rebalance", wins.NoRebalance, loses.NoRebalance},
	} {
		if f.a != f.b {
			out = append(out, fmt.Sprintf("%s %v, not %v", f.name, f.a, f.b))
		}
	}
	return strings.Join(out, "; ")
}

func instancesText(s *daemon.Spec) string {
	if s.Keyed() {
		return "one for each key"
	}
	return strconv.Itoa(s.Instances)
}

// same compares two specs without allocating, because nearly all are equal.
func same(a, b *daemon.Spec) bool {
	return a.Kind == b.Kind && a.Revision == b.Revision && a.Instances == b.Instances && a.Weight == b.Weight &&
		a.Spread == b.Spread && a.WaitReady == b.WaitReady &&
		a.AcknowledgeTimeout == b.AcknowledgeTimeout && a.DrainTimeout == b.DrainTimeout &&
		a.StallTimeout == b.StallTimeout && a.MaxFailures == b.MaxFailures &&
		a.OnAbandoned == b.OnAbandoned && a.NoRebalance == b.NoRebalance && maps.Equal(a.Requires, b.Requires)
}
