package cli

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestEventFamilies: completion offers a pattern for each family of the kinds in the reference, and no other.
func TestEventFamilies(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/reference/events.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+)\\.[a-z_]+`").FindAllSubmatch(page, -1) {
		want = append(want, string(m[1])+".*")
	}
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(eventFamilies, want) || len(want) == 0 {
		t.Errorf("completion offers %v, and the reference has %v", eventFamilies, want)
	}
}
