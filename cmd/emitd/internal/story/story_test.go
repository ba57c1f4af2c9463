package story

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	const text = `{"a":{"b":[{"c":1},{"c":2}]},"s":"x","n":null,"e":[]}`
	for _, c := range []struct {
		triple string
		ok     bool
	}{
		{"s == x", true},
		{"s == y", false},
		{"s != y", true},
		{"a.b.count == 2", true},
		{"a.b.*.c > 0", true},
		{"a.b.*.c > 1", false},
		{"a.b.1.c == 2", true},
		{"a.b.9.c == 2", false},
		{"n == null", true},
		{"e.count == 0", true},
		{"e.*.c == 1", false},
		{"gone == x", false},
		{"a has b", true},
		{"a has c", false},
		{"s matches ^x$", true},
	} {
		if err := check(text, strings.Fields(c.triple)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.triple, err)
		}
	}
}
