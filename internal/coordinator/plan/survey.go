package plan

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// planner is a plan while it is made.
type planner struct {
	in      Input
	union   *union
	groups  []group // sorted by daemon
	leaving map[node.Incarnation]Rule

	membership membership
	ledger     ledger
	moves      []Decision // of a round of rebalancing, sorted by unit
	balanced   bool       // a round was considered, and nothing is left to move
	due        time.Time  // see Plan.DueAt

	// decisions are sorted by unit. Those with the step Assign are drafts until To is set. Drafts
	// that no node can take become Unplaced. rows[i] is the row that decisions[i] was made from;
	// nil for none.
	decisions []Decision
	rows      []*daemon.Record
	unknown   []Unknown
	nodes     map[node.Incarnation]*Node            // the present ones; set by node
	common    *daemon.Advert                        // what all live nodes advertise; nil if they differ
	declared  map[*daemon.Advert]map[daemon.ID]bool // which daemons an advert declares; set by undeclared

	orders    *orders
	placement *placement    // set once there are units to place
	watch     *tableCapture // set by Explain
}

// group is one daemon: its spec (nil if nobody advertises it), its rows, and its decisions from lo
// up to hi.
type group struct {
	id         daemon.ID
	advertised *daemon.Spec   // as advertised, without defaults
	advert     *daemon.Advert // in which it was found
	spec       *daemon.Spec   // the same with defaults; set when units are placed
	rows       []*daemon.Record
	holders    []*candidate // the present nodes that hold the rows; nil for none; set once there is a placement
	lo, hi     int
	place      int // how many of the decisions are drafts to place
}

// instances is how many units with an index the daemon has.
func (g *group) instances() int {
	if g.advertised == nil {
		return 0
	}
	return instancesOf(g.advertised)
}

func instancesOf(spec *daemon.Spec) int {
	if spec.Keyed() {
		return 0
	}
	return cmp.Or(spec.Instances, 1)
}

// wants reports whether the unit of a row should run somewhere.
func (g *group) wants(row *daemon.Record) bool {
	if row.Unit.Key != "" {
		return g.advertised != nil && g.advertised.Keyed() && !row.Retired
	}
	return row.Unit.Index < g.instances()
}

// unwanted returns the reason why the unit of a row should run nowhere.
func (g *group) unwanted(row *daemon.Record) Why {
	switch {
	case row.Unit.Key != "" && row.Retired:
		return Why{Rule: KeyRemoved}
	case row.Unit.Key != "" && g.advertised != nil:
		return Why{Rule: NotKeyed}
	}
	return instancesReduced(g)
}

// weight returns the weight of one unit. It counts as 1 if nobody advertises the daemon.
func (g *group) weight() int64 {
	if g.advertised == nil {
		return 1
	}
	return int64(cmp.Or(g.advertised.Weight, 1))
}

// decideAll goes through all daemons, known from specs or rows, and decides everything but placement.
func decideAll(in Input) *planner {
	p := &planner{in: in, union: newUnion(in.Nodes), membership: readMembership(&in), ledger: readLedger(&in)}
	p.readOrders()
	p.common = commonAdvert(in.Nodes)
	for i := range in.Nodes {
		n := &in.Nodes[i]
		rule, ok := n.leaving()
		if !ok && p.orders.drained(n.Member.Name) != nil {
			rule, ok = DrainRequested, true
		}
		if ok && n.present() {
			if p.leaving == nil {
				p.leaving = map[node.Incarnation]Rule{}
			}
			p.leaving[n.Member.Incarnation] = rule
		}
	}
	for _, v := range p.ledger.sick {
		p.dueAt(v.Until)
	}
	rows, words := sorted(in.Units), p.union.inForce
	p.reserve()
	for len(rows) > 0 || len(words) > 0 {
		g := group{lo: len(p.decisions)}
		if len(words) > 0 && (len(rows) == 0 || words[0].spec.ID <= rows[0].Unit.Daemon) {
			g.id, g.advertised, g.advert, words = words[0].spec.ID, words[0].spec, words[0].by.Advert, words[1:]
		} else {
			g.id = rows[0].Unit.Daemon
		}
		n := 0
		for n < len(rows) && rows[n].Unit.Daemon == g.id {
			n++
		}
		g.rows, rows = rows[:n], rows[n:]
		p.decideDaemon(&g)
		g.hi = len(p.decisions)
		p.groups = append(p.groups, g)
	}
	return p
}

// reserve allocates about as many decisions as there will be: one for each unit that is free or has
// no row.
func (p *planner) reserve() {
	free, missing := 0, -len(p.in.Units)
	for i := range p.in.Units {
		if p.in.Units[i].State.IsFree() {
			free++
		}
	}
	for _, w := range p.union.inForce {
		missing += instancesOf(w.spec)
	}
	n := free + max(missing, 0)
	p.decisions, p.rows = make([]Decision, 0, n), make([]*daemon.Record, 0, n)
	p.groups = make([]group, 0, len(p.union.inForce))
}

// sorted returns the rows in order of units. Stores list them in this order already.
func sorted(units []daemon.Record) []*daemon.Record {
	rows := make([]*daemon.Record, len(units))
	for i := range units {
		rows[i] = &units[i]
	}
	byUnit := func(a, b *daemon.Record) int { return a.Unit.Compare(b.Unit) }
	if !slices.IsSortedFunc(rows, byUnit) {
		slices.SortFunc(rows, byUnit)
	}
	return rows
}

// decideDaemon decides about the units of one daemon, those with a row and those without.
func (p *planner) decideDaemon(g *group) {
	next := 0 // lowest index not seen yet
	declare := func(below int) {
		for ; next < below && !p.in.NoRoom; next++ {
			p.decide(g, Decision{Unit: daemon.Unit{Daemon: g.id, Index: next}, Reason: Why{Rule: NewlyDeclared}}, nil)
		}
	}
	for _, row := range g.rows {
		if row.Unit.Key == "" {
			declare(min(row.Unit.Index, g.instances()))
			next = max(next, row.Unit.Index+1)
		} else {
			declare(g.instances()) // units with an index come first
		}
		p.decideRow(g, row)
	}
	declare(g.instances())
}

// decideRow decides about one row by the table of the package comment. It checks the state first,
// because this version must not touch a state that it does not know. A unit that is both unwanted
// and on a leaving node is revoked once, for the reason that is permanent.
func (p *planner) decideRow(g *group, row *daemon.Record) {
	wanted := g.wants(row)
	switch {
	case !row.State.Known():
		p.unknown = append(p.unknown, Unknown{Unit: row.Unit, State: row.State})
	case row.State.IsFree():
		p.decideFreeRow(g, row, wanted)
	case row.State != daemon.Revoking && !wanted && (g.advertised != nil || row.Unit.Key != "" && row.Retired):
		p.revoke(g, row, g.unwanted(row))
	case row.State != daemon.Revoking && p.leaving[row.Holder.Incarnation] != "":
		p.revoke(g, row, Why{Rule: p.leaving[row.Holder.Incarnation], Note: row.Holder.Name})
	case row.State != daemon.Revoking && p.undeclared(g, row):
		p.revoke(g, row, Why{Rule: NotDeclared, Note: row.Holder.Name})
	case row.Retired && wanted:
		p.write(g, row, false, Why{Rule: DeclaredAgain})
	case row.State != daemon.Revoking:
		if why, ok := p.orders.leaves(row); ok {
			p.revoke(g, row, why)
		}
	}
}

// decideFreeRow decides about a unit without a holder. A row that must be declared again is placed only
// by the next plan: there is one decision per unit and plan, so that each is guarded by what the
// plan has seen.
func (p *planner) decideFreeRow(g *group, row *daemon.Record, wanted bool) {
	switch {
	case wanted && row.Retired:
		p.write(g, row, false, Why{Rule: DeclaredAgain})
	case wanted && p.orders.paused(row.Unit) != nil:
	case wanted && p.waits(row):
	case wanted:
		if why, ok := p.quarantines(row); ok {
			p.decide(g, Decision{Unit: row.Unit, Step: daemon.Assign, Reason: why}, row)
			return
		}
		g.place++
		p.decide(g, Decision{Unit: row.Unit, Step: daemon.Assign}, row)
	case row.Retired:
	case row.Unit.Key != "" && g.advertised != nil:
		p.decide(g, Decision{Unit: row.Unit, Step: daemon.Assign, Reason: Why{Rule: NotAdvertised, Note: "with keys"}}, row)
	case row.Unit.Key != "": // only a change of keys ends it
		p.decide(g, Decision{Unit: row.Unit, Step: daemon.Assign, Reason: Why{Rule: NotAdvertised}}, row)
	case g.advertised != nil:
		p.write(g, row, true, instancesReduced(g))
	case p.in.RetireAfter > 0 && p.in.Now.Sub(row.Since) >= p.in.RetireAfter:
		p.write(g, row, true, Why{Rule: NotAdvertised, Note: "for " + p.in.RetireAfter.String()})
	default:
		p.decide(g, Decision{Unit: row.Unit, Step: daemon.Assign, Reason: Why{Rule: NotAdvertised}}, row)
	}
}

// undeclared reports whether the unit's holder is live and has taken the daemon back: it declares it no longer, and does
// not run its kind. A node that declares the daemon differently keeps its units.
func (p *planner) undeclared(g *group, row *daemon.Record) bool {
	if p.common != nil && p.common == g.advert {
		return false
	}
	n := p.node(row.Holder.Incarnation)
	if n == nil || n.State != node.Live || n.Advert == nil || n.Advert == g.advert {
		return false
	}
	if g.advertised != nil && n.Advert.RunsKind(cmp.Or(g.advertised.Kind, daemon.Kind(g.id))) {
		return false
	}
	declared, known := p.declared[n.Advert]
	if !known {
		declared = make(map[daemon.ID]bool, len(n.Advert.Specs))
		for i := range n.Advert.Specs {
			declared[n.Advert.Specs[i].ID] = true
		}
		if p.declared == nil {
			p.declared = map[*daemon.Advert]map[daemon.ID]bool{}
		}
		p.declared[n.Advert] = declared
	}
	return !declared[g.id]
}

// commonAdvert returns the advert that all live nodes share, or nil.
func commonAdvert(nodes []Node) *daemon.Advert {
	var common *daemon.Advert
	for i := range nodes {
		switch n := &nodes[i]; {
		case n.State != node.Live || n.Advert == nil || n.Advert == common:
		case common != nil:
			return nil
		default:
			common = n.Advert
		}
	}
	return common
}

// node returns the present node of a process, or nil.
func (p *planner) node(inc node.Incarnation) *Node {
	if p.nodes == nil {
		p.nodes = make(map[node.Incarnation]*Node, len(p.in.Nodes))
		for i := range p.in.Nodes {
			if n := &p.in.Nodes[i]; n.present() {
				p.nodes[n.Member.Incarnation] = n
			}
		}
	}
	return p.nodes[inc]
}

// instancesReduced returns the reason for decisions about units beyond Instances.
func instancesReduced(g *group) Why {
	return Why{Rule: InstancesReduced, Note: "to " + strconv.Itoa(g.instances())}
}

// revoke adds the decision to revoke a unit.
func (p *planner) revoke(g *group, row *daemon.Record, why Why) {
	p.decide(g, Decision{Unit: row.Unit, Step: daemon.Revoke, Reason: why}, row)
}

// write adds the decision to retire a row or to declare it again.
func (p *planner) write(g *group, row *daemon.Record, retired bool, why Why) {
	p.decide(g, Decision{Unit: row.Unit, Retired: retired, Reason: why}, row)
}

// decide adds a decision, guarded by the row it was made from.
func (p *planner) decide(g *group, d Decision, row *daemon.Record) {
	if row != nil {
		d.Generation, d.State = row.Generation, row.State
	}
	if g.advertised != nil {
		d.Spec = g.advertised.WithDefaults()
	}
	p.decisions, p.rows = append(p.decisions, d), append(p.rows, row)
}

// draft reports whether the decision is to assign, but no node was found.
func (d *Decision) draft() bool {
	if d.Step != daemon.Assign {
		return false
	}
	switch d.Reason.Rule {
	case NoEligibleNode, NotAdvertised, Quarantined:
		return true
	}
	return false
}

// finish returns the plan. Drafts without a node become Unplaced.
func (p *planner) finish() Plan {
	out := Plan{
		Unknown: p.unknown, Specs: Specs{p.union.inForce}, Disagreements: p.union.disagreements,
		Balanced: p.balanced, DueAt: p.due, Verdicts: p.ledger.verdicts(),
		Answers: p.orders.answers, HandOver: p.orders.handOver, standing: p.orders.inForce(),
	}
	made := p.decisions[:0]
	for i := range p.decisions {
		d := &p.decisions[i]
		if d.draft() {
			out.Unplaced = append(out.Unplaced, Unplaced{Unit: d.Unit, Since: p.rows[i].Since, EmbargoedUntil: d.embargoedUntil, Why: d.Reason})
		} else {
			made = append(made, *d)
		}
	}
	out.Decisions = made
	if len(p.moves) > 0 { // then nothing else was decided
		out.Decisions = p.moves
	}
	return out
}
