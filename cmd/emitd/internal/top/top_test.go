package top

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/cmd/emitd/internal/terminal"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/node"
)

var update = flag.Bool("update", false, "write the files in testdata")

var start = time.Date(2026, 11, 20, 9, 25, 5, 0, time.UTC)

func ago(d time.Duration) view.Time { return view.Time{Time: start.Add(-d)} }

// billing is a cluster with something of everything.
func billing() view.Status {
	s := view.Status{Cluster: "billing", At: ago(0), Leader: &view.Leader{
		Node: "emitd-1", TermOrdinal: 42, ElectedAt: ago(11*time.Minute + 3*time.Second), ExpiresAt: view.Time{Time: start.Add(53900 * time.Millisecond)},
	}}
	addNode := func(name string, state node.State, beat time.Duration, load float64, units int) {
		s.Nodes = append(s.Nodes, view.Node{
			Name: name, State: state, LastHeartbeatAt: ago(beat), Load: load, Units: units, Version: "0.4.1",
			Labels: map[string]string{"zone": "eu-1a"}, Leader: name == "emitd-1",
		})
	}
	addNode("emitd-0", "live", 6*time.Second, 3, 3)
	addNode("emitd-1", "live", 10*time.Second, 2.5, 2)
	addNode("emitd-2", "late", 41*time.Second, 1, 1)
	addNode("emitd-3", "live", 2*time.Second, 0, 0)
	s.Nodes[3].Orders = []view.Order{{Kind: daemon.CommandCordon}}
	unit := func(id daemon.ID, n int, states ...daemon.State) {
		for i := range n {
			u := view.Unit{Daemon: id, Unit: daemon.Unit{Daemon: id, Index: i}, State: states[i%len(states)]}
			if u.State == view.Crashing {
				u.Failures = 14
			}
			s.Daemons = append(s.Daemons, u)
		}
	}
	unit("acme:gpu-train", 1, daemon.Unassigned)
	unit("acme:invoice-mailer", 4, daemon.Active, daemon.Revoking)
	unit("acme:reports", 2, daemon.Active, view.Crashing)
	unit("emit:sweeper", 1, daemon.Active)
	s.Queues = &view.Queues{Queues: []view.QueueStats{
		{Queue: "default", Waiting: 1204, Active: 8, OldestAgeMS: 4200, EnqueueRate: 120.25, CompleteRate: 118, Broker: "emitd-0"},
		{Queue: "mails", Dead: 2, Paused: true, Broker: "emitd-1"},
	}}
	s.Outbox = &view.Outbox{Pending: 37, Exact: true, OldestAgeMS: 420, Subscriptions: []view.OutboxStats{
		{Subscription: "orders", Pending: 30, Exact: true, OldestAgeMS: 420},
		{Subscription: "search", Pending: 7, Exact: true, OldestAgeMS: 20, Cursors: []view.OutboxCursor{{Problem: "sink is down: 503"}}},
	}}
	s.Attention = []view.Notice{
		{Severity: "failing", Text: "acme:gpu-train unassigned 1m33s: no eligible node", Action: "emitd daemon explain acme:gpu-train"},
		{Severity: "failing", Text: "acme:reports/1 is crashing for 5m (14 restarts, last: exit status 1) on emitd-0", Action: "emitd daemon explain acme:reports/1"},
		{Severity: "warning", Text: "emitd-2 late: last heartbeat 41.2s ago (interval 15s); removed in 48.8s unless it returns", Action: "emitd events --kind node.late"},
	}
	return s
}

// drawn returns a frame with its styles, and checks that it fits the terminal.
func drawn(t *testing.T, m *Model, now time.Time, size terminal.Size) string {
	t.Helper()
	frame := m.Frame(now, size)
	if len(frame) > size.Rows-1 {
		t.Errorf("%d lines in a terminal of %d", len(frame), size.Rows)
	}
	var b strings.Builder
	for _, l := range frame {
		if n := utf8.RuneCountInString(l.Text); n > size.Columns {
			t.Errorf("%d characters in a terminal of %d: %s", n, size.Columns, l.Text)
		}
		mark := map[terminal.Style]string{terminal.Bold: "b", terminal.Dim: "d", terminal.Alarm: "!", terminal.Warning: "w"}[l.Style]
		fmt.Fprintf(&b, "%1s|%s\n", mark, strings.TrimRight(l.Text, " "))
	}
	return b.String()
}

// TestFrames compares frames with the files in testdata. Each fits its terminal.
func TestFrames(t *testing.T) {
	t.Parallel()
	grown := billing()
	grown.Outbox.Subscriptions[0].Pending = 55
	wide, narrow, low := terminal.Size{Columns: 120, Rows: 50}, terminal.Size{Columns: 60, Rows: 40}, terminal.Size{Columns: 60, Rows: 20}
	for name, tt := range map[string]struct {
		size terminal.Size
		keys []terminal.Key
		do   func(m *Model)
		late time.Duration // age of the last read
	}{
		"begin":           {size: narrow, do: func(m *Model) { *m = *New(2 * time.Second) }},
		"begin_fails":     {size: narrow, do: func(m *Model) { *m = *New(2 * time.Second); m.Fail("E5101: store unreachable\x1b[2J") }},
		"wide":            {size: wide},
		"narrow":          {size: narrow},
		"low":             {size: low},
		"low_queues":      {size: low, keys: []terminal.Key{terminal.Tab, terminal.Tab}},
		"tiny":            {size: terminal.Size{Columns: 40, Rows: 10}},
		"by_load":         {size: wide, keys: []terminal.Key{terminal.Right, terminal.Right, terminal.Right}},
		"by_load_reverse": {size: wide, keys: []terminal.Key{terminal.Right, terminal.Right, terminal.Right, "r"}},
		"scrolled":        {size: low, keys: []terminal.Key{terminal.Down, terminal.Down}},
		"paused":          {size: low, keys: []terminal.Key{"p"}, late: time.Minute},
		"failing":         {size: low, do: func(m *Model) { m.Fail("E5101: store unreachable: nobody listens") }, late: 12500 * time.Millisecond},
		"growth":          {size: wide, do: func(m *Model) { m.Read(grown, start.Add(2*time.Second)) }},
		"hostile": {size: narrow, do: func(m *Model) {
			s := billing()
			s.Cluster, s.Nodes[0].Name, s.Attention[0].Text = "a\x1b[2Jb", "x\x1b]0;title\x07\ny", "line\r\n\x1b[31m"
			s.Queues = &view.Queues{Problem: "\x1b[2J"}
			m.Read(s, start)
		}},
		"empty": {size: narrow, do: func(m *Model) {
			m.Read(view.Status{Cluster: "new", At: ago(0), Attention: []view.Notice{{Severity: "failing", Text: "no node is registered in this store", Action: "emitd serve --store …"}}}, start)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := New(2 * time.Second)
			m.Read(billing(), start)
			if tt.do != nil {
				tt.do(m)
			}
			m.Frame(start, tt.size)
			for _, k := range tt.keys {
				if m.Press(k) {
					t.Fatalf("%s ends the program", k)
				}
			}
			got := drawn(t, m, start.Add(tt.late), tt.size)
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || got != string(want) {
				t.Errorf("%v, got:\n%s\nwant:\n%s", err, got, want)
			}
		})
	}
}

// TestFits checks that frames of a large cluster fit every terminal, wherever they are scrolled to.
func TestFits(t *testing.T) {
	t.Parallel()
	s := billing()
	for i := range 500 {
		s.Nodes = append(s.Nodes, view.Node{Name: fmt.Sprintf("node-%d", i), State: "live"})
	}
	for rows := 12; rows < 60; rows += 3 {
		for columns := 40; columns < 130; columns += 7 {
			size := terminal.Size{Columns: columns, Rows: rows}
			m := New(time.Second)
			m.Read(s, start)
			for _, k := range []terminal.Key{terminal.PageDown, terminal.End, terminal.Up, terminal.PageUp, terminal.Tab, terminal.Home, terminal.BackTab} {
				drawn(t, m, start, size)
				m.Press(k)
			}
		}
	}
}

// TestPress checks the keys that change no table.
func TestPress(t *testing.T) {
	t.Parallel()
	m := New(time.Second)
	for _, k := range []terminal.Key{terminal.Tab, terminal.Down, terminal.End, terminal.Right, "x"} {
		if m.Press(k) {
			t.Errorf("%s ends the program", k)
		}
	}
	if m.Press("p"); !m.Paused() {
		t.Error("p does not pause")
	}
	if m.Press("p"); m.Paused() {
		t.Error("the second p does not go on")
	}
	for _, k := range []terminal.Key{"q", terminal.Interrupt} {
		if !m.Press(k) {
			t.Errorf("%s does not end the program", k)
		}
	}
}

// TestFocus checks that keys never go to a table that has disappeared.
func TestFocus(t *testing.T) {
	t.Parallel()
	m := New(time.Second)
	m.Read(billing(), start)
	m.Press(terminal.BackTab)
	if got := m.tables[m.focus].list().title; got != "OUTBOX" {
		t.Fatalf("keys go to %s", got)
	}
	s := billing()
	s.Outbox = nil
	m.Read(s, start)
	if got := m.tables[m.focus].list().title; got != "NODES" {
		t.Errorf("keys go to %s", got)
	}
	m.Press(terminal.BackTab)
	if got := m.tables[m.focus].list().title; got != "QUEUES" {
		t.Errorf("keys go to %s", got)
	}
}
