package top

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/terminal"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/node"
)

// table is a table of any type of rows.
type table interface {
	// load takes the rows of a status.
	load(s *view.Status)
	// shown reports whether there is anything to show.
	shown() bool
	// summary returns what the title says.
	summary() string
	// lines returns the head and the visible rows.
	lines(columns int) []terminal.Line
	list() *list
}

// list is what all tables have: the order and the part of the rows that is visible.
type list struct {
	title   string
	columns int
	rows    int
	sorted  int  // index of the column that orders the rows; -1 puts problems first
	reverse bool // the opposite of the column's own direction
	first   int  // index of the first visible row
	visible int  // number of visible rows in the last frame
}

// sortBy orders the rows by a column, in its own direction.
func (l *list) sortBy(column int) {
	l.sorted, l.reverse = max(min(column, l.columns-1), -1), false
}

// column is a column of a table. Rows are ordered by compare, numbers from the greatest.
type column[T any] struct {
	name    string
	cell    func(T) string
	compare func(a, b T) int
}

// text returns a column that is ordered alphabetically.
func text[T any](name string, cell func(T) string) column[T] {
	return column[T]{name, cell, func(a, b T) int { return cmp.Compare(cell(a), cell(b)) }}
}

// number returns a column that is ordered from the greatest value.
func number[T any, N cmp.Ordered](name string, value func(T) N, cell func(T) string) column[T] {
	if cell == nil {
		cell = func(row T) string { return fmt.Sprint(value(row)) }
	}
	return column[T]{name, cell, func(a, b T) int { return cmp.Compare(value(b), value(a)) }}
}

// tableOf is the table of one type of rows.
type tableOf[T any] struct {
	state    list
	columns  []column[T]
	problem  func(T) int // rank of a row when problems are first, 0 is the worst
	from     func(*view.Status) []T
	describe func(*view.Status) string // summary; "" if there is no table

	rows    []T
	caption string
}

func (t *tableOf[T]) load(s *view.Status) {
	t.rows, t.caption = t.from(s), t.describe(s)
	t.state.columns, t.state.rows = len(t.columns), len(t.rows)
}

func (t *tableOf[T]) shown() bool     { return t.caption != "" }
func (t *tableOf[T]) summary() string { return t.caption }
func (t *tableOf[T]) list() *list     { return &t.state }

func (t *tableOf[T]) lines(columns int) []terminal.Line {
	out := &view.Table{}
	for i, c := range t.columns {
		name := c.name
		if i == t.state.sorted {
			name += map[bool]string{false: "↓", true: "↑"}[t.state.reverse]
		}
		out.Head = append(out.Head, name)
	}
	end := min(t.state.first+t.state.visible, len(t.rows))
	for _, row := range t.ordered()[t.state.first:end] {
		var cells []string
		for _, c := range t.columns {
			cells = append(cells, c.cell(row))
		}
		out.Add(cells...)
	}
	var b bytes.Buffer
	_ = out.Write(view.Screen{Writer: &b, Columns: columns})
	return terminal.Text(strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")...)
}

// ordered returns the rows in the order of the table. Equal rows keep the order of the status.
func (t *tableOf[T]) ordered() []T {
	compare := func(a, b T) int { return cmp.Compare(t.problem(a), t.problem(b)) }
	if t.state.sorted >= 0 {
		compare = t.columns[t.state.sorted].compare
	}
	rows := slices.Clone(t.rows)
	slices.SortStableFunc(rows, func(a, b T) int {
		if t.state.reverse {
			return compare(b, a)
		}
		return compare(a, b)
	})
	return rows
}

// seen is a row with the time of its status.
type seen[T any] struct {
	row T
	at  time.Time
}

func nodeTable() table {
	type row = seen[view.Node]
	heartbeat := func(n row) time.Duration { return max(n.at.Sub(n.row.LastHeartbeatAt.Time), 0) }
	return &tableOf[row]{
		state: list{title: "NODES", sorted: -1},
		columns: []column[row]{
			text("NAME", func(n row) string { return n.row.Name }),
			text("STATE", func(n row) string { return nodeState(n.row) }),
			number("LOAD", func(n row) float64 { return n.row.Load }, func(n row) string { return strconv.FormatFloat(n.row.Load, 'f', -1, 64) }),
			number("UNITS", func(n row) int { return n.row.Units }, nil),
			number("HEARTBEAT", heartbeat, func(n row) string { return view.Short(heartbeat(n)) }),
			text("VERSION", func(n row) string { return n.row.Version }),
			text("ZONE", func(n row) string { return n.row.Labels["zone"] }),
		},
		problem: func(n row) int {
			switch {
			case n.row.State == node.Late || n.row.State == node.Deaf:
				return 0
			case n.row.State != node.Live || n.row.Reason != "" || len(n.row.Orders) > 0:
				return 1
			}
			return 2
		},
		from: func(s *view.Status) []row {
			var out []row
			for _, n := range s.Nodes {
				out = append(out, row{n, s.At.Time})
			}
			return out
		},
		describe: func(s *view.Status) string { return strconv.Itoa(len(s.Nodes)) },
	}
}

// nodeState returns the state of a node, whether it leads, and what operators have ordered.
func nodeState(n view.Node) string {
	out := string(n.State)
	if n.State == node.Live && n.Reason != "" {
		out += ", sick"
	}
	if n.Leader {
		out += ", leader"
	}
	for _, o := range n.Orders {
		out += ", " + o.State()
	}
	return out
}

// daemonRow counts the units of a daemon.
type daemonRow struct {
	id                                                daemon.ID
	units, active, crashing, moving, paused, nodeless int
	failures                                          int
}

func daemonTable() table {
	type row = daemonRow
	return &tableOf[row]{
		state: list{title: "DAEMONS", sorted: -1},
		columns: []column[row]{
			text("DAEMON", func(d row) string { return string(d.id) }),
			number("UNITS", func(d row) int { return d.units }, nil),
			number("ACTIVE", func(d row) int { return d.active }, nil),
			number("CRASHING", func(d row) int { return d.crashing }, nil),
			number("UNASSIGNED", func(d row) int { return d.nodeless }, nil),
			number("MOVING", func(d row) int { return d.moving }, nil),
			number("PAUSED", func(d row) int { return d.paused }, nil),
			number("FAILURES", func(d row) int { return d.failures }, nil),
		},
		problem: func(d row) int {
			switch {
			case d.crashing+d.nodeless > 0:
				return 0
			case d.moving+d.paused > 0:
				return 1
			}
			return 2
		},
		from:     daemonRows,
		describe: func(s *view.Status) string { return strconv.Itoa(len(daemonRows(s))) },
	}
}

func daemonRows(s *view.Status) []daemonRow {
	var out []daemonRow
	for _, u := range s.Daemons { // sorted by daemon
		if len(out) == 0 || out[len(out)-1].id != u.Daemon {
			out = append(out, daemonRow{id: u.Daemon})
		}
		d := &out[len(out)-1]
		d.units++
		d.failures += u.Failures
		switch u.State {
		case daemon.Active:
			d.active++
		case view.Crashing:
			d.crashing++
		case view.Paused:
			d.paused++
		case daemon.Unassigned:
			d.nodeless++
		default:
			d.moving++
		}
	}
	return out
}

func queueTable() table {
	type row = view.QueueStats
	oldest := func(q row) time.Duration { return time.Duration(q.OldestAgeMS) * time.Millisecond }
	return &tableOf[row]{
		state: list{title: "QUEUES", sorted: -1},
		columns: []column[row]{
			text("QUEUE", queueName),
			number("WAITING", func(q row) int64 { return q.Waiting }, nil),
			number("ACTIVE", func(q row) int64 { return q.Active }, nil),
			number("DEAD", func(q row) int64 { return q.Dead }, nil),
			number("OLDEST", oldest, func(q row) string { return view.Exact(oldest(q)) }),
			number("IN/S", func(q row) float64 { return q.EnqueueRate }, func(q row) string { return rate(q.EnqueueRate) }),
			number("DONE/S", func(q row) float64 { return q.CompleteRate }, func(q row) string { return rate(q.CompleteRate) }),
			number("DELAYED", func(q row) int64 { return q.Delayed }, nil),
		},
		problem: func(q row) int {
			switch {
			case q.Problem != "" || q.Dead > 0:
				return 0
			case q.Paused:
				return 1
			}
			return 2
		},
		from: func(s *view.Status) []row {
			if s.Queues == nil {
				return nil
			}
			return s.Queues.Queues
		},
		describe: func(s *view.Status) string {
			switch {
			case s.Queues == nil:
				return ""
			case s.Queues.Problem != "":
				return "unknown: " + s.Queues.Problem
			}
			return strconv.Itoa(len(s.Queues.Queues))
		},
	}
}

// queueName returns the name of a queue, with its state unless it is served as it should be.
func queueName(q view.QueueStats) string {
	switch {
	case q.Problem != "":
		return q.Queue + ", unknown"
	case q.Paused:
		return q.Queue + ", paused"
	case q.Broker == "":
		return q.Queue + ", no broker"
	}
	return q.Queue
}

func rate(r float64) string { return strconv.FormatFloat(r, 'f', 1, 64) }

func outboxTable(b *backlog) table {
	type row = view.OutboxStats
	oldest := func(s row) time.Duration { return time.Duration(s.OldestAgeMS) * time.Millisecond }
	return &tableOf[row]{
		state: list{title: "OUTBOX", sorted: -1},
		columns: []column[row]{
			text("SUBSCRIPTION", func(s row) string { return s.Subscription }),
			text("STATE", row.State),
			number("PENDING", func(s row) int64 { return s.Pending }, nil),
			number("GROWTH/S", func(s row) float64 { return b.growth(s.Subscription) }, func(s row) string { return b.cell(s.Subscription) }),
			number("OLDEST", oldest, func(s row) string { return view.Exact(oldest(s)) }),
			number("PARKED KEYS", func(s row) int64 { return s.KeysWaiting }, nil),
			number("DEAD", func(s row) int64 { return s.Dead }, nil),
		},
		problem: func(s row) int {
			switch {
			case s.SinkDown() || s.Dead+s.KeysHeld > 0:
				return 0
			case s.Paused || s.KeysWaiting > 0:
				return 1
			}
			return 2
		},
		from: func(s *view.Status) []row {
			if s.Outbox == nil {
				return nil
			}
			return s.Outbox.Subscriptions
		},
		describe: func(s *view.Status) string {
			switch {
			case s.Outbox == nil:
				return ""
			case s.Outbox.Problem != "":
				return "unknown: " + s.Outbox.Problem
			}
			return strconv.Itoa(len(s.Outbox.Subscriptions))
		},
	}
}

// backlog measures how fast the pending messages of subscriptions grow, from one read to the next.
type backlog struct {
	at      time.Time
	pending map[string]int64
	rates   map[string]float64
}

// add takes the state of a read.
func (b *backlog) add(o *view.Outbox, at time.Time) {
	if o == nil || o.Problem != "" {
		b.pending, b.rates = nil, nil
		return
	}
	pending, rates := map[string]int64{}, map[string]float64{}
	for _, s := range o.Subscriptions {
		pending[s.Subscription] = s.Pending
		if was, ok := b.pending[s.Subscription]; ok && at.After(b.at) {
			rates[s.Subscription] = float64(s.Pending-was) / at.Sub(b.at).Seconds()
		}
	}
	b.at, b.pending, b.rates = at, pending, rates
}

func (b *backlog) growth(subscription string) float64 { return b.rates[subscription] }

// cell returns the growth with its sign; "" while it is not known.
func (b *backlog) cell(subscription string) string {
	r, ok := b.rates[subscription]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%+.1f", r)
}
