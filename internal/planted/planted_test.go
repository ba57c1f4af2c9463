package planted

import (
	"slices"
	"testing"
)

// A name twice, or a bug without the rule it breaks, would make the list of proofs lie.
func TestBugsAreDistinctAndExplained(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, b := range slices.Concat(Bugs(), QueueBugs(), StoreBugs()) {
		if b.Name == "" || b.Breaks == "" || seen[b.Name] {
			t.Errorf("bug %+v: empty or twice", b)
		}
		seen[b.Name] = true
	}
}

func TestOrdinaryBuildsHaveNoSwitch(t *testing.T) {
	t.Parallel()
	if Enabled {
		return // TestOneSwitchAtATime covers this build
	}
	for _, b := range slices.Concat(Bugs(), QueueBugs(), StoreBugs()) {
		if Bug(b.Name) {
			t.Errorf("%q is on in a build without the tag", b.Name)
		}
	}
}
