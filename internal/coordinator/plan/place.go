package plan

import (
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// floor is all present nodes with their load, while units are placed.
type floor struct {
	sites map[node.Incarnation]*site
	order []*site // as in the input
	fits  map[string]*fit
	// weight is the weight of a unit of the current daemon.
	weight int64
	// placed are the nodes that were given units, in order. A fit that is used again reads from it what changed
	// since.
	placed []*site
	// adverts numbers the distinct adverts. runs has, for each kind to be placed, one bit per advert: whether the
	// advert contains the kind.
	adverts map[*daemon.Advert]int
	runs    map[daemon.Kind][]byte
	scratch []byte
}

// site is a present node while units are placed.
type site struct {
	*Node
	at       uint64 // hash of its incarnation
	capacity int64
	held     int64 // Σ weight of its units
	units    int   // units of the current daemon
}

// load returns the node's load with that much more weight. Equal ratios give equal floats, because both operands
// are exact.
func (s *site) load(more int64) float64 { return float64(s.held+more) / float64(s.capacity) }

// newFloor sums up what present nodes hold. wanted are the specs of the units to place.
func newFloor(p *planner, wanted []*daemon.Spec) *floor {
	f := &floor{
		sites:   make(map[node.Incarnation]*site, len(p.in.Nodes)),
		fits:    map[string]*fit{},
		adverts: map[*daemon.Advert]int{},
		runs:    map[daemon.Kind][]byte{},
	}
	for i := range p.in.Nodes {
		n := &p.in.Nodes[i]
		if !n.present() {
			continue
		}
		if _, ok := f.adverts[n.Advert]; !ok {
			f.adverts[n.Advert] = len(f.adverts)
		}
		s := &site{Node: n, at: hash(string(n.Member.Incarnation)), capacity: int64(max(n.Member.Capacity, 1))}
		f.sites[n.Member.Incarnation] = s
		f.order = append(f.order, s)
	}
	f.index(wanted)
	for i := range p.groups {
		g := &p.groups[i]
		for _, row := range g.rows {
			if s := f.holder(row); s != nil {
				s.held += g.weight()
			}
		}
	}
	return f
}

// index finds which adverts contain the wanted kinds. An advert may list thousands of kinds.
func (f *floor) index(wanted []*daemon.Spec) {
	for _, spec := range wanted {
		if f.runs[spec.Kind] == nil {
			f.runs[spec.Kind] = make([]byte, (len(f.adverts)+7)/8)
		}
	}
	for advert, number := range f.adverts {
		if advert == nil {
			continue
		}
		for _, kind := range advert.Kinds {
			if bits := f.runs[kind]; bits != nil {
				bits[number/8] |= 1 << (number % 8)
			}
		}
	}
}

// holder returns the present node that holds the unit, or nil.
func (f *floor) holder(row *daemon.Record) *site {
	switch row.State {
	case daemon.Assigning, daemon.Active, daemon.Revoking:
		return f.sites[row.Holder.Incarnation]
	}
	return nil
}

// filter returns why a node is no candidate for any unit of a daemon; "" if it is one.
func (f *floor) filter(n *Node, spec *daemon.Spec) Filter {
	number := f.adverts[n.Advert]
	switch {
	case n.State != node.Live:
		return Filter(n.State)
	case n.Member.NoDaemons:
		return FilterNoDaemons
	case f.runs[spec.Kind][number/8]&(1<<(number%8)) == 0:
		return FilterKind
	}
	for name, value := range spec.Requires {
		if has, ok := n.Member.Labels[name]; !ok || has != value {
			return FilterLabels
		}
	}
	return ""
}

// job is the placing of one daemon's units.
type job struct {
	*fit
	floor   *floor
	spec    *daemon.Spec
	holders []*site // sites that hold units of the daemon
}

// begin makes g the current daemon and counts where its units are.
func (f *floor) begin(g *group) *job {
	f.weight = g.weight()
	j := &job{fit: f.fit(g.spec), floor: f, spec: g.spec}
	j.catchUp(f)
	for _, row := range g.rows {
		if s := f.holder(row); s != nil {
			j.count(s)
		}
	}
	return j
}

// end resets the counts, because each daemon has its own.
func (j *job) end() {
	for _, s := range j.holders {
		s.units = 0
		j.show(s)
		if z := j.zoneOf(s); z != nil { // the zone counts units on nodes that are no candidates too
			z.units = 0
			j.lift(z)
		}
	}
	j.seen = len(j.floor.placed)
}

// zoneOf returns the node's zone, whether or not the node is a candidate; nil if no candidate is in that zone.
func (j *job) zoneOf(s *site) *zone { return j.byLabel[s.Member.Labels[j.spec.Spread]] }

// count adds one unit of the daemon to a node.
func (j *job) count(s *site) {
	if s.units == 0 {
		j.holders = append(j.holders, s)
	}
	s.units++
	j.show(s)
	if z := j.zoneOf(s); z != nil {
		z.units++
		j.lift(z)
	}
}

// take gives a unit to a node.
func (j *job) take(s *site) {
	s.held += j.floor.weight
	j.floor.placed = append(j.floor.placed, s)
	j.count(s)
}

// key returns the node's key without the zone, which is added one level above.
func (f *floor) key(s *site) key { return key{load: s.load(f.weight), units: s.units} }

// show makes the node a candidate with its current key; hide keeps it from being chosen.
func (j *job) show(s *site) { j.set(s, j.floor.key(s)) }
func (j *job) hide(s *site) { j.set(s, taken) }

// embargoedUntil returns when the first of the barred nodes may take the unit again; zero if there are none.
func (j *job) embargoedUntil(row *daemon.Record, barred []*site, active func(daemon.Embargo) bool) time.Time {
	ends := map[*site]time.Time{}
	for _, e := range row.Embargoes {
		if s := j.floor.sites[e.Incarnation]; active(e) && slices.Contains(barred, s) && e.Until.After(ends[s]) {
			ends[s] = e.Until
		}
	}
	var first time.Time
	for _, end := range ends {
		if first.IsZero() || end.Before(first) {
			first = end
		}
	}
	return first
}

// barred returns the nodes that only an embargo keeps from the unit.
func (j *job) barred(row *daemon.Record, active func(daemon.Embargo) bool) []*site {
	var out []*site
	for _, e := range row.Embargoes {
		s := j.floor.sites[e.Incarnation]
		if s == nil || !active(e) || slices.Contains(out, s) {
			continue
		}
		if _, ok := j.spots[s]; ok {
			out = append(out, s)
		}
	}
	return out
}
