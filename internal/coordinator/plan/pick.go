package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
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
	specs, wanted := make([]daemon.Spec, len(jobs)), make([]*daemon.Spec, len(jobs))
	for i, g := range jobs {
		specs[i] = g.advertised.WithDefaults()
		g.spec, wanted[i] = &specs[i], &specs[i]
	}
	p.placement = newFloor(p, wanted)
	for _, g := range jobs {
		j := p.placement.begin(g)
		var trials []int // decisions about units of a quarantined daemon
		q := p.ledger.quarantined[g.id]
		for i := g.lo; i < g.hi; i++ {
			switch d := &p.decisions[i]; {
			case d.Step != daemon.Assign || d.Reason.Rule != "":
			case q != nil && !p.exempt(q, p.rows[i]):
				trials = append(trials, i)
			default:
				p.place(j, d, p.rows[i])
			}
		}
		p.tryOne(j, q, trials)
		j.end()
	}
}

// tryOne places one unit of a quarantined daemon. The others wait.
func (p *planner) tryOne(j *daemonPlacement, q *quarantine, trials []int) {
	slices.SortStableFunc(trials, func(a, b int) int { return p.byTrial(p.rows[a], p.rows[b]) })
	trying := false
	for _, i := range trials {
		d := &p.decisions[i]
		if trying {
			d.Reason = q.waits(anotherTried)
			continue
		}
		p.place(j, d, p.rows[i])
		trying = d.To != (node.Identity{})
	}
}

// place finds a node for one unit.
func (p *planner) place(j *daemonPlacement, d *Decision, row *daemon.Record) {
	barred := j.embargoed(row, p.active)
	for _, s := range barred {
		j.setTaken(s)
	}
	place := hash(d.Unit.String())
	best, requested := p.orders.preferred(j, d.Unit, barred)
	if best == nil {
		best = j.pick(place)
	}
	d.Reason = Why{Rule: NoEligibleNode}
	if best == nil {
		d.embargoedUntil = j.embargoedUntil(row, barred, p.active)
	} else {
		j.setTaken(best)
		d.To, d.Reason = best.Member.Identity, j.choice(best, j.pick(place))
		if requested != "" {
			d.Reason = Why{Rule: requested, Chosen: best.Member.Name}
		}
		d.Reason.Previous = left(row)
	}
	d.Reason.Filtered = with(j.unfitNodes(), FilterEmbargoed, barred)
	if p.watch != nil && p.watch.unit == d.Unit {
		p.watch.record(p, j, d, row)
	}
	if best != nil {
		j.assign(best)
	}
	for _, s := range barred {
		j.setCandidate(s)
	}
}

// active reports whether the embargo is in force.
func (p *planner) active(e daemon.Embargo) bool { return e.InForce(p.in.Now) }

// rank returns the node's complete key, with the zone's count.
func (j *daemonPlacement) rank(s *candidate) key {
	k := j.floor.rank(s)
	if z := j.zoneOf(s); z != nil {
		k.zone = z.units
	}
	return k
}

// choice returns what made the best node better than the second, which may be nil.
func (j *daemonPlacement) choice(best, second *candidate) Why {
	w := Why{Rule: OnlyCandidate, Chosen: best.Member.Name}
	if second == nil {
		return w
	}
	w.RunnerUp = second.Member.Name
	switch a, b := j.rank(best), j.rank(second); {
	case a.sick != b.sick:
		w.Rule = HealthyNode
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

// maxLeft bounds, in bytes, how much of the end reason of an assignment is repeated. An agent may
// have written it.
const maxLeft = 200

// left returns which node held the unit before and why that ended; "" if no node held it, or no
// reason is known.
func left(row *daemon.Record) string {
	if row.State != daemon.Deleted || row.Holder.Name == "" || row.Reason == "" {
		return ""
	}
	reason, _, more := strings.Cut(row.Reason, "\n")
	if len(reason) > maxLeft {
		reason, more = strings.ToValidUTF8(reason[:maxLeft], ""), true
	}
	if more {
		reason += "…"
	}
	return row.Holder.Name + ": " + reason
}

// unfitNodes returns the nodes that are no candidates for any unit of the daemon now.
func (j *daemonPlacement) unfitNodes() map[Filter]Names {
	if j.unfitKnown {
		return j.unfit
	}
	var full []*candidate
	for _, s := range j.limited {
		if s.full(j.floor.weight) {
			full = append(full, s)
		}
	}
	j.unfit, j.unfitKnown = with(j.filtered, FilterFull, full), true
	return j.unfit
}

// with returns the filtered nodes and those that one more filter excludes.
func with(filtered map[Filter]Names, f Filter, excluded []*candidate) map[Filter]Names {
	if len(excluded) == 0 {
		return filtered
	}
	names := make([]string, len(excluded))
	for i, s := range excluded {
		names[i] = s.Member.Name
	}
	out := shorten(map[Filter][]string{f: names})
	maps.Copy(out, filtered)
	return out
}
