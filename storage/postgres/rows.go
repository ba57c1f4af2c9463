package postgres

import (
	"cmp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// The readers below follow the columns of the tables, in their order: see the migrations.

func (c *composite) record() (r daemon.Record) {
	r.Unit = daemon.Unit{Daemon: daemon.ID(c.text()), Index: int(c.int())}
	r.State = daemon.State(c.text())
	r.Holder = node.Identity{Name: c.text(), ID: node.ID(c.text()), Incarnation: node.Incarnation(c.text())}
	r.Generation, r.Term = c.int(), c.int()
	r.Since, r.AssignedAt, r.RevokedAt = c.time(), c.time(), c.time()
	r.AcknowledgeTimeout, r.DrainTimeout = time.Duration(c.int()), time.Duration(c.int())
	r.Failures = int(c.int())
	r.Forced, r.Retired = c.bool(), c.bool()
	r.Reason, r.Error = c.text(), c.text()
	c.json(&r.Embargoes)
	return r
}

func (c *composite) member() (m node.Member) {
	m.Incarnation = node.Incarnation(c.text())
	m.Seq, m.Heard = uint64(c.int()), uint64(c.int())
	m.LastHeartbeatAt, m.HeardAt = c.time(), c.time()
	m.HighestTerm, m.HighestGeneration = c.int(), c.int()
	m.RegisteredAt, m.EndedAt = c.time(), c.time()
	c.bool() // never_lead is one of the traits
	m.Witnessed = c.bool()
	c.bool() // departed
	m.State, m.Judged = node.State(c.text()), node.State(c.text())
	m.ID, m.Name = node.ID(c.text()), c.text()
	m.Advert, m.EndReason = c.text(), c.text()
	c.json(&m.Traits)
	return m
}

func (c *composite) event() (e daemon.Event) {
	e.Seq, e.At, e.Kind = c.int(), c.time(), daemon.EventKind(c.text())
	e.Node, e.NodeID, e.Incarnation = c.text(), node.ID(c.text()), node.Incarnation(c.text())
	e.Daemon = daemon.ID(c.text())
	if index, null := c.field(); !null {
		n := composite{rest: append(slices.Clone(index), ',')}
		e.Unit = daemon.Unit{Daemon: e.Daemon, Index: int(n.int())}
		c.fail(n.err)
	}
	e.Term, e.TermOrdinal, e.Generation = c.int(), c.int(), c.int()
	e.Reason, e.Detail = c.text(), c.raw()
	return e
}

// command reads a command and its place in the order of submission.
func (c *composite) command() (w storage.Command, number int64) {
	w.ID, number = c.text(), c.int()
	w.Kind, w.Actor, w.Reason = c.text(), c.text(), c.text()
	w.Term, w.Cooldown, w.Args = c.int(), time.Duration(c.int()), c.raw()
	w.CreatedAt, w.DoneAt, w.Result = c.time(), c.time(), c.text()
	return w, number
}

func (c *composite) term() (t node.Term) {
	t.Number, t.Ordinal = c.int(), c.int()
	t.Leader = node.Identity{ID: node.ID(c.text()), Incarnation: node.Incarnation(c.text()), Name: c.text()}
	t.ElectedAt, t.Vacant = c.time(), c.bool()
	return t
}

func (c *composite) lease() (l node.Lease) {
	c.int() // the term's number
	l.ExpiresAt, l.Renewals = c.time(), c.int()
	l.LastPassAt, l.PassSeq = c.time(), uint64(c.int())
	return l
}

// state is what one row says of the cluster. The store's identity is that of the server which
// answers: another system, or another timeline of the same one, has lost what it has lost. The
// timeline is that of the log which is written now, because a connection outlives a promotion.
type state struct {
	now          time.Time
	id           string
	term         node.Term
	lease        node.Lease
	head, oldest int64
}

func (s *state) read(rows pgx.Rows) error {
	return eachRow(rows, func(values [][]byte) (err error) {
		if s.now, err = parseTime(string(values[0])); err != nil {
			return err
		}
		// The first eight digits of a log file's name are the timeline.
		s.id = string(values[1]) + "/" + string(values[2][:min(len(values[2]), 8)])
		term, lease, counter := rowOf(values[3]), rowOf(values[4]), rowOf(values[5])
		s.term, s.lease = term.term(), lease.lease()
		s.head, s.oldest = counter.int(), counter.int()
		return cmp.Or(term.err, lease.err, counter.err)
	})
}

// eachRow hands over the texts of each row, which are valid until the next.
func eachRow(rows pgx.Rows, take func(values [][]byte) error) error {
	for rows.Next() {
		if err := take(rows.RawValues()); err != nil {
			return err
		}
	}
	return rows.Err()
}

// list reads rows of one composite each.
func list[T any](into *[]T, read func(*composite) T) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		return eachRow(rows, func(values [][]byte) error {
			c := rowOf(values[0])
			*into = append(*into, read(c))
			return c.err
		})
	}
}

func records(into *[]daemon.Record) func(pgx.Rows) error { return list(into, (*composite).record) }
func events(into *[]daemon.Event) func(pgx.Rows) error   { return list(into, (*composite).event) }

// commands reads commands, oldest first.
func commands(into *[]storage.Command) func(pgx.Rows) error {
	type numbered struct {
		storage.Command
		number int64
	}
	return func(rows pgx.Rows) error {
		var all []numbered
		err := list(&all, func(c *composite) (n numbered) {
			n.Command, n.number = c.command()
			return n
		})(rows)
		slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(a.number, b.number) })
		for _, c := range all {
			*into = append(*into, c.Command)
		}
		return err
	}
}

// members reads the newest event and, of the same snapshot, the member list. There is always a
// row, because whoever asks has one.
func members(into *[]node.Member, head *int64) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		return eachRow(rows, func(values [][]byte) error {
			at := composite{rest: append(slices.Clone(values[0]), ',')}
			c := rowOf(values[1])
			*head = at.int()
			*into = append(*into, c.member())
			return cmp.Or(at.err, c.err)
		})
	}
}

// stamp receives a time of the store in a column of its own: null is the zero time, and the zone
// is UTC.
type stamp struct{ to *time.Time }

// ScanTimestamptz implements [pgtype.TimestamptzScanner].
func (s stamp) ScanTimestamptz(v pgtype.Timestamptz) error {
	*s.to = time.Time{}
	if v.Valid && v.InfinityModifier == pgtype.Finite {
		*s.to = v.Time.UTC()
	}
	return nil
}

// micros is a duration in the unit of Postgres' intervals, rounded up: a lease is never shorter
// than asked for.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
