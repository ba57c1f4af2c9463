package house

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// figures are the measured figures that other pages quote: where, and the row of docs/measurements.md that has each.
var figures = []struct{ page, quote, row string }{
	{"README.md", `one leads within ([0-9]+ ms)`, "| postgres: kill -9, fast, new leader |"},
	{"README.md", `of ([0-9,]+ jobs) none is lost`, "broker killed 5 times, lost | 0 |"},
	{"README.md", `delivers ([0-9,]+ messages/s)`, "| Relay/backlog=20000 |"},
	{"docs/how-to/size.md", `took ([0-9.]+ % of one core) \(\[measured`, "| postgres: 1000 nodes in one process on one pool, fast, CPU of the server |"},
	{"docs/explanation/scale.md", `a thousand nodes take ([0-9.]+ % of) a core`, "| postgres: 1000 nodes in one process on one pool, fast, CPU of the server |"},
	{"docs/explanation/comparison.md", `drained ([0-9,]+) messages/s`, "| AgainstEmit |"},
	{"docs/explanation/comparison.md", `those of emitd ([0-9,]+) \(`, "| AgainstEmit |"},
}

// TestFiguresAreMeasured: whoever measures again also corrects the pages that quote a figure.
func TestFiguresAreMeasured(t *testing.T) {
	t.Parallel()
	measured := read(t, "docs/measurements.md")
	for _, f := range figures {
		m := regexp.MustCompile(f.quote).FindStringSubmatch(strings.Join(strings.Fields(read(t, f.page)), " "))
		if m == nil {
			t.Errorf("%s quotes no figure as %s", f.page, f.quote)
			continue
		}
		if !inRow(measured, f.row, m[1]) {
			t.Errorf("%s says %s, and docs/measurements.md has no such figure in the row %q", f.page, m[1], f.row)
		}
	}
}

// TestInRow: another figure, or the figure in another row, is none.
func TestInRow(t *testing.T) {
	t.Parallel()
	const table = "| a | 12\u202f345 messages/s |\n| b | 678 |\n"
	if !inRow(table, "| a |", "12,345 messages/s") || inRow(table, "| b |", "12,345") || inRow(table, "| a |", "2,345") {
		t.Error("a figure is found where it is not, or not where it is")
	}
}

// inRow reports whether a row of a table with this text has the figure, however its digits are grouped.
func inRow(page, row, figure string) bool {
	plain := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsSpace(r) || r == ',' || r == '\u202f' {
				return -1
			}
			return r
		}, s)
	}
	want := regexp.MustCompile(`(?:^|[^0-9])` + regexp.QuoteMeta(plain(figure)))
	for line := range strings.Lines(page) {
		if strings.Contains(line, row) && want.MatchString(plain(line)) {
			return true
		}
	}
	return false
}
