package plan

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// slow is the plan in its simplest form: no classes and no trees, and every unit is compared on
// every node. It shares with the product only the types, the hash and the texts for differences.
func slow(in Input) Plan {
	specs, disagreements := slowSpecs(in.Nodes)
	out := Plan{Disagreements: disagreements}
	for _, id := range slices.Sorted(maps.Keys(specs)) {
		spec := specs[id]
		out.Specs.inForce = append(out.Specs.inForce, advertisedSpec{spec: &spec})
	}
	rows := map[daemon.Unit]daemon.Record{}
	for _, r := range in.Units {
		rows[r.Unit] = r
	}
	var place []daemon.Unit
	for u, r := range rows {
		spec, known := specs[u.Daemon]
		instances := spec.Instances
		if spec.Keyed() {
			instances = 0
		}
		wanted := known && u.Index < instances
		if u.Key != "" {
			wanted = known && spec.Keyed() && !r.Retired
		}
		held := r.State == daemon.Assigning || r.State == daemon.Active
		d := Decision{Unit: u, Generation: r.Generation, State: r.State, Spec: spec}
		smaller := Why{Rule: InstancesReduced, Note: "to " + strconv.Itoa(instances)}
		if u.Key != "" {
			smaller = Why{Rule: NotKeyed}
		}
		switch {
		case !r.State.Known():
			out.Unknown = append(out.Unknown, Unknown{Unit: u, State: r.State})
			continue
		case held && u.Key != "" && r.Retired:
			d.Step, d.Reason = daemon.Revoke, Why{Rule: KeyRemoved}
		case held && known && !wanted:
			d.Step, d.Reason = daemon.Revoke, smaller
		case held && slowState(in.Nodes, r.Holder.Incarnation) == node.Draining:
			d.Step, d.Reason = daemon.Revoke, Why{Rule: NodeDraining, Note: r.Holder.Name}
		case held && slowState(in.Nodes, r.Holder.Incarnation) == node.Deaf:
			d.Step, d.Reason = daemon.Revoke, Why{Rule: NodeDeaf, Note: r.Holder.Name}
		case held && slowTakenBack(in.Nodes, r, specs):
			d.Step, d.Reason = daemon.Revoke, Why{Rule: NotDeclared, Note: r.Holder.Name}
		case wanted && r.Retired:
			d.Reason = Why{Rule: DeclaredAgain}
		case wanted && r.State.IsFree():
			place = append(place, u)
			continue
		case !r.State.IsFree() || r.Retired:
			continue
		case u.Key != "":
			why := Why{Rule: NotAdvertised}
			if known {
				why.Note = "with keys"
			}
			out.Unplaced = append(out.Unplaced, Unplaced{Unit: u, Since: r.Since, Why: why})
			continue
		case known:
			d.Retired, d.Reason = true, smaller
		case in.RetireAfter > 0 && in.Now.Sub(r.Since) >= in.RetireAfter:
			d.Retired, d.Reason = true, Why{Rule: NotAdvertised, Note: "for " + in.RetireAfter.String()}
		default:
			out.Unplaced = append(out.Unplaced, Unplaced{Unit: u, Since: r.Since, Why: Why{Rule: NotAdvertised}})
			continue
		}
		out.Decisions = append(out.Decisions, d)
	}
	for _, spec := range specs {
		for _, u := range spec.Units() {
			if _, ok := rows[u]; !ok {
				out.Decisions = append(out.Decisions, Decision{Unit: u, Spec: spec, Reason: Why{Rule: NewlyDeclared}})
			}
		}
	}
	slowPlace(in, specs, rows, place, &out)
	slices.SortFunc(out.Decisions, func(a, b Decision) int { return a.Unit.Compare(b.Unit) })
	slices.SortFunc(out.Unplaced, func(a, b Unplaced) int { return a.Unit.Compare(b.Unit) })
	slices.SortFunc(out.Unknown, func(a, b Unknown) int { return a.Unit.Compare(b.Unit) })
	return out
}

// slowTakenBack reports whether the unit's holder is live and neither declares the daemon nor runs its kind.
func slowTakenBack(nodes []Node, r daemon.Record, specs map[daemon.ID]daemon.Spec) bool {
	for _, n := range nodes {
		if n.Member.Incarnation != r.Holder.Incarnation || n.State != node.Live || n.Member.State == node.Removed || n.Advert == nil {
			continue
		}
		spec, known := specs[r.Unit.Daemon]
		declares := slices.ContainsFunc(n.Advert.Specs, func(s daemon.Spec) bool { return s.ID == r.Unit.Daemon })
		return !declares && (!known || !n.Advert.RunsKind(spec.Kind))
	}
	return false
}

func slowState(nodes []Node, inc node.Incarnation) node.State {
	for _, n := range nodes {
		if n.Member.Incarnation == inc && n.Member.State != node.Removed {
			return n.State
		}
	}
	return ""
}

// slowSpecs goes through the nodes from the newest to the oldest.
func slowSpecs(nodes []Node) (map[daemon.ID]daemon.Spec, []Disagreement) {
	var present []Node
	for _, n := range nodes {
		if n.State != node.Removed && n.Member.State != node.Removed && n.Advert != nil {
			present = append(present, n)
		}
	}
	slices.SortFunc(present, func(a, b Node) int {
		return -cmp.Or(firstRegistered(&a).Compare(firstRegistered(&b)), cmp.Compare(a.Member.Incarnation, b.Member.Incarnation))
	})
	specs, by := map[daemon.ID]daemon.Spec{}, map[daemon.ID]node.Identity{}
	heard := map[*daemon.Advert]bool{}
	var out []Disagreement
	for _, n := range present {
		for _, s := range n.Advert.Specs {
			s = s.WithDefaults()
			wins, known := specs[s.ID]
			if known && !reflect.DeepEqual(wins, s) && !heard[n.Advert] {
				out = append(out, Disagreement{Daemon: s.ID, Loser: n.Member.Identity, What: difference(&wins, &s)})
			}
			if !known && unusable(&s) != "" && !heard[n.Advert] {
				out = append(out, Disagreement{Daemon: s.ID, Loser: n.Member.Identity, What: unusable(&s)})
			}
			if !known && unusable(&s) == "" {
				specs[s.ID], by[s.ID] = s, n.Member.Identity
			}
		}
		heard[n.Advert] = true
	}
	for i := range out {
		out[i].Winner = by[out[i].Daemon]
	}
	slices.SortFunc(out, func(a, b Disagreement) int {
		return cmp.Or(cmp.Compare(a.Daemon, b.Daemon), cmp.Compare(a.Loser.Incarnation, b.Loser.Incarnation))
	})
	return specs, out
}

// slowPlace gives each unit, one after another, to the best of all nodes.
func slowPlace(in Input, specs map[daemon.ID]daemon.Spec, rows map[daemon.Unit]daemon.Record, place []daemon.Unit, out *Plan) {
	slices.SortFunc(place, func(a, b daemon.Unit) int {
		return cmp.Or(cmp.Compare(specs[b.Daemon].Weight, specs[a.Daemon].Weight), a.Compare(b))
	})
	holder := map[daemon.Unit]node.Incarnation{}
	for u, r := range rows {
		if r.State == daemon.Assigning || r.State == daemon.Active || r.State == daemon.Revoking {
			holder[u] = r.Holder.Incarnation
		}
	}
	for _, u := range place {
		r, spec := rows[u], specs[u.Daemon]
		filtered := map[Filter][]string{}
		var can []slowCandidate
		for _, n := range in.Nodes {
			if n.State == node.Removed || n.Member.State == node.Removed {
				continue
			}
			if f := slowExclusion(in, n, spec, specs, holder, r); f != "" {
				filtered[f] = append(filtered[f], n.Member.Name)
				continue
			}
			can = append(can, slowMeasure(in, n, u, specs, holder))
		}
		why := Why{Filtered: slowNames(filtered)}
		if len(can) == 0 {
			why.Rule = NoEligibleNode
			out.Unplaced = append(out.Unplaced, Unplaced{Unit: u, Since: r.Since, EmbargoedUntil: slowUntil(in, spec, specs, holder, r), Why: why})
			continue
		}
		slowRounds(in, u, spec, can)
		slices.SortFunc(can, slowCandidate.compare)
		best := can[0]
		why.Chosen = best.node.Member.Name
		if r.State == daemon.Deleted && r.Holder.Name != "" && r.Reason != "" {
			why.Previous = r.Holder.Name + ": " + r.Reason
		}
		if len(can) == 1 {
			why.Rule = OnlyCandidate
		} else {
			next := can[1]
			why.RunnerUp = next.node.Member.Name
			switch {
			case best.load != next.load:
				why.Rule, why.Value, why.RunnerUpValue = LeastLoaded, best.load, next.load
			case best.units != next.units:
				why.Rule, why.Value, why.RunnerUpValue = FewerUnits, float64(best.units), float64(next.units)
			case best.zone != next.zone:
				why.Rule, why.Value, why.RunnerUpValue = ZoneSpread, float64(best.zone), float64(next.zone)
			default:
				why.Rule = StableHash
			}
		}
		holder[u] = best.node.Member.Incarnation
		out.Decisions = append(out.Decisions, Decision{
			Unit: u, Step: daemon.Assign, Generation: r.Generation, State: r.State,
			To: best.node.Member.Identity, Spec: spec, Reason: why,
		})
	}
}

type slowCandidate struct {
	node        Node
	load        float64
	units, zone int
	zoneOrder   int // the distance of its zone, and of the node in it, from the unit's position
	round       int
}

func (a slowCandidate) compare(b slowCandidate) int {
	return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(a.units, b.units), cmp.Compare(a.zone, b.zone),
		cmp.Compare(a.zoneOrder, b.zoneOrder), cmp.Compare(a.round, b.round))
}

// slowMeasure counts what every node holds, again for each unit and node.
func slowMeasure(in Input, n Node, u daemon.Unit, specs map[daemon.ID]daemon.Spec, holder map[daemon.Unit]node.Incarnation) slowCandidate {
	spec := specs[u.Daemon]
	c := slowCandidate{node: n}
	weight := spec.Weight
	for held, inc := range holder {
		if inc == n.Member.Incarnation {
			weight += max(specs[held.Daemon].Weight, 1)
		}
		if held.Daemon != u.Daemon {
			continue
		}
		if inc == n.Member.Incarnation {
			c.units++
		}
		for _, m := range in.Nodes {
			if m.Member.Incarnation == inc && m.State != node.Removed && m.Member.State != node.Removed &&
				m.Member.Labels[spec.Spread] == n.Member.Labels[spec.Spread] {
				c.zone++
			}
		}
	}
	c.load = float64(weight) / float64(max(n.Member.Capacity, 1))
	return c
}

// slowRounds arranges the zones in a circle in order of their hash, and the nodes of each zone in a
// circle of their own. The unit's hash gives the position to begin at. Nodes with an embargo are in
// the circle too; the unit just may not go there.
func slowRounds(in Input, u daemon.Unit, spec daemon.Spec, can []slowCandidate) {
	h := hash(u.String())
	labels := map[string][]string{}
	for _, n := range in.Nodes {
		if n.Member.State != node.Removed && slowFilter(in, n, spec, daemon.Record{}) == "" {
			label := n.Member.Labels[spec.Spread]
			labels[label] = append(labels[label], string(n.Member.Incarnation))
		}
	}
	byHash := func(a, b string) int { return cmp.Or(cmp.Compare(hash(a), hash(b)), cmp.Compare(a, b)) }
	round := func(seated []string, who string, first int) int {
		return (slices.Index(seated, who) - first + len(seated)) % len(seated)
	}
	zones := slices.SortedFunc(maps.Keys(labels), byHash)
	for i := range can {
		label := can[i].node.Member.Labels[spec.Spread]
		nodes := slices.SortedFunc(slices.Values(labels[label]), byHash)
		can[i].zoneOrder = round(zones, label, int(float64(h)/(1<<64)*float64(len(zones))))
		can[i].round = round(nodes, string(can[i].node.Member.Incarnation), int(h%uint64(len(nodes))))
	}
}

// slowUntil returns when the first embargo ends that is a node's only obstacle.
func slowUntil(in Input, spec daemon.Spec, specs map[daemon.ID]daemon.Spec, holder map[daemon.Unit]node.Incarnation, r daemon.Record) (first time.Time) {
	for _, n := range in.Nodes {
		if n.Member.State == node.Removed || slowExclusion(in, n, spec, specs, holder, r) != FilterEmbargoed {
			continue
		}
		var end time.Time
		for _, e := range r.Embargoes {
			if e.Incarnation == n.Member.Incarnation && e.InForce(in.Now) && e.Until.After(end) {
				end = e.Until
			}
		}
		if first.IsZero() || end.Before(first) {
			first = end
		}
	}
	return first
}

// slowExclusion is slowFilter that knows what the node holds. A full node is full, whether or not it has an embargo.
func slowExclusion(in Input, n Node, spec daemon.Spec, specs map[daemon.ID]daemon.Spec, holder map[daemon.Unit]node.Incarnation, r daemon.Record) Filter {
	weight := spec.Weight
	for u, inc := range holder {
		if inc == n.Member.Incarnation {
			weight += max(specs[u.Daemon].Weight, 1)
		}
	}
	f := slowFilter(in, n, spec, r)
	if (f == "" || f == FilterEmbargoed) && n.Member.MaxWeight > 0 && weight > n.Member.MaxWeight {
		return FilterFull
	}
	return f
}

func slowFilter(in Input, n Node, spec daemon.Spec, r daemon.Record) Filter {
	if n.State != node.Live {
		return Filter(n.State)
	}
	if n.Member.NoDaemons {
		return FilterNoDaemons
	}
	if n.Advert == nil || !n.Advert.RunsKind(spec.Kind) {
		return FilterKind
	}
	for k, v := range spec.Requires {
		if has, ok := n.Member.Labels[k]; !ok || has != v {
			var lacks []string
			for k, v := range spec.Requires {
				if has, ok := n.Member.Labels[k]; !ok || has != v {
					lacks = append(lacks, k+"="+v)
				}
			}
			slices.Sort(lacks)
			return FilterLabels + Filter(" "+strings.Join(lacks, ", "))
		}
	}
	for _, e := range r.Embargoes {
		if e.Incarnation == n.Member.Incarnation && in.Now.Before(e.Until) && e.Until.Sub(in.Now) <= e.Length {
			return FilterEmbargoed
		}
	}
	return ""
}

func slowNames(filtered map[Filter][]string) map[Filter]Names {
	if len(filtered) == 0 {
		return nil
	}
	out := map[Filter]Names{}
	for f := range maps.Keys(filtered) {
		names := slices.Sorted(slices.Values(filtered[f]))
		out[f] = Names{Count: len(names), Names: names[:min(8, len(names))]}
	}
	return out
}
