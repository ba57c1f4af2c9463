package storagetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/memory"
)

// Stories are found by their names, so no two of a theme may have the same one.
func TestStoriesHaveNames(t *testing.T) {
	t.Parallel()
	total := 0
	for _, theme := range themes {
		seen := map[string]bool{}
		for _, s := range theme.stories {
			if s.name == "" || s.run == nil || seen[s.name] {
				t.Errorf("%s: story %q is empty or told twice", theme.name, s.name)
			}
			seen[s.name] = true
			total++
		}
	}
	if total < 120 {
		t.Errorf("the suite has %d stories; some have been lost", total)
	}
}

func TestOffers(t *testing.T) {
	t.Parallel()
	b := Backend{Store: memory.Open(memory.Config{})}
	if got, want := b.offers(), Locks|Sweeps|Wakes|States|Keys|Records; got != want {
		t.Errorf("a bare store offers %s, want %s", got, want)
	}
	b.Frozen = true // means nothing without Advance
	if got := b.offers(); got&FrozenClock != 0 {
		t.Errorf("a clock that cannot be moved is offered as frozen: %s", got)
	}
	if got := all.String(); strings.Count(got, "|") != 10 {
		t.Errorf("not every hook has a name: %s", got)
	}
}

// The model's text is useful only if it shows differences.
func TestWriterShowsDifferences(t *testing.T) {
	t.Parallel()
	for _, exact := range []bool{true, false} {
		w := newWriter(exact)
		a := daemon.Record{Unit: unit0, State: daemon.Active, Generation: 5}
		b := a
		b.State = daemon.Revoking
		if w.record(a) == w.record(b) {
			t.Errorf("exact %v: two states look alike", exact)
		}
		b = a
		b.Generation = 7
		if w.record(a) == w.record(b) {
			t.Errorf("exact %v: two generations look alike", exact)
		}
		if w.member(node.Member{Seq: 1}, "") == w.member(node.Member{Seq: 2}, "") {
			t.Errorf("exact %v: two sequence numbers look alike", exact)
		}
	}
}

// Without exact clocks, equal histories with other numbers look alike. A number that comes again
// after a higher one is written as its earlier place.
func TestWriterCountsPlaces(t *testing.T) {
	t.Parallel()
	a, b := newWriter(false), newWriter(false)
	var printed [2][]string
	for _, n := range []int64{10, 20, 10, 30} {
		printed[0] = append(printed[0], a.number("term", n))
		printed[1] = append(printed[1], b.number("term", n*1000))
	}
	if !slices.Equal(printed[0], printed[1]) {
		t.Errorf("%v and %v", printed[0], printed[1])
	}
	if got := a.number("term", 15); !strings.Contains(got, "too late") {
		t.Errorf("a number below the highest is written as %s", got)
	}
	if got := diff("1\n2\n3", "1\n4\n3"); !strings.Contains(got, "2") || !strings.Contains(got, "4") || strings.ContainsAny(got, "13") {
		t.Errorf("the difference is %q", got)
	}
}
