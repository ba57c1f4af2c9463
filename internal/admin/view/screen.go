package view

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Screen is a writer of a limited width. Tables drop the least important columns, and lines wrap. Output
// to any other writer has its full width.
type Screen struct {
	io.Writer
	Columns int
}

// columns returns the width of a writer; 0 means unlimited.
func columns(w io.Writer) int {
	s, _ := w.(Screen)
	return s.Columns
}

// least lists the columns that a narrow table drops, in this order. With -o wide all are shown.
var least = []string{
	"CAPACITY", "VERSION", "FAILURES", "MOVING", "PAUSED", "ZONE", "RETAINED", "DELAYED", "AGE", "IN/S", "DONE/S", "LOAD", "BROKER", "PARKED KEYS", "GAP TO NEXT",
	"ERRORS", "CLIENTS", "BATCH", "SCORE", "UNITS", "NEXT", "ATTEMPTS", "SUBSCRIPTION", "HEARTBEAT", "SINCE", "ELECTED", "ACTIVE", "HELD",
}

// narrow returns which columns of the given widths are kept, so that a row fits if possible.
func narrow(head []string, width []int, limit int) []bool {
	keep := slices.Repeat([]bool{true}, len(head))
	for _, name := range least {
		total := -2
		for i, w := range width {
			if keep[i] {
				total += w + 2
			}
		}
		if total <= limit {
			break
		}
		if i := slices.Index(head, name); i > 0 { // the first column says what the row is about
			keep[i] = false
		}
	}
	return keep
}

// truncate shortens a line.
func truncate(line string, limit int) string {
	if utf8.RuneCountInString(line) <= limit {
		return line
	}
	return string([]rune(line)[:limit-1]) + "…"
}

// Wrap breaks a line between words and indents the following lines.
func Wrap(line string, limit int) string {
	if limit <= 0 || utf8.RuneCountInString(line) <= limit {
		return line
	}
	var out strings.Builder
	used := 0
	for i, word := range strings.Fields(line) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case used+1+n > limit:
			out.WriteString("\n  ")
			used = 2
		default:
			out.WriteString(" ")
			used++
		}
		out.WriteString(word)
		used += n
	}
	return out.String()
}
