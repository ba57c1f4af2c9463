package plan

import (
	"cmp"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
)

// Unplaced is a free unit that no node can take now.
type Unplaced struct {
	Unit  daemon.Unit
	Since time.Time // when it became free
	// EmbargoedUntil is when the first embargo ends that is a node's only obstacle; zero if there
	// is none.
	EmbargoedUntil time.Time
	Why            Why
}

// String returns the reason for people to read: "no eligible node; 1 embargoed: n1, until
// 2026-05-01T12:01:00Z".
func (u *Unplaced) String() string {
	text := u.Why.String()
	if !u.EmbargoedUntil.IsZero() {
		text += "; embargoed until " + u.EmbargoedUntil.UTC().Format(time.RFC3339)
	}
	return text
}

// Obstacle is, in one word, why no node takes a unit.
type Obstacle string

// The obstacles, from the smallest to the largest. If nodes have different ones, the smallest
// counts.
const (
	Embargoed       Obstacle = "embargoed"      // a node could take it once an embargo has ended
	Full            Obstacle = "full"           // the nodes that could take it are full
	LabelsMissing   Obstacle = "labels"         // nodes run its kind, but none has the labels it requires
	KindMissing     Obstacle = "kind"           // no node that takes daemons runs its kind
	NoDaemons       Obstacle = "no_daemons"     // no node takes daemons
	Cordoned        Obstacle = "cordoned"       // the nodes that could take it are cordoned
	NodeUnavailable Obstacle = "node_state"     // all nodes are late, draining or deaf
	NoNode          Obstacle = "no_node"        // there is no node
	Unadvertised    Obstacle = "not_advertised" // no node advertises its daemon
	InQuarantine    Obstacle = "quarantined"    // its daemon failed on several nodes
)

// Obstacles returns all obstacles.
func Obstacles() []Obstacle {
	return []Obstacle{Embargoed, Full, LabelsMissing, KindMissing, NoDaemons, Cordoned, NodeUnavailable, NoNode, Unadvertised, InQuarantine}
}

// Obstacle returns the smallest obstacle of all nodes.
func (u *Unplaced) Obstacle() Obstacle {
	if u.Why.Rule == NotAdvertised {
		return Unadvertised
	}
	if u.Why.Rule == Quarantined {
		return InQuarantine
	}
	nearest, rank := NoNode, 0
	for f := range u.Why.Filtered {
		o, r := NodeUnavailable, 1
		switch {
		case f == FilterEmbargoed:
			o, r = Embargoed, 7
		case f == FilterFull:
			o, r = Full, 6
		case strings.HasPrefix(string(f), string(FilterLabels)):
			o, r = LabelsMissing, 4
		case f == FilterKind:
			o, r = KindMissing, 3
		case f == FilterNoDaemons:
			o, r = NoDaemons, 2
		case f == FilterCordoned:
			o, r = Cordoned, 5
		}
		if r > rank {
			nearest, rank = o, r
		}
	}
	return nearest
}

// Oldest returns the unit that has been free for longest; nil if there is none.
func Oldest(all []Unplaced) *Unplaced {
	var oldest *Unplaced
	for i := range all {
		if u := &all[i]; oldest == nil || cmp.Or(u.Since.Compare(oldest.Since), u.Unit.Compare(oldest.Unit)) < 0 {
			oldest = u
		}
	}
	return oldest
}
