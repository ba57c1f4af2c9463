package plan

import "math"

// key is the rank of a node for the current daemon, without the hash. The lowest key wins.
type key struct {
	sick  bool    // a sick node comes last
	load  float64 // with one more unit of the current daemon
	units int     // units of that daemon on the node
	zone  int     // units of that daemon in the zone; 0 where only nodes of one zone are compared
}

func (k key) less(o key) bool {
	switch {
	case k.sick != o.sick:
		return o.sick
	case k.load != o.load:
		return k.load < o.load
	case k.units != o.units:
		return k.units < o.units
	}
	return k.zone < o.zone
}

// excludedKey is the key of a node that must not be chosen.
var excludedKey = key{sick: true, load: math.Inf(1), units: math.MaxInt}

// tree is a tournament tree: one key per leaf, and above each pair of nodes the lower key. Its
// width is padded to a power of two, so that the leaves lie in order below every inner node.
type tree struct {
	width int   // number of leaves, padded
	keys  []key // keys[1] is the root; keys[i] has the children 2i and 2i+1
}

// newTree returns a tree of n leaves, all taken.
func newTree(n int) tree {
	width := 1
	for width < n {
		width *= 2
	}
	t := tree{width: width, keys: make([]key, 2*width)}
	for i := range t.keys {
		t.keys[i] = excludedKey
	}
	return t
}

// least returns the lowest key.
func (t *tree) least() key { return t.keys[1] }

// fill sets the keys of the first n leaves.
func (t *tree) fill(n int, leaf func(int) key) {
	for i := range n {
		t.keys[t.width+i] = leaf(i)
	}
	for i := t.width - 1; i >= 1; i-- {
		t.refresh(i)
	}
}

// refresh sets an inner node to the lower key of its children.
func (t *tree) refresh(i int) {
	t.keys[i] = t.keys[2*i]
	if t.keys[2*i+1].less(t.keys[i]) {
		t.keys[i] = t.keys[2*i+1]
	}
}

// set sets the key of one leaf.
func (t *tree) set(leaf int, k key) {
	i := leaf + t.width
	t.keys[i] = k
	for i /= 2; i >= 1; i /= 2 {
		t.refresh(i)
	}
}

// next returns the first leaf with the lowest key, searching from a leaf on and then from the
// start.
func (t *tree) next(from int) int {
	if leaf := t.search(1, 0, t.width, from); leaf >= 0 {
		return leaf
	}
	return t.search(1, 0, t.width, 0)
}

// search returns the first leaf with the lowest key at or after from, below the inner node i, which
// spans the leaves lo to hi-1. It returns -1 if there is none.
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
