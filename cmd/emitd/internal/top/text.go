package top

import (
	"strings"
	"unicode/utf8"

	"github.com/emitd/emitd/cmd/emitd/internal/terminal"
	"github.com/emitd/emitd/internal/admin/view"
)

// packed joins texts to as few lines as possible.
func packed(texts []string, columns int) []string {
	const between = "    "
	var out []string
	for _, text := range texts {
		last := len(out) - 1
		if last >= 0 && utf8.RuneCountInString(out[last])+len(between)+utf8.RuneCountInString(text) <= columns {
			out[last] += between + text
			continue
		}
		out = append(out, text)
	}
	return out
}

// wrapped breaks a line between words.
func wrapped(text string, columns int, style terminal.Style) []terminal.Line {
	var out []terminal.Line
	for line := range strings.SplitSeq(view.Wrap(text, columns), "\n") {
		out = append(out, terminal.Line{Text: clip(line, columns), Style: style})
	}
	return out
}

// clip cuts a line to at most width characters.
func clip(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width-1]) + "…"
}
