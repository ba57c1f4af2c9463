// Package plan decides which node runs which unit, and gives the reason for each decision.
//
// [Make] is a pure function of the cluster's snapshot. The same nodes and rows, in whatever order, give the same
// plan, sorted by unit and with at most one decision per unit. It reads no clock and does no I/O. The leader
// commits what it returns. Anybody can recompute a placement with [Explain].
//
// # Which specs are in force
//
// A leader does not plan with its own registry, but with the union of what all present nodes advertise. A leader
// of an older version can therefore place a daemon that only newer nodes know. If two nodes describe one daemon
// differently, the higher revision wins, then the process that registered last, and the disagreement is reported.
// A process that was away and returns keeps the time of its first registration. The adverts of late and draining
// nodes count too, so that a short absence retires nothing. Those of removed nodes do not count. A spec
// that cannot be planned is ignored and reported, and affects no other daemon.
//
// # What happens to a unit
//
//	row                       daemon advertised, index wanted   index beyond Instances   nobody advertises it
//	none                      declare                           –                        –
//	free                      place                             retire                   wait; retire after RetireAfter
//	free and retired          declare again                     –                        –
//	assigning, active         keep; revoke in a round           revoke                   keep; revoke from a live node
//	                          of rebalancing                                             that has taken it back
//	… on a leaving node       revoke                            revoke                   revoke
//	revoking                  keep                              keep                     keep
//	unknown state             keep, listed                      keep, listed             keep, listed
//
// A unit with a key is wanted if its key was not removed (its row is not retired) and the spec in force is keyed. Its row
// is neither declared nor retired by a plan, because only a change of keys says which there are. A unit whose key was
// removed is revoked whoever advertises the daemon. A node has taken a daemon back if it is live, its advert does not
// have the daemon, and it does not run the daemon's kind. It gives the units up, also while others advertise the daemon.
//
// A leaving node is one that drains or is deaf. A node in a state that this version does not know keeps its units.
// A unit that has a holder is never placed. Whether a deadline has passed or a holder is dead is not decided here,
// so two plans cannot give one unit to two nodes.
//
// # Where a unit goes
//
// Candidates are live nodes that run daemons at all and this kind of daemon, whose labels contain everything that
// the spec requires, that with the unit hold no more weight than their limit (node.Traits.MaxWeight), and that have no
// embargo for this unit. The unit goes to the candidate with the lowest
//
//  1. sick nodes come last
//  2. load with the unit: (Σ weight of the units it holds + weight of this unit) ÷ capacity
//  3. number of units of the same daemon
//  4. number of units of the same daemon in its zone (the value of the label Spec.Spread)
//  5. stable hash of the unit, the zone and the incarnation
//
// A node holds the units that are assigning, active or revoking there, and those that this plan has placed so
// far. The load includes the unit itself. Otherwise a heavy unit would fill an empty small node before a large
// one that can carry it more easily. With equal capacities this makes no difference.
//
// Heavier units are placed first, then in order of units. This is Graham's rule "longest processing time first":
// on equal, empty nodes its highest load is at most 4/3 of the optimum (SIAM J. Appl. Math. 17, 1969). Units of
// equal weight on such nodes are spread evenly, within one unit.
//
// A limit is hard: a unit that fits nowhere waits and is listed as unplaced, also after the loss of many nodes, so that
// those that are left do not drown. It never takes a unit from the node that runs it.
//
// After a failure, the unit's embargo keeps it away from the node on which it failed; no rule here does. If no
// other node can take the unit, it waits and is listed as unplaced.
//
// # When units wait, and when they are moved
//
// A burst is at least two nodes, and more than half of all, that joined or left within a settle window. While one
// lasts, a free unit waits, but for no more than one settle window since it became free. Without that, the first of six
// new nodes would get everything. Nodes that were declared dead are no burst: waiting would only lengthen a failover.
//
// Once nothing has joined or left for a settle window, and no node is late or deaf, a plan may move running units so
// that loads become even: at most MaxMoves of them, and only when no unit is draining, for an earlier round or a node
// that leaves.
// While nodes run different versions, the window is 60 times as long. Even is: no unit could go to a node whose
// load would then still be lower than the load of its own node. With equal weights and capacities, loads then differ by at most one
// unit. Units of daemons with NoRebalance or in quarantine, and units that fail, are not moved, and none is moved to a node on which it has
// failed.
//
// # Sick daemons and sick nodes
//
// A daemon that failed three times, and on two nodes or more, is quarantined: its free units that failed wait for a minute
// after a node gave one up the last time, twice as long with each further time, at most eight minutes. Then one unit at a time
// is tried, and each has its turn. Units that have not failed are tried before them and without that wait, one at a time
// until one has run for a minute, and then all at once. A unit that an operator moves or restarts does not wait. A node on
// which three daemons failed that are not quarantined is sick: it is given a unit only if no other node can take it. At most
// half of the live nodes are sick. Failures count for ten minutes after their embargo, and for an hour to keep a daemon in
// quarantine of which something else has failed so lately. A node that was lost twice within
// LossMemory flaps. It is sick, too, until it has been steady for StableAfter, twice as long with each further loss.
//
// # Cost
//
// Eligibility is decided per node and distinct set of requirements (kind, labels, label to spread by), not per
// node and unit. The eligible nodes of one set form a tournament tree of zones over tournament trees of nodes, in
// which placing a unit takes O(log nodes). A plan costs O(units · log nodes + requirements · nodes). If no unit
// is free it costs O(units + nodes + adverts). Memory is linear in the input, plus one tree per set of
// requirements.
//
// # What is not done
//
// The leader (package member) decides deadlines, deaths, the settle window of a new cluster, when a round of moves is
// due, and the size of a commit.
package plan

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Input is everything that a plan depends on. Make modifies nothing in it. Rows must have distinct units, and
// nodes distinct incarnations.
type Input struct {
	Now time.Time // the store's clock
	// RetireAfter is how long a unit must have been free, with no present node advertising its daemon, before its
	// row is retired. Zero keeps such rows.
	RetireAfter time.Duration
	// SettleWindow is how long joins and leaves are waited out: before units are placed if there are many at once,
	// and before units are moved in any case. Zero waits for nothing.
	SettleWindow time.Duration
	// StableAfter is how long a node that was lost twice must have been a member before it gets units as any other; it
	// doubles with each further loss. Zero judges no node.
	StableAfter time.Duration
	// MaxMoves is how many running units one plan may move to make loads even. Zero moves none.
	MaxMoves int
	NoRounds bool            // no plan of this leader moves units to make loads even, so nothing waits for one
	NoRoom   bool            // the store has no room for more units, so none are declared
	Nodes    []Node          // in any order
	Units    []daemon.Record // in any order
	// Term is the present term. Commands are the operators' open commands, oldest first.
	Term     node.Term
	Commands []daemon.Command
}

// DefaultMaxMoves is how many units a round moves if nothing else is configured.
const DefaultMaxMoves = 100

// Node is a member as the leader sees it.
type Node struct {
	Member node.Member
	// Advert is what the node advertises; nil is nothing. Nodes with equal adverts should share one, which makes
	// plans cheaper.
	Advert *daemon.Advert
	// State is the leader's judgement of the node. Only a Live node is given units. A Removed node counts as
	// dead, whatever its row says.
	State node.State
}

func (n *Node) present() bool { return n.State != node.Removed && n.Member.Present() }

// leaving reports whether the node must give back its units, and by which rule.
func (n *Node) leaving() (Rule, bool) {
	switch n.State {
	case node.Draining:
		return NodeDraining, true
	case node.Deaf:
		return NodeDeaf, true
	}
	return "", false
}

// Plan is what a leader should do, and what it cannot do.
type Plan struct {
	Decisions []Decision // sorted by unit, one per unit
	Unplaced  []Unplaced // free units that no node can take, sorted by unit
	Unknown   []Unknown  // units in a state that this version does not know, sorted by unit
	Specs     Specs      // the specs in force
	// Disagreements are specs that are advertised but not in force, sorted by daemon, then by loser.
	Disagreements []Disagreement
	// Verdicts are the daemons that are quarantined and the nodes that are sick.
	Verdicts []Verdict
	// Balanced is set if MaxMoves allowed moves, the membership is settled, no unit drains or starts, and no move would
	// make loads more even.
	Balanced bool
	// DueAt is when the same input may give another plan, because something waits for the membership to settle;
	// zero if nothing does.
	DueAt time.Time
	// Answers are what to write about open commands, in no particular order and at most one for each.
	Answers []Answer
	// HandOver asks the leader to resign; nil if no command does.
	HandOver *HandOver

	standing []daemon.Command
}

// Decision is one change that the leader should make.
type Decision struct {
	Unit daemon.Unit `json:"unit"`
	// Step is Assign or Revoke, or "" to write only the row: declare, declare again or retire.
	Step daemon.Step `json:"step,omitempty"`
	// Generation and State are those that the plan saw. The row must still have them when the change is applied.
	// Both are zero if there is no row.
	Generation int64        `json:"generation"`
	State      daemon.State `json:"state,omitempty"`
	// To is the node that gets the unit (Step Assign).
	To node.Identity `json:"to,omitzero"`
	// Spec is the spec in force; zero if nobody advertises the daemon.
	Spec daemon.Spec `json:"-"`
	// Retired is the new value in the row (Step "").
	Retired bool `json:"retired,omitempty"`
	Reason  Why  `json:"why"`

	embargoedUntil time.Time // of a draft without a node: see Unplaced.EmbargoedUntil
}

// Unknown is a unit in a state that a newer version wrote. The plan leaves it alone.
type Unknown struct {
	Unit  daemon.Unit
	State daemon.State
}

// Disagreement is a spec that is advertised but not in force.
type Disagreement struct {
	Daemon daemon.ID
	// Winner is the node whose spec is in force; zero if there is no usable spec. Of several nodes that share an
	// advert, Winner and Loser are those that registered last.
	Winner, Loser node.Identity
	// What is the difference, as "instances 4, not 2", or what makes the loser's spec unusable.
	What string
	// Why is the reason why the winner's spec counts, as "its revision is higher"; empty if there is no winner.
	Why string
}

// Make returns what should change. The package comment has the rules.
func Make(in Input) Plan {
	p := decideAll(in)
	p.placeAll()
	p.rebalance()
	p.orders.answerRebalances()
	return p.finish()
}
