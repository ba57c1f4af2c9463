package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Declared says which node's spec of a daemon is in force, why it is, and which nodes declare a different one.
type Declared struct {
	// By is the node whose spec is in force; zero if no node declares a usable one.
	By node.Identity `json:"by,omitzero"`
	// Revision is the spec's revision. FirstRegisteredAt is when the node's process registered for
	// the first time.
	Revision          int64     `json:"revision"`
	FirstRegisteredAt time.Time `json:"first_registered_at,omitzero"`
	// Why is the reason why this spec is in force, as "its revision is the highest"; empty if there
	// is no other.
	Why string `json:"why,omitempty"`
	// Same is how many other present nodes declare the same spec.
	Same   int             `json:"same"`
	Others []OtherDeclared `json:"others"` // sorted by name
}

// OtherDeclared is a present node that declares a daemon differently from the spec in force.
type OtherDeclared struct {
	Node              node.Identity `json:"node"`
	Revision          int64         `json:"revision"`
	FirstRegisteredAt time.Time     `json:"first_registered_at,omitzero"`
	// What names the difference, for example "instances 4, not 2", or says why the spec cannot be used.
	What string `json:"what"`
}

// declared compares what every present node declares about a daemon. A plan needs only one node per
// advert, but people want to see all.
func declared(nodes []Node, wins advertisedSpec, id daemon.ID) Declared {
	out := Declared{Others: []OtherDeclared{}}
	var spec daemon.Spec
	if wins.spec != nil {
		spec = wins.spec.WithDefaults()
		out.By, out.Revision, out.FirstRegisteredAt = wins.by.Member.Identity, spec.Revision, firstRegistered(wins.by)
	}
	equal := false // another node has declared the same revision, and was not chosen
	for i := range nodes {
		n := &nodes[i]
		if !n.present() || n.Advert == nil || n.Member.Incarnation == out.By.Incarnation {
			continue
		}
		at := slices.IndexFunc(n.Advert.Specs, func(s daemon.Spec) bool { return s.ID == id })
		if at < 0 {
			continue
		}
		advertised := n.Advert.Specs[at].WithDefaults()
		what := unusable(&advertised)
		if what == "" && wins.spec != nil {
			what = difference(&spec, &advertised)
			equal = equal || what != "" && advertised.Revision == spec.Revision
		}
		if what == "" {
			out.Same++
			continue
		}
		out.Others = append(out.Others, OtherDeclared{n.Member.Identity, advertised.Revision, firstRegistered(n), what})
	}
	slices.SortFunc(out.Others, func(a, b OtherDeclared) int {
		return cmp.Or(cmp.Compare(a.Node.Name, b.Node.Name), cmp.Compare(a.Node.Incarnation, b.Node.Incarnation))
	})
	switch {
	case len(out.Others) == 0 || out.By == (node.Identity{}):
	case equal:
		out.Why = "of the highest revision, its process registered last"
	default:
		out.Why = "its revision is the highest"
	}
	return out
}
