package postgres

import (
	"cmp"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// The readers below follow the columns of the tables, in their order: see the migrations.

// unit reads the columns daemon and index.
func (c *composite) unit() daemon.Unit {
	name := c.text()
	return rules.FromColumns(name, int(c.int()))
}

func (c *composite) record() (r daemon.Record) {
	r.Unit = c.unit()
	r.State = daemon.State(c.text())
	r.Holder = node.Identity{Name: c.text(), ID: node.ID(c.text()), Incarnation: node.Incarnation(c.text())}
	r.Generation, r.Term = c.int(), c.int()
	r.Since, r.AssignedAt, r.RevokedAt = c.time(), c.time(), c.time()
	r.AcknowledgeTimeout, r.DrainTimeout = time.Duration(c.int()), time.Duration(c.int())
	r.Failures = int(c.int())
	r.Forced, r.Retired = c.bool(), c.bool()
	r.Reason, r.Error = c.text(), c.text()
	c.json(&r.Embargoes)
	r.FailingSince, r.RetryAt = c.time(), c.time()
	return r
}

// member reads the row of a node. The traits are the last column: known has those of most nodes.
func (c *composite) member(known *traitsCache) (m node.Member) {
	m.Incarnation = node.Incarnation(c.text())
	m.Seq, m.ConfirmedSeq = uint64(c.int()), uint64(c.int())
	m.LastHeartbeatAt, m.ConfirmedAt = c.time(), c.time()
	m.HighestTerm, m.HighestGeneration = c.int(), c.int()
	m.RegisteredAt, m.EndedAt = c.time(), c.time()
	c.skip(1) // never_lead is one of the traits
	m.ExitProven = c.bool()
	c.skip(1) // departed
	m.State, m.LeaderState = node.State(c.text()), node.State(c.text())
	m.ID, m.Name = node.ID(c.text()), c.text()
	m.Advert, m.EndReason = c.text(), c.text()
	if text, null := c.field(); !null {
		var err error
		m.Traits, err = known.parse(m.Incarnation, text)
		c.fail(err)
	}
	return m
}

func (c *composite) event() (e daemon.Event) {
	e.Seq, e.At, e.Kind = c.int(), c.time(), daemon.EventKind(c.text())
	e.Node, e.NodeID, e.Incarnation = c.text(), node.ID(c.text()), node.Incarnation(c.text())
	e.Daemon = daemon.ID(c.text())
	if index, null := c.intOrNull(); !null {
		e.Unit = rules.FromColumns(string(e.Daemon), int(index))
		e.Daemon = e.Unit.Daemon
	}
	e.Term, e.TermOrdinal, e.Generation = c.int(), c.int(), c.int()
	e.Reason, e.Detail = c.text(), c.raw()
	return e
}

func (c *composite) command() (w command) {
	w.ID, w.number = c.text(), c.int()
	w.Kind, w.Actor, w.Reason = daemon.CommandKind(c.text()), c.text(), c.text()
	w.Term, w.Cooldown, w.Args = c.int(), time.Duration(c.int()), c.raw()
	w.CreatedAt, w.DoneAt, w.Result = c.time(), c.time(), c.text()
	return w
}

func (c *composite) term() (t node.Term) {
	t.Number, t.Ordinal = c.int(), c.int()
	t.Leader = node.Identity{ID: node.ID(c.text()), Incarnation: node.Incarnation(c.text()), Name: c.text()}
	t.ElectedAt, t.Vacant = c.time(), c.bool()
	return t
}

func (c *composite) lease() (l node.Lease) {
	l.ExpiresAt, l.Renewals = c.time(), c.int()
	l.LastPassAt, l.PassSeq = c.time(), uint64(c.int())
	return l
}

// state holds what the single-row tables and the server say about the cluster.
type state struct {
	now    time.Time
	server string // start time of the server process that answered
	line   string // timeline of the log that the server writes

	term      node.Term
	lease     node.Lease
	unchanged bool // the term and the units are those that the caller knows, and were not sent

	head, oldest int64
	rolled       int64     // no event about members is newer
	knownID      string    // the identity that the rows record
	since        time.Time // when the rows last recorded another identity
	cluster      string    // the cluster's name
	revision     string    // of the term and the units
}

// scanSingle reads the columns of the statement single.
func (s *state) scanSingle(c *composite) error {
	counter := c.row()
	s.head, s.oldest, s.rolled = counter.int(), counter.int(), counter.int()
	counter.skip(2) // waiting, lock_floor
	s.knownID, s.since, s.cluster = counter.text(), counter.time(), counter.text()
	counter.skip(1) // the key
	s.revision = counter.text()
	s.now, s.server = c.time(), c.text()
	log := c.text()
	s.line = log[:min(len(log), 8)]
	if text, null := c.field(); null {
		s.unchanged = true
	} else {
		term := rowOf(text)
		s.term = term.term()
		c.fail(term.err)
	}
	lease := c.row()
	lease.skip(2) // the term's number and its holder
	s.lease = lease.lease()
	return cmp.Or(counter.err, c.err, lease.err)
}

// list reads rows of one column, a composite value.
func list[T any](into *[]T, read func(*composite) T) func(*composite) error {
	return func(c *composite) error {
		row := c.row()
		*into = append(*into, read(row))
		return row.err
	}
}

// each reads an array of rows.
func each[T any](rows *composite, into *[]T, read func(*composite) T) error {
	for rows.more() {
		c := rows.row()
		*into = append(*into, read(c))
		rows.fail(c.err)
	}
	return rows.err
}

func records(into *[]daemon.Record) func(*composite) error { return list(into, (*composite).record) }
func events(into *[]daemon.Event) func(*composite) error   { return list(into, (*composite).event) }

// command is a command and its place in the order of submission.
type command struct {
	storage.Command
	number int64
}

func commands(into *[]command) func(*composite) error { return list(into, (*composite).command) }

// members reads the newest event and the member list, both of the same snapshot. There is always a
// row, because the node that asks has one.
func (s *Store) members(into *[]node.Member, head *int64) func(*composite) error {
	return func(c *composite) error {
		*head = c.int()
		row := c.row()
		*into = append(*into, row.member(&s.traits))
		return row.err
	}
}

// micros returns a duration in the unit of Postgres' intervals. It rounds up, so that a lease is
// never shorter than requested.
func micros(d time.Duration) int64 {
	n := d.Microseconds()
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// microseconds is the duration that a column of microseconds holds.
func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
