// Package top is what emitd top shows: a cluster at a glance, drawn again with each read of it.
//
// A [Model] takes the key presses of the user and what was read of the cluster, and returns frames. It has no clock
// and no terminal, so frames are compared with files in tests.
//
//	emitd top   cluster billing   every 2s   2026-11-20 09:25:05Z
//	LEADER emitd-1 (term 42, 11m03s)    LEASE 53.9s left            facts
//	NODES 2 live, 1 late    DAEMONS 3 active, 1 unassigned
//	! emitd-2 late: last heartbeat 41.2s ago (interval 15s)         problems, the worst first
//
//	[NODES] 3                                                       tables; keys go to the one in brackets
//	NAME     STATE  LOAD↓  …
//
// If the terminal is too low for all tables, the one in brackets gets the room, and the others are one line.
package top

import (
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/terminal"
	"github.com/emitd/emitd/internal/admin/view"
)

// Model is the state of emitd top. The zero value is not usable: see [New].
type Model struct {
	every  time.Duration
	tables []table

	status  view.Status
	readAt  time.Time // of status; zero before the first read has succeeded
	failing string    // why the last read failed; "" if it succeeded
	paused  bool
	focus   int // index of the table that keys go to
	backlog backlog
}

// New returns a model of a cluster that is read at an interval.
func New(every time.Duration) *Model {
	m := &Model{every: every}
	m.tables = []table{nodeTable(), daemonTable(), queueTable(), outboxTable(&m.backlog)}
	return m
}

// Read passes a status that was read at this time to the model.
func (m *Model) Read(s view.Status, at time.Time) {
	m.backlog.add(s.Outbox, at)
	m.status, m.readAt, m.failing = s, at, ""
	for _, t := range m.tables {
		t.load(&m.status)
	}
	if !m.tables[m.focus].shown() {
		m.focus = 0
	}
}

// Fail says why the last read failed. The frame keeps what the last successful read has shown.
func (m *Model) Fail(why string) { m.failing = view.Line(why) }

// Paused reports whether the cluster should not be read.
func (m *Model) Paused() bool { return m.paused }

// Press takes a key. It reports whether the program should end.
func (m *Model) Press(k terminal.Key) (quit bool) {
	t := m.tables[m.focus].list()
	switch k {
	case "q", terminal.Interrupt:
		return true
	case "p", " ":
		m.paused = !m.paused
	case terminal.Tab:
		m.next(1)
	case terminal.BackTab:
		m.next(-1)
	case terminal.Right:
		t.sortBy(t.sorted + 1)
	case terminal.Left:
		t.sortBy(t.sorted - 1)
	case "r":
		t.reverse = !t.reverse
	case terminal.Up, "k":
		t.first--
	case terminal.Down, "j":
		t.first++
	case terminal.PageUp:
		t.first -= max(t.visible-1, 1)
	case terminal.PageDown:
		t.first += max(t.visible-1, 1)
	case terminal.Home:
		t.first = 0
	case terminal.End:
		t.first = t.rows
	}
	t.first = max(min(t.first, t.rows-t.visible), 0)
	return false
}

// next moves the brackets to the next table that is shown.
func (m *Model) next(step int) {
	for range m.tables {
		m.focus = (m.focus + step + len(m.tables)) % len(m.tables)
		if m.tables[m.focus].shown() {
			return
		}
	}
}

// keys is the last line of a frame.
const keys = "q quit  p pause  tab table  ←→ sort  r reverse  ↑↓ scroll"

// Frame returns what the terminal shows.
func (m *Model) Frame(now time.Time, size terminal.Size) []terminal.Line {
	size.Rows -= 2 // the last line stays free for the cursor, the one above it has the keys
	out := m.head(now, size)
	if !m.readAt.IsZero() {
		out = append(out, m.problems(size)...)
		out = append(out, m.body(size.Columns, size.Rows-len(out))...)
	}
	if blank := size.Rows - len(out); blank > 0 {
		out = append(out, slices.Repeat([]terminal.Line{{}}, blank)...)
	}
	return append(out[:max(size.Rows, 0)], terminal.Line{Text: clip(keys, size.Columns), Style: terminal.Dim})
}

// head returns the title, what is wrong with the reads, and the facts.
func (m *Model) head(now time.Time, size terminal.Size) []terminal.Line {
	title := "emitd top"
	if !m.readAt.IsZero() {
		title += "   cluster " + view.Line(m.status.Cluster)
	}
	title += fmt.Sprintf("   every %v   %s", m.every, now.UTC().Format("15:04:05Z"))
	if m.paused {
		title += "   PAUSED"
	}
	out := []terminal.Line{{Text: clip(title, size.Columns), Style: terminal.Bold}}
	if m.failing != "" {
		text := "! not read: " + m.failing
		if !m.readAt.IsZero() {
			text = "! not read for " + view.Exact(now.Sub(m.readAt)) + ": " + m.failing
		}
		out = append(out, wrapped(text, size.Columns, terminal.Alarm)...)
	}
	if m.readAt.IsZero() {
		if m.failing == "" {
			out = append(out, terminal.Line{Text: "reading the cluster…"})
		}
		return out
	}
	for _, line := range packed(m.status.Facts(), size.Columns) {
		out = append(out, wrapped(line, size.Columns, terminal.Plain)...)
	}
	return out
}

// problems returns the notices, the worst first, in at most a quarter of the screen.
func (m *Model) problems(size terminal.Size) []terminal.Line {
	var out []terminal.Line
	most := max(size.Rows/4, 2)
	for i, n := range m.status.Attention {
		style := terminal.Warning
		if n.Failing() {
			style = terminal.Alarm
		}
		text := "! " + view.Line(n.Text)
		if n.Action != "" {
			text += "    -> " + view.Line(n.Action)
		}
		lines := wrapped(text, size.Columns, style)
		if left := len(m.status.Attention) - i; len(out)+len(lines) > most-min(left-1, 1) && i > 0 {
			return append(out, terminal.Line{Text: fmt.Sprintf("! %d more: emitd status", left), Style: style})
		}
		out = append(out, lines...)
	}
	return out
}

// body returns the tables in the given number of lines.
func (m *Model) body(columns, rows int) []terminal.Line {
	var out []terminal.Line
	whole := 0 // lines if nothing is left out
	others := 0
	for i, t := range m.tables {
		if t.shown() {
			whole += t.list().rows + 3
			if i != m.focus {
				others++
			}
		}
	}
	for i, t := range m.tables {
		if !t.shown() {
			continue
		}
		l := t.list()
		l.visible = l.rows
		title := fmt.Sprintf("%s %s", l.title, t.summary())
		if i == m.focus {
			title = fmt.Sprintf("[%s] %s", l.title, t.summary())
			if whole > rows {
				l.visible = min(max(rows-others-3, 1), l.rows)
			}
		}
		if whole <= rows || i == m.focus {
			out = append(out, terminal.Line{})
		}
		out = append(out, terminal.Line{Text: clip(view.Line(title), columns), Style: terminal.Bold})
		if whole > rows && i != m.focus {
			continue
		}
		l.first = max(min(l.first, l.rows-l.visible), 0)
		out = append(out, t.lines(columns)...)
	}
	return out
}
