package view

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table holds rows for people. A cell is one line. Control characters in it are replaced, because names
// and errors come from other processes.
type Table struct {
	Head []string
	Rows [][]string
}

// Add appends a row; empty cells are written as a dash.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write prints the table, columns two spaces apart.
func (t *Table) Write(w io.Writer) error {
	width := make([]int, len(t.Head))
	rows := append([][]string{t.Head}, t.Rows...)
	clean := make([][]string, len(rows))
	for i, row := range rows {
		clean[i] = make([]string, len(row))
		for j, cell := range row {
			clean[i][j] = Line(cell)
			if clean[i][j] == "" {
				clean[i][j] = "-"
			}
			width[j] = max(width[j], utf8.RuneCountInString(clean[i][j]))
		}
	}
	keep := slices.Repeat([]bool{true}, len(width))
	limit := columns(w)
	if limit > 0 {
		keep = narrow(t.Head, width, limit)
	}
	var b strings.Builder
	for _, row := range clean {
		var line strings.Builder
		for j, cell := range row {
			if !keep[j] {
				continue
			}
			line.WriteString(cell)
			if j < len(row)-1 {
				line.WriteString(strings.Repeat(" ", width[j]-utf8.RuneCountInString(cell)+2))
			}
		}
		text := line.String()
		if limit > 0 {
			text = truncate(strings.TrimRight(text, " "), limit)
		}
		b.WriteString(text + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Line makes a text safe to print in one line of a terminal.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return '?'
		}
		return r
	}, s)
}

// Visible makes a text of one line safe to print on a terminal without hiding what is in it: control characters become
// ^[ and the like, characters that change the direction or the look of others their code. Tabs stay.
func Visible(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\t':
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			b.WriteString("^" + string(r^0x40))
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			fmt.Fprintf(&b, "<U+%04X>", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Format is an output format.
type Format string

// The formats. JSONLFormat writes one value per line, NameFormat only names.
const (
	TableFormat Format = "table"
	WideFormat  Format = "wide"
	JSONFormat  Format = "json"
	JSONLFormat Format = "jsonl"
	YAMLFormat  Format = "yaml"
	NameFormat  Format = "name"
)

// IsTable reports whether the format is for people rather than programs.
func (f Format) IsTable() bool { return f == TableFormat || f == WideFormat }

// Formats lists all formats.
func Formats() []Format {
	return []Format{TableFormat, WideFormat, JSONFormat, JSONLFormat, YAMLFormat, NameFormat}
}

// JSON writes v indented.
func JSON(w io.Writer, v any) error { return encode(w, v, "  ") }

// JSONLine writes v on one line.
func JSONLine(w io.Writer, v any) error {
	if s, ok := v.(*Status); ok {
		return s.writeLine(w)
	}
	return encode(w, v, "")
}

func encode(w io.Writer, v any, indent string) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}
