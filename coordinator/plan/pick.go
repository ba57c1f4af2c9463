package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/emitd/emitd/daemon"
)

// placeAll finds nodes for all units to place, heavy daemons first.
func (p *planner) placeAll() {
	var jobs []*group
	for i := range p.groups {
		if p.groups[i].place > 0 {
			jobs = append(jobs, &p.groups[i])
		}
	}
	if len(jobs) == 0 {
		return
	}
	slices.SortStableFunc(jobs, func(a, b *group) int { return cmp.Compare(b.weight(), a.weight()) })
	wanted := make([]*daemon.Spec, len(jobs))
	for i, g := range jobs {
		wanted[i] = g.spec
	}
	p.floor = newFloor(p, wanted)
	for _, g := range jobs {
		j := p.begin(g)
		for i := g.lo; i < g.hi; i++ {
			if p.decisions[i].Step == daemon.Assign {
				p.place(j, &p.decisions[i], p.rows[i])
			}
		}
		j.end()
	}
}

// job is the placing of one daemon's units.
type job struct {
	*fit
	spec    *daemon.Spec
	weight  int64
	inZone  []int   // units of the daemon by zone
	holders []*site // that hold units of the daemon
}

// begin counts where units of the daemon are.
func (p *planner) begin(g *group) *job {
	j := &job{fit: p.floor.fit(g.spec), spec: g.spec, weight: g.weight()}
	j.inZone = make([]int, len(j.zones))
	for _, row := range g.rows {
		if s := p.floor.holder(row); s != nil {
			j.count(s)
		}
	}
	return j
}

// end forgets the counts: the next daemon has its own.
func (j *job) end() {
	for _, s := range j.holders {
		s.units = 0
		s.show()
	}
}

// count notes one more unit of the daemon at a node.
func (j *job) count(s *site) {
	if zone, ok := j.zones[s.Member.Labels[j.spec.Spread]]; ok {
		j.inZone[zone]++
	}
	if s.units == 0 {
		j.holders = append(j.holders, s)
	}
	s.units++
	s.show()
}

// place finds a node for one unit.
func (p *planner) place(j *job, d *Decision, row *daemon.Record) {
	barred := p.barred(j, row)
	for _, s := range barred {
		s.hide()
	}
	at := hash(d.Unit.String())
	best, rank := j.pick(at)
	filtered := j.filtered
	if len(barred) > 0 {
		filtered = withBarred(filtered, barred)
	}
	if best == nil {
		d.Why = Why{Rule: NoEligibleNode, Filtered: filtered}
	} else {
		best.hide()
		second, next := j.pick(at)
		d.To = best.Member.Identity
		d.Why = choice(best, rank, second, next)
		d.Why.Filtered = filtered
	}
	if p.watch != nil && p.watch.unit == d.Unit {
		p.watch.record(p, j, d, row)
	}
	if best != nil {
		best.held += j.weight
		j.count(best)
	}
	for _, s := range barred {
		s.show()
	}
}

// barred returns the nodes that could take the unit but for an embargo.
func (p *planner) barred(j *job, row *daemon.Record) []*site {
	var out []*site
	for _, e := range row.Embargoes {
		s := p.floor.sites[e.Incarnation]
		if s != nil && p.active(e) && j.takes[s.class.number] && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// active reports whether the embargo still holds.
func (p *planner) active(e daemon.Embargo) bool { return e.Until.IsZero() || e.Until.After(p.in.Now) }

func withBarred(filtered map[Filter]Names, barred []*site) map[Filter]Names {
	out := maps.Clone(filtered)
	if out == nil {
		out = map[Filter]Names{}
	}
	for _, s := range barred {
		out[FilterEmbargoed] = out[FilterEmbargoed].with(1, []string{s.Member.Name})
	}
	return out
}

// rank is what candidates are compared by; less is better.
type rank struct {
	load  float64 // with the unit
	units int     // of the daemon, there
	zone  int     // of the daemon, in the zone
	away  uint64  // the way round the ring from the unit to the node: the stable hash
}

func (r rank) compare(o rank) int {
	switch {
	case r.load != o.load:
		return cmp.Compare(r.load, o.load)
	case r.units != o.units:
		return cmp.Compare(r.units, o.units)
	case r.zone != o.zone:
		return cmp.Compare(r.zone, o.zone)
	}
	return cmp.Compare(r.away, o.away)
}

// pick returns the best node for a unit at a place on the ring, and its rank; nil if there is none.
func (j *job) pick(at uint64) (*site, rank) {
	var (
		best *site
		lead rank
	)
	for i, c := range j.classes {
		k := c.tree.least()
		if k == taken {
			continue
		}
		r := rank{load: j.load(k.held, c), units: k.units, zone: j.inZone[j.zone[i]]}
		if best != nil && r.compare(lead) > 0 {
			continue // worse, however near
		}
		s := c.sites[c.tree.next(c.from(at))]
		r.away = s.at - at
		if best == nil || cmp.Or(r.compare(lead), cmp.Compare(s.Member.Incarnation, best.Member.Incarnation)) < 0 {
			best, lead = s, r
		}
	}
	return best, lead
}

// load is what a node of the class that holds so much would have with one more unit. Equal ratios
// give equal floats: both operands are exact.
func (j *job) load(held int64, c *class) float64 { return float64(held+j.weight) / c.capacity }

// rank returns what one node is compared by. A zone without candidates counts as empty.
func (j *job) rank(s *site, at uint64) rank {
	r := rank{load: j.load(s.held, s.class), units: s.units, away: s.at - at}
	if zone, ok := j.zones[s.Member.Labels[j.spec.Spread]]; ok {
		r.zone = j.inZone[zone]
	}
	return r
}

// choice says what made the best better than the second.
func choice(best *site, a rank, second *site, b rank) Why {
	w := Why{Chosen: best.Member.Name}
	if second == nil {
		w.Rule = OnlyCandidate
		return w
	}
	w.RunnerUp = second.Member.Name
	switch {
	case a.load != b.load:
		w.Rule, w.Value, w.RunnerUpValue = LeastLoaded, a.load, b.load
	case a.units != b.units:
		w.Rule, w.Value, w.RunnerUpValue = FewerUnits, float64(a.units), float64(b.units)
	case a.zone != b.zone:
		w.Rule, w.Value, w.RunnerUpValue = ZoneSpread, float64(a.zone), float64(b.zone)
	default:
		w.Rule = StableHash
	}
	return w
}
