package plan

import "math"

// key is what nodes are compared by, before the hash.
type key struct {
	load  float64 // with one more unit of the daemon at hand
	units int     // of that daemon, on the node
	zone  int     // of that daemon, in the zone; 0 where only nodes of one zone are compared
}

func (k key) less(o key) bool {
	switch {
	case k.load != o.load:
		return k.load < o.load
	case k.units != o.units:
		return k.units < o.units
	}
	return k.zone < o.zone
}

// taken is the key of a node that cannot be chosen.
var taken = key{load: math.Inf(1), units: math.MaxInt}

// tree holds one key per leaf and, above each pair, the lesser: a tournament. Leaves are padded to
// a power of two, so that leaves lie in order below every inner node.
type tree struct {
	width int   // of the lowest row
	keys  []key // keys[1] is the top, keys[i] has the children 2i and 2i+1
}

// newTree returns a tree of n leaves, none of which can be chosen.
func newTree(n int) tree {
	width := 1
	for width < n {
		width *= 2
	}
	t := tree{width: width, keys: make([]key, 2*width)}
	for i := range t.keys {
		t.keys[i] = taken
	}
	return t
}

// least returns the least key of all.
func (t *tree) least() key { return t.keys[1] }

// fill gives the n leaves their keys.
func (t *tree) fill(n int, leaf func(int) key) {
	for i := range n {
		t.keys[t.width+i] = leaf(i)
	}
	for i := t.width - 1; i >= 1; i-- {
		t.settle(i)
	}
}

// settle gives an inner node the lesser of its children.
func (t *tree) settle(i int) {
	t.keys[i] = t.keys[2*i]
	if t.keys[2*i+1].less(t.keys[i]) {
		t.keys[i] = t.keys[2*i+1]
	}
}

// set gives a leaf its key.
func (t *tree) set(leaf int, k key) {
	i := leaf + t.width
	t.keys[i] = k
	for i /= 2; i >= 1; i /= 2 {
		t.settle(i)
	}
}

// next returns the first leaf that has the least key, looking from a leaf on and round.
func (t *tree) next(from int) int {
	if leaf := t.search(1, 0, t.width, from); leaf >= 0 {
		return leaf
	}
	return t.search(1, 0, t.width, 0)
}

// search looks below i, which spans the leaves from lo up to hi, at or after from; -1 is none.
func (t *tree) search(i, lo, hi, from int) int {
	if hi <= from || t.keys[i] != t.keys[1] {
		return -1
	}
	if hi-lo == 1 {
		return lo
	}
	mid := (lo + hi) / 2
	if leaf := t.search(2*i, lo, mid, from); leaf >= 0 {
		return leaf
	}
	return t.search(2*i+1, mid, hi, from)
}
