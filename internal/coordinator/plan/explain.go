package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Explanation is everything that decides where a unit goes, or would go.
type Explanation struct {
	Unit daemon.Unit `json:"unit"`
	// Decision is the plan's decision about the unit; nil if there is none.
	Decision *Decision `json:"decision,omitempty"`
	// Next is the node that gets the unit, or would get it if it were free and placed last in this
	// plan. It is the zero Identity if no node would. Why is the reason.
	Next node.Identity `json:"next,omitzero"`
	Why  Why           `json:"why"`
	Rows []Row         `json:"nodes"` // every present node, sorted by name
	// Declared says whose spec of the daemon is in force.
	Declared Declared `json:"declared"`
}

// Row is one node's part in the choice.
type Row struct {
	Node     node.Identity `json:"node"`
	State    node.State    `json:"state"`
	Eligible bool          `json:"eligible"`
	// Load is the node's load before the unit is placed, without the unit. Score is the load with
	// the unit; the lowest wins.
	Load  float64 `json:"load"`
	Score float64 `json:"score"`
	// Units and ZoneUnits are the numbers of units of the daemon on the node and in its zone.
	Units     int    `json:"units"`
	ZoneUnits int    `json:"zone_units"`
	Verdict   string `json:"verdict"`
}

// Explain recomputes the plan and returns what decided about one unit. It runs the code of [Make],
// so its choice is the same.
func Explain(in Input, u daemon.Unit) Explanation {
	p := decideAll(in)
	p.watch = &tableCapture{unit: u}
	p.placeAll()
	g, row := p.find(u)
	if p.watch.seen == nil {
		p.placeHypothetically(g, u, row)
	}
	out := *p.watch.seen
	var wins advertisedSpec
	if at, ok := find(p.union.inForce, u.Daemon); ok {
		wins = p.union.inForce[at]
	}
	out.Declared = declared(in.Nodes, wins, u.Daemon)
	p.rebalance()
	for _, d := range p.finish().Decisions {
		if d.Unit == u {
			out.Decision = &d
			break
		}
	}
	return out
}

// tableCapture captures the table of nodes for one unit at the moment when the unit is placed.
type tableCapture struct {
	unit daemon.Unit
	seen *Explanation
}

// find returns the group of the unit's daemon, and the unit's row if it has one.
func (p *planner) find(u daemon.Unit) (*group, *daemon.Record) {
	i, ok := slices.BinarySearchFunc(p.groups, u.Daemon, func(g group, id daemon.ID) int { return cmp.Compare(g.id, id) })
	if !ok {
		return &group{id: u.Daemon}, nil
	}
	g := &p.groups[i]
	for _, row := range g.rows {
		if row.Unit == u {
			return g, row
		}
	}
	return g, nil
}

// placeHypothetically places a unit that the plan does not place, as if it were free, after all others.
func (p *planner) placeHypothetically(g *group, u daemon.Unit, row *daemon.Record) {
	why, ok := g.neverPlaced(u)
	if row == nil {
		row = &daemon.Record{Unit: u, State: daemon.Unassigned}
	}
	if q := p.ledger.quarantined[u.Daemon]; !ok && q != nil && row.State.IsFree() && !p.exempt(q, row) {
		why, ok = Why{Rule: Quarantined, Note: q.Reason}, true
	}
	if ok {
		p.placement = newFloor(p, nil)
		p.watch.seen = &Explanation{Unit: u, Why: why, Rows: p.table(func(s *candidate) Row {
			return Row{Verdict: why.String()}
		})}
		return
	}
	spec := g.advertised.WithDefaults()
	g.spec = &spec
	p.placement = newFloor(p, []*daemon.Spec{g.spec})
	p.replay()
	rest := *g
	if s := p.placement.holder(row); s != nil {
		s.held -= g.weight()
		rest.holders = slices.Clone(g.holders)
		rest.holders[slices.Index(g.rows, row)] = nil
	}
	j := p.placement.begin(&rest)
	for _, d := range p.decisions[g.lo:g.hi] {
		if s := p.placement.sites[d.To.Incarnation]; s != nil {
			j.add(s)
		}
	}
	p.place(j, &Decision{Unit: u}, row)
	if seen := p.watch.seen; row.State.IsFree() && p.waits(row) && seen.Next != (node.Identity{}) {
		seen.Why.Note = "once no more nodes join or leave, at the latest at " + row.Since.Add(p.in.SettleWindow).UTC().Format(time.RFC3339)
	}
}

// neverPlaced returns why a unit is never placed, if that is so.
func (g *group) neverPlaced(u daemon.Unit) (Why, bool) {
	switch {
	case g.advertised == nil:
		return Why{Rule: NotAdvertised}, true
	case u.Key != "" && g.removed(u):
		return Why{Rule: KeyRemoved}, true
	case u.Key != "" && !g.advertised.Keyed():
		return Why{Rule: NotKeyed}, true
	case u.Key == "" && (u.Index < 0 || u.Index >= g.instances()):
		return instancesReduced(g), true
	}
	return Why{}, false
}

// removed reports whether a key is none of the daemon, or not any more.
func (g *group) removed(u daemon.Unit) bool {
	i, ok := slices.BinarySearchFunc(g.rows, u, func(r *daemon.Record, u daemon.Unit) int { return r.Unit.Compare(u) })
	return !ok || g.rows[i].Retired
}

// replay adds what the plan has placed so far to a new floor.
func (p *planner) replay() {
	for i := range p.groups {
		g := &p.groups[i]
		for _, d := range p.decisions[g.lo:g.hi] {
			if s := p.placement.sites[d.To.Incarnation]; s != nil {
				s.held += g.weight()
			}
		}
	}
}

// record captures the table of nodes for the unit that d was just decided for, before the unit
// counts as placed.
func (w *tableCapture) record(p *planner, j *daemonPlacement, d *Decision, row *daemon.Record) {
	w.seen = &Explanation{Unit: d.Unit, Next: d.To, Why: d.Reason}
	w.seen.Rows = p.table(func(s *candidate) Row {
		k := j.rank(s)
		out := Row{Score: k.load, Units: k.units, ZoneUnits: k.zone, Verdict: p.excluded(s, j.spec, row)}
		switch {
		case out.Verdict != "":
		case s.Member.Identity == d.To:
			out.Eligible = true
			out.Verdict = "next: " + Why{Rule: d.Reason.Rule, Value: d.Reason.Value, RunnerUpValue: d.Reason.RunnerUpValue}.String()
		default:
			out.Eligible, out.Verdict = true, lossReason(j.rank(p.placement.sites[d.To.Incarnation]), k)
		}
		return out
	})
}

// table makes a row for every present node.
func (p *planner) table(fill func(*candidate) Row) []Row {
	rows := make([]Row, 0, len(p.placement.sites))
	for _, s := range p.placement.sites {
		r := fill(s)
		r.Node, r.State = s.Member.Identity, s.State
		r.Load = s.load(0)
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Node.Name, b.Node.Name), cmp.Compare(a.Node.Incarnation, b.Node.Incarnation))
	})
	return rows
}

// excluded returns in words why a node is no candidate for a unit; "" if it is one.
func (p *planner) excluded(s *candidate, spec *daemon.Spec, row *daemon.Record) string {
	return p.exclusion(p.placement.filter(s.Node, spec), s.Node, spec, row, s.held)
}

// exclusion puts into words why a node is no candidate for a unit, given what it was filtered by
// and the weight that it holds without the unit; "" if it is one.
func (p *planner) exclusion(why Filter, n *Node, spec *daemon.Spec, row *daemon.Record, held int64) string {
	switch why {
	case "":
	case FilterKind:
		return "does not run " + string(spec.Kind)
	case FilterLabels:
		return string(FilterLabels) + " " + lacking(n.Member.Labels, spec.Requires) + having(n.Member.Labels, spec.Requires)
	case FilterCordoned:
		return string(why) + p.orders.cordonedBy(n.Member.Name)
	default:
		return string(why)
	}
	if with, limit := held+int64(spec.Weight), int64(n.Member.MaxWeight); limit > 0 && with > limit {
		return fmt.Sprintf("%s: holds %d, %d with the unit, at most %d (node.max_weight)", FilterFull, held, with, limit)
	}
	for _, e := range row.Embargoes {
		if e.Incarnation == n.Member.Incarnation && p.active(e) {
			return embargoed(e)
		}
	}
	return ""
}

// lacking lists the required labels that a node does not have, or has with another value.
func lacking(has, requires map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(requires)) {
		if value, ok := has[name]; !ok || value != requires[name] {
			out = append(out, name+"="+requires[name])
		}
	}
	return strings.Join(out, ", ")
}

// having lists the node's own values of required labels that differ; "" if there are none.
func having(has, requires map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(requires)) {
		if value, ok := has[name]; ok && value != requires[name] {
			out = append(out, name+"="+value)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (has " + strings.Join(out, ", ") + ")"
}

func embargoed(e daemon.Embargo) string {
	text := string(FilterEmbargoed) + " until " + e.Until.UTC().Format(time.RFC3339)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// lossReason returns why a candidate was not chosen. lead is the key of the winner.
func lossReason(lead, r key) string {
	switch {
	case lead.sick != r.sick:
		return "sick: comes last"
	case lead.load != r.load:
		return "more load"
	case lead.units != r.units:
		return "more units of the daemon"
	case lead.zone != r.zone:
		return "more units of the daemon in its zone"
	}
	return "equal; later in hash order"
}
