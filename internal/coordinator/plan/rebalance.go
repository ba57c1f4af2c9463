package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// rebalance decides which running units to revoke so that the nodes' loads become even. Each is a graceful hand-over:
// once its run has ended, the unit is placed as any other, and the node with the lowest load gets it.
//
// One move takes a unit from the node with the highest load to one whose load with the unit is still lower than
// the load of the first. With equal weights no sequence of moves is shorter: each move takes a unit from a node that
// has too many, and gives it to one that has too few. A move lowers the sum of the squared loads, so rounds come to
// an end. A unit that was moved is not moved back.
func (p *planner) rebalance() {
	if p.in.MaxMoves <= 0 {
		return
	}
	if p.membership.unsettled != "" {
		p.dueAt(p.membership.at)
		return
	}
	if p.changing() {
		return // one round at a time: its end is an event, and so a reason for the next plan
	}
	b := newBalance(p)
	if b.maybeUneven() {
		b.collect()
		for len(p.moves) < p.in.MaxMoves && b.move() {
		}
	}
	// A unit that is about to start may still fail there, and go elsewhere.
	p.balanced = len(p.moves) == 0 && !p.any(daemon.Assigning)
	slices.SortFunc(p.moves, func(x, y Decision) int { return x.Unit.Compare(y.Unit) })
}

// changing reports whether this plan decides anything, or a unit is on its way from one node to another.
func (p *planner) changing() bool {
	for i := range p.decisions {
		if !p.decisions[i].draft() {
			return true
		}
	}
	return p.any(daemon.Revoking)
}

// any reports whether there is a unit in that state.
func (p *planner) any(s daemon.State) bool {
	return slices.ContainsFunc(p.in.Units, func(r daemon.Record) bool { return r.State == s })
}

// balance is the nodes' loads while moves are chosen.
type balance struct {
	p        *planner
	floor    *placement
	lightest int64 // the smallest weight of a unit that a node holds
	takers   []*candidate
	givers   map[*candidate]*giver
}

// giver is a node with the units that may be moved away from it, by class.
type giver struct {
	site    *candidate
	classes []*class // heaviest first
}

// class is units of one weight that the same nodes can take, in the order in which they are moved.
type class struct {
	weight int64
	takers *eligible
	units  []movable
	// barred keeps the unit from nodes, whether or not the embargo is still in force: a unit is not moved to where it
	// has failed.
	barred []daemon.Embargo
}

// movable is a unit that may be moved.
type movable struct {
	row   *daemon.Record
	group *group
	rank  int // it is the rank-th unit of its daemon on the node
	hash  uint64
}

func newBalance(p *planner) *balance {
	b := &balance{p: p, lightest: maxWeight, givers: map[*candidate]*giver{}}
	for i := range p.groups {
		if g := &p.groups[i]; g.advertised != nil && len(g.rows) > 0 {
			b.lightest = min(b.lightest, g.weight())
		}
	}
	b.floor = newFloor(p, nil)
	for _, s := range b.floor.order {
		if s.State == node.Live && !s.Member.NoDaemons && !s.sick && !p.orders.cordoned(s.Member.Name) {
			b.takers = append(b.takers, s)
		}
	}
	return b
}

// maybeUneven reports whether moving the lightest unit from some node to another could help, if every node could take
// every unit. In an even cluster this is the whole cost of a plan with rebalancing.
func (b *balance) maybeUneven() bool {
	if len(b.takers) < 1 {
		return false
	}
	least := b.takers[0]
	for _, s := range b.takers {
		if s.load(b.lightest) < least.load(b.lightest) {
			least = s
		}
	}
	return slices.ContainsFunc(b.floor.order, func(s *candidate) bool { return least.load(b.lightest) < s.load(0) })
}

// collect sorts the units that may be moved by node and class.
func (b *balance) collect() {
	specs := make([]daemon.Spec, len(b.p.groups))
	var wanted []*daemon.Spec
	for i := range b.p.groups {
		if g := &b.p.groups[i]; g.advertised != nil && len(g.rows) > 0 {
			specs[i] = g.advertised.WithDefaults()
			wanted = append(wanted, &specs[i])
		}
	}
	b.floor.index(wanted)
	for i := range b.p.groups {
		g := &b.p.groups[i]
		if g.advertised == nil || len(g.rows) == 0 || specs[i].NoRebalance || b.p.ledger.quarantined[g.id] != nil {
			continue // a unit of a quarantined daemon that left its node would wait
		}
		fit := b.floor.fit(&specs[i])
		ranks := map[*candidate]int{}
		for _, row := range g.rows {
			s := b.floor.holder(row)
			if s == nil || row.State != daemon.Active || row.Failures > 0 || b.p.orders.keeps(row) {
				continue
			}
			ranks[s]++
			c := b.giver(s).class(g.weight(), fit, row.Embargoes)
			c.units = append(c.units, movable{row: row, group: g, rank: ranks[s], hash: hash(row.Unit.String())})
		}
	}
	for _, from := range b.givers {
		slices.SortFunc(from.classes, func(x, y *class) int { return cmp.Compare(y.weight, x.weight) })
		for _, c := range from.classes {
			// Daemons with many units on the node give first, so that none loses or keeps all of its units.
			slices.SortFunc(c.units, func(x, y movable) int {
				return cmp.Or(cmp.Compare(y.rank, x.rank), cmp.Compare(x.hash, y.hash), x.row.Unit.Compare(y.row.Unit))
			})
		}
	}
}

func (b *balance) giver(s *candidate) *giver {
	from := b.givers[s]
	if from == nil {
		from = &giver{site: s}
		b.givers[s] = from
	}
	return from
}

// class returns the class of a unit, which is new if there is none. A unit with embargoes has one of its own.
func (from *giver) class(weight int64, takers *eligible, barred []daemon.Embargo) *class {
	for _, c := range from.classes {
		if c.weight == weight && c.takers == takers && len(c.barred)+len(barred) == 0 {
			return c
		}
	}
	c := &class{weight: weight, takers: takers, barred: barred}
	from.classes = append(from.classes, c)
	return c
}

// move adds one move to the plan, from the node with the highest load that has one to give. It reports whether there
// was one.
func (b *balance) move() bool {
	for len(b.givers) > 0 {
		var from *giver
		for _, g := range b.givers {
			if from == nil || before(g.site, from.site) {
				from = g
			}
		}
		if b.moveFrom(from) {
			return true
		}
		delete(b.givers, from.site)
	}
	return false
}

// before orders nodes by load, the highest first.
func before(a, b *candidate) bool {
	x, y := a.load(0), b.load(0)
	return x > y || x == y && cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Member.Incarnation, b.Member.Incarnation)) < 0
}

// maxClasses bounds how many classes of units one move compares, the heaviest first.
const maxClasses = 32

// moveFrom moves the unit of a node after which the higher of the two loads is lowest. Classes that no move helps are
// dropped: the other nodes' loads only grow, and this node's only falls.
func (b *balance) moveFrom(from *giver) bool {
	var best *class
	var to *candidate
	high := from.site.load(0)
	seen := 0
	from.classes = slices.DeleteFunc(from.classes, func(c *class) bool {
		if seen >= maxClasses {
			return false
		}
		var s *candidate
		if len(c.units) > 0 {
			s = c.taker(from.site)
		}
		if s == nil {
			return true
		}
		seen++
		if after := max(s.load(c.weight), from.site.load(-c.weight)); after < high {
			best, to, high = c, s, after
		}
		return false
	})
	if best == nil {
		return false
	}
	unit := best.units[0]
	best.units = best.units[1:]
	why := Why{Rule: Rebalancing, Note: fmt.Sprintf("from %s (load %.1f) to %s (%.1f with it)",
		from.site.Member.Name, from.site.load(0), to.Member.Name, to.load(best.weight))}
	b.p.moves = append(b.p.moves, Decision{
		Unit: unit.row.Unit, Step: daemon.Revoke, Generation: unit.row.Generation, State: unit.row.State,
		Spec: unit.group.advertised.WithDefaults(), Reason: why,
	})
	from.site.held -= best.weight
	to.held += best.weight
	return true
}

// taker returns the node that would have the lowest load with a unit of the class; nil if that is no less than what
// the unit's node has now.
func (c *class) taker(from *candidate) *candidate {
	var to *candidate
	low := from.load(0)
	for _, z := range c.takers.zones {
		for _, s := range z.sites {
			load := s.load(c.weight)
			if s == from || s.sick || s.full(c.weight) || load > low || load == low && (to == nil || s.at >= to.at) || c.bars(s) {
				continue
			}
			to, low = s, load
		}
	}
	return to
}

func (c *class) bars(s *candidate) bool {
	return slices.ContainsFunc(c.barred, func(e daemon.Embargo) bool { return e.Incarnation == s.Member.Incarnation })
}
