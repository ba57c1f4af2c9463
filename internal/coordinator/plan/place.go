package plan

import (
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// placement is all present nodes with their load, while units are placed.
type placement struct {
	sites map[node.Incarnation]*candidate
	order []*candidate // as in the input
	fits  map[string]*eligible
	// weight is the weight of a unit of the current daemon.
	weight int64
	// placed are the nodes that were given units, in order. A fit that is used again reads from it what changed
	// since.
	placed []*candidate
	// adverts numbers the distinct adverts. runs has, for each kind to be placed, one bit per advert: whether the
	// advert contains the kind.
	adverts  map[*daemon.Advert]int
	kindBits map[daemon.Kind][]byte
	scratch  []byte
	orders   *orders
}

// candidate is a present node while units are placed.
type candidate struct {
	*Node
	index    int    // in placement.order
	at       uint64 // hash of its incarnation
	capacity int64
	limit    int64 // most that held may become; 0 is no limit
	held     int64 // Σ weight of its units
	units    int   // units of the current daemon
	sick     bool  // many daemons fail on it
}

// load returns the node's load with that much more weight. Equal ratios give equal floats, because both operands
// are exact.
func (s *candidate) load(more int64) float64 { return float64(s.held+more) / float64(s.capacity) }

// full reports whether the node's limit excludes that much more weight.
func (s *candidate) full(more int64) bool { return s.limit > 0 && s.held+more > s.limit }

// newFloor sums up what present nodes hold. wanted are the specs of the units to place.
func newFloor(p *planner, wanted []*daemon.Spec) *placement {
	f := &placement{
		sites:    make(map[node.Incarnation]*candidate, len(p.in.Nodes)),
		fits:     map[string]*eligible{},
		adverts:  map[*daemon.Advert]int{},
		kindBits: map[daemon.Kind][]byte{},
		orders:   p.orders,
	}
	for i := range p.in.Nodes {
		n := &p.in.Nodes[i]
		if !n.present() {
			continue
		}
		if _, ok := f.adverts[n.Advert]; !ok {
			f.adverts[n.Advert] = len(f.adverts)
		}
		s := &candidate{Node: n, index: len(f.order), at: hash(string(n.Member.Incarnation)), capacity: int64(max(n.Member.Capacity, 1)), limit: int64(n.Member.MaxWeight)}
		_, s.sick = p.ledger.sick[n.Member.Name]
		f.sites[n.Member.Incarnation] = s
		f.order = append(f.order, s)
	}
	f.index(wanted)
	for i := range p.groups {
		g := &p.groups[i]
		g.holders = make([]*candidate, len(g.rows))
		for k, row := range g.rows {
			if s := f.holder(row); s != nil {
				s.held += g.weight()
				g.holders[k] = s
			}
		}
	}
	return f
}

// index finds which adverts contain the wanted kinds. An advert may list thousands of kinds.
func (f *placement) index(wanted []*daemon.Spec) {
	for _, spec := range wanted {
		if f.kindBits[spec.Kind] == nil {
			f.kindBits[spec.Kind] = make([]byte, (len(f.adverts)+7)/8)
		}
	}
	for advert, number := range f.adverts {
		if advert == nil {
			continue
		}
		for _, kind := range advert.Kinds {
			if bits := f.kindBits[kind]; bits != nil {
				bits[number/8] |= 1 << (number % 8)
			}
		}
	}
}

// holder returns the present node that holds the unit, or nil.
func (f *placement) holder(row *daemon.Record) *candidate {
	switch row.State {
	case daemon.Assigning, daemon.Active, daemon.Revoking:
		return f.sites[row.Holder.Incarnation]
	}
	return nil
}

// filter returns why a node is no candidate for any unit of a daemon; "" if it is one.
func (f *placement) filter(n *Node, spec *daemon.Spec) Filter {
	number := f.adverts[n.Advert]
	return f.orders.filter(n, spec, f.kindBits[spec.Kind][number/8]&(1<<(number%8)) != 0)
}

// filter is placement.filter for a node of which is known whether it runs the kind.
func (o *orders) filter(n *Node, spec *daemon.Spec, runs bool) Filter {
	switch {
	case n.State != node.Live:
		return Filter(n.State)
	case o.cordoned(n.Member.Name):
		return FilterCordoned
	case n.Member.NoDaemons:
		return FilterNoDaemons
	case !runs:
		return FilterKind
	}
	for name, value := range spec.Requires {
		if has, ok := n.Member.Labels[name]; !ok || has != value {
			return FilterLabels
		}
	}
	return ""
}

// daemonPlacement is the placing of one daemon's units.
type daemonPlacement struct {
	*eligible
	floor   *placement
	spec    *daemon.Spec
	holders []*candidate // sites that hold units of the daemon
	// unfit are the nodes that are no candidates for any unit of the daemon: the filtered ones and the full ones.
	// It is out of date, and unfitKnown false, once a node has become full.
	unfit      map[Filter]Names
	unfitKnown bool
}

// begin makes g the current daemon and counts where its units are.
func (f *placement) begin(g *group) *daemonPlacement {
	f.weight = g.weight()
	j := &daemonPlacement{eligible: f.fit(g.spec), floor: f, spec: g.spec}
	for _, s := range g.holders {
		if s != nil {
			j.note(s)
		}
	}
	j.refreshKeys(f, j.holders)
	return j
}

// end resets the counts, because each daemon has its own.
func (j *daemonPlacement) end() {
	few := fillFactor*len(j.holders) < j.size
	for _, s := range j.holders {
		s.units = 0
		if z := j.zoneOf(s); z != nil {
			z.units = 0
		}
	}
	j.placedSeen = len(j.floor.placed)
	if !few {
		j.weight = 0 // the next daemon computes all keys anew
		return
	}
	for _, s := range j.holders {
		j.setCandidate(s)
		if z := j.zoneOf(s); z != nil { // the zone counts units on nodes that are no candidates too
			j.updateZone(z)
		}
	}
}

// zoneOf returns the node's zone, whether or not the node is a candidate; nil if no candidate is in that zone.
func (j *daemonPlacement) zoneOf(s *candidate) *zone { return j.zoneAt[s.index] }

// note counts one unit of the daemon on a node. The keys do not have it yet.
func (j *daemonPlacement) note(s *candidate) {
	if s.units == 0 {
		j.holders = append(j.holders, s)
	}
	s.units++
	if z := j.zoneOf(s); z != nil {
		z.units++
	}
}

// add adds one unit of the daemon to a node.
func (j *daemonPlacement) add(s *candidate) {
	j.note(s)
	j.setCandidate(s)
	if z := j.zoneOf(s); z != nil {
		j.updateZone(z)
	}
}

// assign gives a unit to a node.
func (j *daemonPlacement) assign(s *candidate) {
	s.held += j.floor.weight
	j.floor.placed = append(j.floor.placed, s)
	if s.full(j.floor.weight) {
		j.unfitKnown = false
	}
	j.add(s)
}

// key returns the node's key without the zone, which is added one level above.
func (f *placement) key(s *candidate) key {
	if s.full(f.weight) {
		return excludedKey
	}
	return f.rank(s)
}

// rank is the key of a node that is not full.
func (f *placement) rank(s *candidate) key {
	return key{sick: s.sick, load: s.load(f.weight), units: s.units}
}

// setCandidate makes the node a candidate with its current key; hide keeps it from being chosen.
func (j *daemonPlacement) setCandidate(s *candidate) { j.set(s, j.floor.key(s)) }
func (j *daemonPlacement) setTaken(s *candidate)     { j.set(s, excludedKey) }

// embargoedUntil returns when the first of the barred nodes may take the unit again; zero if there are none.
func (j *daemonPlacement) embargoedUntil(row *daemon.Record, barred []*candidate, active func(daemon.Embargo) bool) time.Time {
	ends := map[*candidate]time.Time{}
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

// embargoed returns the nodes that only an embargo keeps from the unit. A full node is none of them.
func (j *daemonPlacement) embargoed(row *daemon.Record, active func(daemon.Embargo) bool) []*candidate {
	var out []*candidate
	for _, e := range row.Embargoes {
		s := j.floor.sites[e.Incarnation]
		if s == nil || !active(e) || s.full(j.floor.weight) || slices.Contains(out, s) {
			continue
		}
		if j.spots[s.index].zone != nil {
			out = append(out, s)
		}
	}
	return out
}
