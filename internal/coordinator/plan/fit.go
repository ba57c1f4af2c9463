package plan

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"strconv"

	"github.com/emitd/emitd/daemon"
)

// eligible holds the nodes that can take daemons with one set of requirements, ordered for picking: a
// tree of zones, and for each zone a tree of its nodes. Nodes of one zone differ only in load and
// units, so a count that changes for the whole zone changes only one leaf of the tree of zones.
type eligible struct {
	zones   []*zone // sorted by hash
	byLabel map[string]*zone
	tree    tree
	spots   []position // by candidate.index; one without a zone is no candidate
	size    int        // how many candidates there are
	zoneAt  []*zone    // by candidate.index: the zone of each node, also of one that is no candidate; nil if no candidate is there
	// filtered are the nodes that are no candidates, by reason.
	filtered map[Filter]Names
	limited  []*candidate // the candidates that have a limit

	weight     int64 // the weight that the keys were computed with; 0 if the keys are out of date
	placedSeen int   // how many entries of floor.placed the keys include
}

// zone is the nodes with one value of the label to spread by. Nodes without the label form a zone
// too.
type zone struct {
	label string
	at    uint64       // hash of the label
	leaf  int          // its leaf in the tree of zones
	sites []*candidate // sorted by hash
	tree  tree
	units int // of the current daemon, also on nodes that are no candidates
}

// position is the position of a node in a fit.
type position struct {
	zone *zone
	leaf int
}

// fit returns the nodes that can take a daemon. Daemons with equal requirements share one fit.
func (f *placement) fit(spec *daemon.Spec) *eligible {
	text := f.scratch[:0]
	text = append(text, f.kindBits[spec.Kind]...)
	text = strconv.AppendQuote(text, spec.Spread)
	if len(spec.Requires) > 0 {
		for _, name := range slices.Sorted(maps.Keys(spec.Requires)) {
			text = strconv.AppendQuote(strconv.AppendQuote(text, name), spec.Requires[name])
		}
	}
	f.scratch = text
	known := f.fits[string(text)]
	if known == nil {
		known = f.newFit(spec)
		f.fits[string(text)] = known
	}
	return known
}

func (f *placement) newFit(spec *daemon.Spec) *eligible {
	out := &eligible{byLabel: map[string]*zone{}, spots: make([]position, len(f.order)), zoneAt: make([]*zone, len(f.order))}
	names := map[Filter][]string{}
	for _, s := range f.order {
		if why := f.filter(s.Node, spec); why != "" {
			if why == FilterLabels {
				why += Filter(" " + lacking(s.Member.Labels, spec.Requires))
			}
			names[why] = append(names[why], s.Member.Name)
			continue
		}
		label := s.Member.Labels[spec.Spread]
		z := out.byLabel[label]
		if z == nil {
			z = &zone{label: label, at: hash(label)}
			out.byLabel[label] = z
			out.zones = append(out.zones, z)
		}
		z.sites = append(z.sites, s)
		out.size++
		if s.limit > 0 {
			out.limited = append(out.limited, s)
		}
	}
	out.filtered = shorten(names)
	out.arrange()
	for _, s := range f.order {
		out.zoneAt[s.index] = out.byLabel[s.Member.Labels[spec.Spread]]
	}
	return out
}

// arrange sorts the zones and the nodes of each, and builds their trees.
func (f *eligible) arrange() {
	slices.SortFunc(f.zones, func(a, b *zone) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.label, b.label))
	})
	f.tree = newTree(len(f.zones))
	for i, z := range f.zones {
		z.leaf = i
		slices.SortFunc(z.sites, func(a, b *candidate) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Member.Incarnation, b.Member.Incarnation))
		})
		z.tree = newTree(len(z.sites))
		for leaf, s := range z.sites {
			f.spots[s.index] = position{zone: z, leaf: leaf}
		}
	}
}

// fillFactor is by how much more it costs to set the key of one node than to set it beside all others.
const fillFactor = 8

// refreshKeys updates all keys to the current weight, to what was placed since they were computed, and to the units of the
// daemon that the holders have.
func (f *eligible) refreshKeys(now *placement, holders []*candidate) {
	missed := now.placed[f.placedSeen:]
	if f.weight == now.weight && fillFactor*(len(missed)+len(holders)) < f.size {
		for _, s := range missed {
			f.set(s, now.key(s))
		}
		for _, s := range holders {
			f.set(s, now.key(s))
			if z := f.zoneAt[s.index]; z != nil { // the zone counts units on nodes that are no candidates too
				f.updateZone(z)
			}
		}
	} else {
		for _, z := range f.zones {
			z.tree.fill(len(z.sites), func(leaf int) key { return now.key(z.sites[leaf]) })
		}
		f.tree.fill(len(f.zones), func(leaf int) key { return f.zones[leaf].key() })
	}
	f.weight, f.placedSeen = now.weight, len(now.placed)
}

// key returns the key of the zone's best node, with the zone's count.
func (z *zone) key() key {
	k := z.tree.least()
	if k != excludedKey {
		k.zone = z.units
	}
	return k
}

// set sets a node's key, if the node is a candidate.
func (f *eligible) set(s *candidate, k key) {
	if at := f.spots[s.index]; at.zone != nil {
		at.zone.tree.set(at.leaf, k)
		f.updateZone(at.zone)
	}
}

// updateZone updates the tree of zones after a change in a zone.
func (f *eligible) updateZone(z *zone) { f.tree.set(z.leaf, z.key()) }

// pick returns the best node for a unit with this hash; nil if there is none. Among equally good
// zones, and equally good nodes, it takes the first in hash order from a position that depends on
// the unit's hash. So units spread evenly over equals. The two levels use different bits of the
// hash.
func (f *eligible) pick(hash uint64) *candidate {
	if f.tree.least() == excludedKey {
		return nil
	}
	high, _ := bits.Mul64(hash, uint64(len(f.zones)))
	z := f.zones[f.tree.next(int(high))]
	return z.sites[z.tree.next(int(hash%uint64(len(z.sites))))]
}

// hash is the same in every process and version. It is FNV-1a with a finalizer, because the last
// bytes of a short text hardly change the high bits.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
