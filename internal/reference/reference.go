// Package reference keeps the generated part of a page of docs/reference equal to the code. It is used by
// tests. The text between the two marks of a page is generated, and the rest is written by hand.
package reference

import (
	"os"
	"strings"
	"testing"
)

// The marks.
const (
	begin = "<!-- generated: go test -update writes this -->\n"
	end   = "<!-- end of the generated part -->\n"
)

// Check compares the generated part of the page with want. With update it writes it instead.
func Check(t *testing.T, page, want string, update bool) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	got, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no markers for the generated part", page)
	}
	if got == want {
		return
	}
	if !update {
		t.Fatalf("%s differs from the code; go test -update writes it", page)
	}
	if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Cell escapes a text for a cell of a table.
func Cell(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "|", `\|`), "\n", " ") }
