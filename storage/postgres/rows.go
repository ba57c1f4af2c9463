package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// The columns that the scanners below read, in their order.
const (
	recordColumns = "daemon, index, state, name, node_id, incarnation, generation, term, since, assigned_at, revoked_at, " +
		"acknowledge_timeout, drain_timeout, failures, forced, retired, reason, error, embargoes"
	memberColumns = "incarnation, id, name, state, judged, seq, heard, advert, highest_term, highest_generation, witnessed, " +
		"registered_at, last_heartbeat_at, heard_at, ended_at, end_reason, traits"
	eventColumns = "seq, at, kind, node, node_id, incarnation, daemon, index, term, term_ordinal, generation, reason, detail"

	commandColumns = "id, kind, actor, reason, term, cooldown, args, created_at, done_at, result"
)

// stamp receives a time of the store: null is the zero time, and the zone is UTC.
type stamp struct{ to *time.Time }

// ScanTimestamptz implements [pgtype.TimestamptzScanner].
func (s stamp) ScanTimestamptz(v pgtype.Timestamptz) error {
	*s.to = time.Time{}
	if v.Valid && v.InfinityModifier == pgtype.Finite {
		*s.to = v.Time.UTC()
	}
	return nil
}

// recordInto returns where the columns of a unit's row go.
func recordInto(r *daemon.Record) []any {
	return []any{
		(*string)(&r.Unit.Daemon), &r.Unit.Index, (*string)(&r.State),
		&r.Holder.Name, (*string)(&r.Holder.ID), (*string)(&r.Holder.Incarnation),
		&r.Generation, &r.Term, stamp{&r.Since}, stamp{&r.AssignedAt}, stamp{&r.RevokedAt},
		(*int64)(&r.AcknowledgeTimeout), (*int64)(&r.DrainTimeout), &r.Failures, &r.Forced, &r.Retired,
		&r.Reason, &r.Error, &r.Embargoes,
	}
}

// memberInto returns where the columns of a node's row go.
func memberInto(m *node.Member) []any {
	return []any{
		(*string)(&m.Incarnation), (*string)(&m.ID), &m.Name, (*string)(&m.State), (*string)(&m.Judged),
		&m.Seq, &m.Heard, &m.Advert, &m.HighestTerm, &m.HighestGeneration, &m.Witnessed,
		stamp{&m.RegisteredAt}, stamp{&m.LastHeartbeatAt}, stamp{&m.HeardAt}, stamp{&m.EndedAt}, &m.EndReason, &m.Traits,
	}
}

// commandInto returns where the columns of a command go.
func commandInto(c *storage.Command) []any {
	return []any{
		&c.ID, &c.Kind, &c.Actor, &c.Reason, &c.Term, (*int64)(&c.Cooldown), (*[]byte)(&c.Args),
		stamp{&c.CreatedAt}, stamp{&c.DoneAt}, &c.Result,
	}
}

// records reads units.
func records(into *[]daemon.Record) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		return each(rows, into, recordInto)
	}
}

// commands reads commands.
func commands(into *[]storage.Command) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		return each(rows, into, commandInto)
	}
}

// events reads events.
func events(into *[]daemon.Event) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var e daemon.Event
		var index *int
		to := []any{
			&e.Seq, stamp{&e.At}, (*string)(&e.Kind), &e.Node, (*string)(&e.NodeID), (*string)(&e.Incarnation),
			(*string)(&e.Daemon), &index, &e.Term, &e.TermOrdinal, &e.Generation, &e.Reason, (*[]byte)(&e.Detail),
		}
		for rows.Next() {
			e, index = daemon.Event{}, nil
			if err := rows.Scan(to...); err != nil {
				return err
			}
			if index != nil {
				e.Unit = daemon.Unit{Daemon: e.Daemon, Index: *index}
			}
			*into = append(*into, e)
		}
		return rows.Err()
	}
}

// members reads the member list and the newest event of the same snapshot. There is always a
// head, because whoever asks has a row.
func members(into *[]node.Member, head *int64) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		return each(rows, into, func(m *node.Member) []any { return append([]any{head}, memberInto(m)...) })
	}
}

// each reads all rows through one variable, so that where columns go is worked out once.
func each[T any](rows pgx.Rows, into *[]T, fields func(*T) []any) error {
	var zero, v T
	to := fields(&v)
	for rows.Next() {
		v = zero
		if err := rows.Scan(to...); err != nil {
			return err
		}
		*into = append(*into, v)
	}
	return rows.Err()
}

// state is what one row says of the cluster.
type state struct {
	now          time.Time
	id           string
	term         node.Term
	lease        node.Lease
	head, oldest int64
}

func (s *state) into() []any {
	t, l := &s.term, &s.lease
	return []any{
		stamp{&s.now}, &s.id,
		&t.Number, &t.Ordinal, (*string)(&t.Leader.ID), (*string)(&t.Leader.Incarnation), &t.Leader.Name, stamp{&t.ElectedAt}, &t.Vacant,
		stamp{&l.ExpiresAt}, &l.Renewals, stamp{&l.LastPassAt}, &l.PassSeq, &s.head, &s.oldest,
	}
}

// micros is a duration in the unit of Postgres' intervals, rounded up: a lease is never shorter
// than asked for.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
