// Package terminal draws on terminals, and reads keys from them.
//
// It uses the few control sequences that every terminal has understood since the VT100, and golang.org/x/term for
// what differs between systems: the mode and the size of a terminal.
package terminal

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Size is the size of a terminal in characters. A zero means unknown.
type Size struct{ Columns, Rows int }

// Known reports whether a frame can be fitted to the size.
func (s Size) Known() bool { return s.Columns > 0 && s.Rows > 0 }

// descriptor is a stream with a file descriptor, which may be that of a terminal.
type descriptor interface{ Fd() uintptr }

// SizeOf returns the size of the terminal that a stream writes to; the zero Size if it is none.
func SizeOf(stream any) Size {
	f, ok := stream.(descriptor)
	if !ok {
		return Size{}
	}
	columns, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return Size{}
	}
	return Size{columns, rows}
}

// IsTerminal reports whether frames can be drawn on a stream.
func IsTerminal(stream any) bool {
	f, ok := stream.(descriptor)
	return ok && term.IsTerminal(int(f.Fd())) && drawable(f)
}

// Style is how a line looks.
type Style string

// The styles. Without colours, Alarm and Warning look like Plain.
const (
	Plain   Style = ""
	Bold    Style = "1"
	Dim     Style = "2"
	Alarm   Style = "31" // red
	Warning Style = "33" // yellow
)

// Line is a line of a frame. Its text has no control characters.
type Line struct {
	Text  string
	Style Style
}

// Text returns lines without a style.
func Text(lines ...string) []Line {
	out := make([]Line, len(lines))
	for i, text := range lines {
		out[i].Text = text
	}
	return out
}

// Painter draws frames at one place, each over the one before it.
type Painter struct {
	Out io.Writer
	// Whole says that frames have the whole terminal. Otherwise, what was on the terminal before the first frame
	// stays above it, and the last frame stays when the program ends.
	Whole bool
	// Colours says that styles are shown.
	Colours bool

	drawn int  // lines of the frame on the terminal
	size  Size // of the terminal when it was drawn
}

// The control sequences.
const (
	toLineEnd   = "\x1b[K" // clear from the cursor to the end of its line
	toScreenEnd = "\x1b[J" // clear from the cursor to the end of the screen
	toTop       = "\x1b[H"
	clearAll    = "\x1b[H\x1b[2J"
)

// Paint draws a frame. Longer lines than the terminal is wide are folded. If the frame is too high, its end is left
// out, and the last line says so.
func (p *Painter) Paint(frame []Line, size Size) error {
	var b strings.Builder
	switch {
	case p.drawn > 0 && size != p.size: // the terminal has moved the lines of the last frame
		b.WriteString(clearAll)
	case p.Whole:
		b.WriteString(toTop)
	case p.drawn > 0:
		fmt.Fprintf(&b, "\x1b[%dA\r", p.drawn)
	}
	lines := Fit(frame, size)
	for _, line := range lines {
		b.WriteString(p.styled(line) + toLineEnd + "\r\n")
	}
	b.WriteString(toScreenEnd)
	p.drawn, p.size = len(lines), size
	_, err := io.WriteString(p.Out, b.String())
	return err
}

// styled returns the text of a line with its style.
func (p *Painter) styled(line Line) string {
	if !p.Colours || line.Style == Plain {
		return line.Text
	}
	return "\x1b[" + string(line.Style) + "m" + line.Text + "\x1b[0m"
}

// Fit folds lines to the width of a terminal and leaves out the end of what is higher than it. One row
// stays free for the cursor.
func Fit(frame []Line, size Size) []Line {
	var out []Line
	for _, line := range frame {
		for _, text := range fold(line.Text, size.Columns) {
			out = append(out, Line{text, line.Style})
		}
	}
	if most := max(size.Rows-1, 2); size.Rows > 0 && len(out) > most {
		left := len(out) - most + 1
		out = append(out[:most-1], Line{Text: clip(fmt.Sprintf("… %d more lines", left), size.Columns)})
	}
	return out
}

// fold splits a line into lines of at most width characters.
func fold(line string, width int) []string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return []string{line}
	}
	var out []string
	for part := range slices.Chunk([]rune(line), width) {
		out = append(out, string(part))
	}
	return out
}

// clip cuts a line to at most width characters.
func clip(line string, width int) string { return fold(line, width)[0] }
