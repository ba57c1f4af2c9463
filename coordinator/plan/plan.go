// Package plan decides which node runs which unit, and says why.
//
// [Make] is a pure function: the same nodes and rows in, in whatever order, the same plan out,
// sorted by unit and with at most one decision per unit. It reads no clock and does no I/O; the
// leader commits what it returns, and anybody can recompute a placement with [Explain].
//
// # Which specs count
//
// A leader does not plan over its own registry but over the union of what present nodes
// advertise; a version that leads may know nothing of a daemon that a newer one brings. Where two
// nodes describe one daemon differently, the higher revision wins, then the process that registered
// last, and the disagreement is reported. A process that was away and returns keeps its first
// registration. A late, draining or cordoned node still advertises, so that a short absence retires
// nothing; a removed one does not. A spec that cannot be planned is ignored and reported; it
// disturbs no other daemon.
//
// # What happens to a unit
//
//	row                       daemon advertised, index wanted   index beyond Instances   nobody advertises it
//	none                      declare                           –                        –
//	free                      place                             retire                   wait; retire after RetireAfter
//	free and retired          declare again                     –                        –
//	assigning, active         keep                              revoke                   keep
//	… on a leaving node       revoke                            revoke                   revoke
//	revoking                  keep                              keep                     keep
//	unknown state             keep, listed                      keep, listed             keep, listed
//
// A leaving node is one that drains or is deaf. A cordoned node keeps what it has. A unit that
// somebody holds is never placed: whether a deadline has passed or a holder is dead is not decided
// here, so two plans cannot give one unit to two nodes.
//
// # Where a unit goes
//
// Candidates are live nodes that run daemons at all and this kind of daemon, whose labels contain
// all that the spec requires, and that are not embargoed for this unit. Of these the least of
//
//  1. the load it would have with the unit: Σ weight of what it holds, plus the unit's, ÷ capacity
//  2. the units of the same daemon it holds
//  3. the units of the same daemon in its zone (the value of the label Spec.Spread)
//  4. a stable hash of the unit, the zone and the incarnation
//
// gets it. What it holds is what is assigning, active or revoking there, and what this plan has
// placed so far. The load counts the unit itself because a heavy unit would otherwise fill an empty
// small node before a large one that hardly notices it; where capacities are equal this makes no
// difference. Heavier units go first, then in order of units: Graham's longest processing time
// first, whose highest load on equal, empty nodes is at most 4/3 of the best possible (SIAM J. Appl.
// Math. 17, 1969). Equal weights on such nodes come out within one unit of even.
//
// A unit that was just freed by a failure is kept away from where it failed by its embargo, not by
// a rule here; if no other node can take it, it waits and is listed.
//
// # Cost
//
// Eligibility is decided per node and distinct set of requirements (kind, labels, label to spread
// by), not per node and unit. The nodes that meet one are kept as a tournament of zones over a
// tournament of nodes, in which a unit is placed in O(log nodes). A plan costs
// O(units · log nodes + requirements · nodes); one in which nothing is free costs
// O(units + nodes + adverts). Memory is linear in what comes in, but for one tournament per set of
// requirements.
//
// # What is not done
//
// Nothing that runs is moved to even out load: a node that joins gets what becomes free. A bounded
// round of moves after membership has settled belongs here, between revoking and placing. Deadlines,
// deaths, the settle window of a new cluster and the size of a commit are the leader's.
package plan

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Input is everything a plan is made from. Nothing in it is written to. Rows have distinct units,
// nodes distinct incarnations.
type Input struct {
	Now time.Time // the store's clock
	// RetireAfter is how long a unit must have been free, and its daemon unknown to every present
	// node, before its row is retired. Zero keeps such rows.
	RetireAfter time.Duration
	Nodes       []Node          // in any order
	Units       []daemon.Record // in any order
}

// Node is a member as the leader sees it.
type Node struct {
	Member node.Member
	// Advert is what it advertises; nil is nothing. Replicas share one: plans are cheaper so.
	Advert *daemon.Advert
	// State is what the judge made of the member. Only a Live node is given anything; Removed
	// means dead, whatever its row says.
	State node.State
}

func (n *Node) present() bool { return n.State != node.Removed && n.Member.Present() }

// leaving reports whether the node must give back what it holds, and by which rule.
func (n *Node) leaving() (Rule, bool) {
	switch n.State {
	case node.Draining:
		return NodeDraining, true
	case node.Deaf:
		return NodeDeaf, true
	}
	return "", false
}

// Plan is what a leader should do, and what it cannot.
type Plan struct {
	Decisions []Decision // sorted by unit, one per unit
	Unplaced  []Unplaced // free units that nobody can take, sorted by unit
	Unknown   []Unknown  // units whose row this version cannot read, sorted by unit
	Specs     Specs      // in force
	// Disagreements are specs that were advertised and are not in force, sorted by daemon, then by
	// loser.
	Disagreements []Disagreement
}

// Decision is one change the leader should make.
type Decision struct {
	Unit daemon.Unit `json:"unit"`
	// Step is Assign or Revoke, or "" to write the row only: declare, declare again or retire.
	Step daemon.Step `json:"step,omitempty"`
	// Generation and State are what the plan saw and the change must find; both zero: no row.
	Generation int64        `json:"generation"`
	State      daemon.State `json:"state,omitempty"`
	// To is the node that gets the unit (Assign).
	To node.Identity `json:"to,omitzero"`
	// Spec is the spec in force; zero if nobody advertises the daemon.
	Spec daemon.Spec `json:"-"`
	// Retired is what the row should say (Step "").
	Retired bool `json:"retired,omitempty"`
	Why     Why  `json:"why"`

	embargoedUntil time.Time // of a draft that found no node: see Unplaced.EmbargoedUntil
}

// Unknown is a unit in a state that a newer version wrote. It is left alone.
type Unknown struct {
	Unit  daemon.Unit
	State daemon.State
}

// Disagreement is a spec that was advertised and is not in force.
type Disagreement struct {
	Daemon daemon.ID
	// Winner is the node whose spec is in force; zero if no usable one was advertised. Of the
	// nodes that share an advert the one that registered last is named.
	Winner, Loser node.Identity
	// What differs, as "instances 4, not 2", or what makes the loser's spec unusable.
	What string
	// Why the winner's counts, as "its revision is higher"; empty if there is no winner.
	Why string
}

// Make decides what should change. See the package comment for the rules.
func Make(in Input) Plan {
	p := survey(in)
	p.placeAll()
	return p.finish()
}
