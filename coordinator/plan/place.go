package plan

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// floor is all present nodes, by class, with what they hold.
type floor struct {
	sites   map[node.Incarnation]*site
	classes []*class
	// adverts numbers the distinct adverts; runs says for each kind that is wanted which of them
	// contain it, one bit each.
	adverts map[*daemon.Advert]int
	runs    map[daemon.Kind][]byte
	fits    map[string]*fit
	scratch []byte
}

// site is a node that may take units.
type site struct {
	*Node
	class *class
	leaf  int    // its leaf in the tree of the class
	at    uint64 // hash of its incarnation: its place on a ring
	held  int64  // Σ weight
	units int    // of the daemon at hand
}

// show makes the node's key in its class what it holds; hide keeps it from being chosen.
func (s *site) show() { s.class.tree.set(s.leaf, key{held: s.held, units: s.units}) }
func (s *site) hide() { s.class.tree.set(s.leaf, taken) }

// class is nodes that no spec at hand can tell apart.
type class struct {
	number   int
	like     *Node // any of them
	capacity float64
	sites    []*site // by their place on the ring
	tree     tree
	names    []string
}

// from returns the first leaf at or after a place on the ring; the number of leaves if none is.
func (c *class) from(at uint64) int {
	leaf, _ := slices.BinarySearchFunc(c.sites, at, func(s *site, at uint64) int { return cmp.Compare(s.at, at) })
	return leaf
}

// newFloor sorts the present nodes into classes and adds up what they hold. wanted are the specs
// of which units will be placed: only what these ask for tells nodes apart.
func newFloor(p *planner, wanted []*daemon.Spec) *floor {
	f := &floor{
		sites:   make(map[node.Incarnation]*site, len(p.in.Nodes)),
		adverts: map[*daemon.Advert]int{},
		runs:    map[daemon.Kind][]byte{},
		fits:    map[string]*fit{},
	}
	labels := map[string]bool{}
	for _, spec := range wanted {
		labels[spec.Spread] = true
		for name := range spec.Requires {
			labels[name] = true
		}
	}
	asked := slices.Sorted(maps.Keys(labels))
	classes := map[string]*class{}
	for i := range p.in.Nodes {
		if n := &p.in.Nodes[i]; n.present() {
			f.admit(n, asked, classes)
		}
	}
	f.index(wanted)
	for _, c := range f.classes {
		c.build()
	}
	for i := range p.groups {
		f.load(&p.groups[i])
	}
	for _, c := range f.classes {
		for _, s := range c.sites {
			s.show()
		}
	}
	return f
}

// admit puts a node into its class.
func (f *floor) admit(n *Node, asked []string, classes map[string]*class) {
	number, ok := f.adverts[n.Advert]
	if !ok {
		number = len(f.adverts)
		f.adverts[n.Advert] = number
	}
	capacity := max(n.Member.Capacity, 1)
	text := strconv.AppendInt(f.scratch[:0], int64(number), 10)
	text = strconv.AppendInt(append(text, ' '), int64(capacity), 10)
	text = strconv.AppendBool(append(text, ' '), n.Member.NoDaemons)
	text = strconv.AppendQuote(append(text, ' '), string(n.State))
	for _, name := range asked {
		if value, ok := n.Member.Labels[name]; ok {
			text = strconv.AppendQuote(append(text, ' '), value)
		} else {
			text = append(text, " -"...)
		}
	}
	f.scratch = text
	c := classes[string(text)]
	if c == nil {
		c = &class{number: len(f.classes), like: n, capacity: float64(capacity)}
		classes[string(text)] = c
		f.classes = append(f.classes, c)
	}
	s := &site{Node: n, class: c, at: hash(string(n.Member.Incarnation))}
	c.sites = append(c.sites, s)
	f.sites[n.Member.Incarnation] = s
}

// build puts the nodes of a class in order.
func (c *class) build() {
	slices.SortFunc(c.sites, func(a, b *site) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Member.Incarnation, b.Member.Incarnation))
	})
	c.tree = newTree(len(c.sites))
	names := make([]string, len(c.sites))
	for i, s := range c.sites {
		s.leaf, names[i] = i, s.Member.Name
	}
	slices.Sort(names)
	c.names = names[:min(len(names), maxNames)]
}

// index finds out which adverts contain the kinds that are wanted.
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

// load adds what is held of a daemon to those who hold it.
func (f *floor) load(g *group) {
	for _, row := range g.rows {
		if s := f.holder(row); s != nil {
			s.held += g.weight()
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

// fit is where units of equal requirements can go.
type fit struct {
	classes  []*class
	takes    []bool         // by class number
	zone     []int          // number of the zone of each of the classes
	zones    map[string]int // number of a zone by its label
	filtered map[Filter]Names
}

// fit finds the classes that can take a daemon; daemons that ask for the same share the answer.
func (f *floor) fit(spec *daemon.Spec) *fit {
	text := append(f.scratch[:0], f.runs[spec.Kind]...)
	text = strconv.AppendQuote(text, spec.Spread)
	for _, name := range slices.Sorted(maps.Keys(spec.Requires)) {
		text = strconv.AppendQuote(strconv.AppendQuote(text, name), spec.Requires[name])
	}
	f.scratch = text
	if known := f.fits[string(text)]; known != nil {
		return known
	}
	out := &fit{takes: make([]bool, len(f.classes)), zones: map[string]int{}}
	counts := map[Filter]Names{}
	for _, c := range f.classes {
		if why := f.filter(c.like, spec); why != "" {
			counts[why] = counts[why].with(len(c.sites), c.names)
			continue
		}
		label := c.like.Member.Labels[spec.Spread]
		zone, ok := out.zones[label]
		if !ok {
			zone = len(out.zones)
			out.zones[label] = zone
		}
		out.takes[c.number] = true
		out.classes, out.zone = append(out.classes, c), append(out.zone, zone)
	}
	if len(counts) > 0 {
		out.filtered = counts
	}
	f.fits[string(text)] = out
	return out
}

// filter says why a node is no candidate for any unit of a daemon; "" if it is one.
func (f *floor) filter(n *Node, spec *daemon.Spec) Filter {
	switch number := f.adverts[n.Advert]; {
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

// hash is the same in every process and version: FNV-1a, then a finalizer, since the last bytes of
// a short text hardly reach the high bits.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
