package exec

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRequestsSurviveTheWire(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := request{
			verb: rapid.SampledFrom([]verb{watch, extend, forget}).Draw(t, "verb"),
			id:   rapid.Uint64Min(1).Draw(t, "id"), pgid: rapid.IntRange(2, 1<<31-1).Draw(t, "pgid"),
			start:    rapid.StringMatching(`([0-9]{1,20}(\.[0-9]{6})?)?`).Draw(t, "start"),
			deadline: instant(rapid.Int64().Draw(t, "deadline")),
		}
		line := r.line()
		if got, err := parseRequest(strings.TrimSuffix(line, "\n")); err != nil || got != r {
			t.Fatalf("%q is parsed as %+v, %v", line, got, err)
		}
		for _, s := range []status{statusOK, statusLate, statusUnknown, statusOther} {
			a := answer{id: r.id, status: s}
			text := a.line()
			if got, err := parseAnswer(strings.TrimSuffix(text, "\n")); err != nil || got != a {
				t.Fatalf("%q is parsed as %+v, %v", text, got, err)
			}
			if len(text) >= len(line) {
				t.Fatalf("the answer %q is not shorter than the request %q", text, line)
			}
		}
	})
}

func TestNoticesSurviveTheWire(t *testing.T) {
	t.Parallel()
	a := answer{status: statusKilled, pgid: 4711}
	if got, err := parseAnswer(strings.TrimSuffix(a.line(), "\n")); err != nil || got != a {
		t.Errorf("%q is parsed as %+v, %v", a.line(), got, err)
	}
}

// Nothing malformed may become a request: a group number of 0, 1 or below would kill the
// guardian's own group, or everything.
func TestMalformedLines(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"", "watch", "watch 1 2 3", "watch 1 2 3 4 5", "kill 1 2 3 4", "watch 0 2 3 4", "watch -1 2 3 4",
		"watch 1 0 3 4", "watch 1 1 3 4", "watch 1 -2 3 4", "watch 1 99999999999 3 4", "watch 1 2 3 x",
		"watch 1 2  4", "watch 1 2 3 99999999999999999999", "watch 1 2 " + strings.Repeat("3", maxLine) + " 4", "extend 1 x - 4",
	} {
		if r, err := parseRequest(line); err == nil {
			t.Errorf("%q is parsed as %+v", line, r)
		}
	}
	for _, line := range []string{"", "1", "x ok", "0 killed", "0 killed x", "1 ok 2", "0 killed 1 2", "-1 ok"} {
		if a, err := parseAnswer(line); err == nil {
			t.Errorf("%q is parsed as %+v", line, a)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("watch 1 4711 123456 99")
	f.Add("extend 2 4711 - -5")
	f.Add("0 killed 4711")
	f.Fuzz(func(t *testing.T, line string) {
		if r, err := parseRequest(line); err == nil && (r.pgid <= 1 || r.id == 0) {
			t.Errorf("%q is parsed as %+v", line, r)
		}
		_, _ = parseAnswer(line)
	})
}
