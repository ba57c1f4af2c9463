package plan

import (
	"testing"

	"pgregory.net/rapid"
)

// TestTreeFindsTheNextLeast compares the tree with a scan of all leaves.
func TestTreeFindsTheNextLeast(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "leaves")
		draw := func(int) key {
			return key{
				load:  rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "load"),
				units: rapid.IntRange(0, 1).Draw(t, "units"),
				zone:  rapid.IntRange(0, 1).Draw(t, "zone"),
			}
		}
		tr, plain := newTree(n), make([]key, n)
		tr.fill(n, func(i int) key { plain[i] = draw(i); return plain[i] })
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			leaf := rapid.IntRange(0, n-1).Draw(t, "leaf")
			plain[leaf] = draw(leaf)
			if rapid.Bool().Draw(t, "hide") {
				plain[leaf] = excludedKey
			}
			tr.set(leaf, plain[leaf])

			least := excludedKey
			for _, k := range plain {
				if k.less(least) {
					least = k
				}
			}
			if tr.least() != least {
				t.Fatalf("least is %v, want %v", tr.least(), least)
			}
			if least == excludedKey {
				continue
			}
			from := rapid.IntRange(0, n-1).Draw(t, "from")
			want := from
			for plain[want] != least {
				want = (want + 1) % n
			}
			if got := tr.next(from); got != want {
				t.Fatalf("next from %d is %d, want %d in %v", from, got, want, plain)
			}
		}
	})
}

func TestEmptyTreeOffersNothing(t *testing.T) {
	t.Parallel()
	if tr := newTree(0); tr.least() != excludedKey {
		t.Errorf("least of nothing is %v", tr.least())
	}
	if f := (&eligible{tree: newTree(0)}); f.pick(1) != nil {
		t.Error("picked a node where there is none")
	}
}
