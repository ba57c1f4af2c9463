package plan

import (
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// floor is all present nodes with what they hold, while units are placed.
type floor struct {
	sites map[node.Incarnation]*site
	order []*site // as in the input
	fits  map[string]*fit
	// weight is that of a unit of the daemon at hand.
	weight int64
	// placed are the nodes that got a unit, in turn: what a fit that was not at hand has missed.
	placed []*site
	// adverts numbers the distinct adverts; runs says for each kind that is wanted which of
	// them contain it, one bit each.
	adverts map[*daemon.Advert]int
	runs    map[daemon.Kind][]byte
	scratch []byte
}

// site is a node that may take units.
type site struct {
	*Node
	at       uint64 // hash of its incarnation
	capacity int64
	held     int64 // Σ weight
	units    int   // of the daemon at hand
}

// load is what the node would have with so much more. Equal ratios give equal floats, since both
// operands are exact.
func (s *site) load(more int64) float64 { return float64(s.held+more) / float64(s.capacity) }

// newFloor adds up what present nodes hold. wanted are the specs of which units will be placed.
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

// index finds out which adverts contain the kinds that are wanted: an advert may list thousands.
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

// holder returns the present node that holds the unit, if any.
func (f *floor) holder(row *daemon.Record) *site {
	switch row.State {
	case daemon.Assigning, daemon.Active, daemon.Revoking:
		return f.sites[row.Holder.Incarnation]
	}
	return nil
}

// filter says why a node is no candidate for any unit of a daemon; "" if it is one.
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
	holders []*site // that hold units of the daemon
}

// begin takes a daemon in hand and counts where its units are.
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

// end forgets the counts: the next daemon has its own.
func (j *job) end() {
	for _, s := range j.holders {
		s.units = 0
		j.show(s)
		if z := j.zoneOf(s); z != nil { // also where the holder itself is no candidate
			z.units = 0
			j.lift(z)
		}
	}
	j.seen = len(j.floor.placed)
}

// zoneOf returns the zone of a node, candidate or not; nil if no candidate is in it.
func (j *job) zoneOf(s *site) *zone { return j.byLabel[s.Member.Labels[j.spec.Spread]] }

// count notes one more unit of the daemon at a node.
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

// key is what the node is compared by; its zone's part is added above it.
func (f *floor) key(s *site) key { return key{load: s.load(f.weight), units: s.units} }

// show makes the node a candidate as it is now, hide keeps it from being chosen.
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

// barred returns the nodes that could take a unit but for an embargo.
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
