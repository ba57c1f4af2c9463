package sqlite

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// nanos converts a time to the form that rows contain: nanoseconds since 1970, 0 for never.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// moment is the inverse of nanos.
func moment(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// at reads a time.
type at struct{ to *time.Time }

// Scan implements sql.Scanner.
func (a at) Scan(v any) error {
	n, ok := v.(int64)
	if !ok {
		return fmt.Errorf("a time is %T, want an integer", v)
	}
	*a.to = moment(n)
	return nil
}

// orZero reads a text or number that may be NULL, which is its zero value.
type orZero struct{ to any }

// Scan implements sql.Scanner.
func (o orZero) Scan(v any) error {
	switch to := o.to.(type) {
	case *string:
		*to, _ = v.(string)
	case *int64:
		*to, _ = v.(int64)
	case *int:
		n, _ := v.(int64)
		*to = int(n)
	case *json.RawMessage:
		if text, ok := v.(string); ok {
			*to = json.RawMessage(text)
		}
	default:
		return fmt.Errorf("no way to read a %T", o.to)
	}
	return nil
}

// unitName and unitIndex read the two columns of a unit, in this order.
type (
	unitName  struct{ to *daemon.Unit }
	unitIndex struct{ to *daemon.Unit }
)

// Scan implements sql.Scanner.
func (u unitName) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("the daemon of a unit is %T, want a text", v)
	}
	*u.to = rules.FromColumns(text, 0)
	return nil
}

// Scan implements sql.Scanner.
func (u unitIndex) Scan(v any) error {
	n, ok := v.(int64)
	if !ok {
		return fmt.Errorf("the index of a unit is %T, want an integer", v)
	}
	if u.to.Key == "" {
		u.to.Index = int(n)
	}
	return nil
}

// columnsOf returns the two columns of a unit as arguments.
func columnsOf(u daemon.Unit) []any {
	name, index := rules.Columns(u)
	return []any{name, index}
}

// fromJSON reads a value from its JSON text; empty text leaves it as it is.
type fromJSON struct{ to any }

// Scan implements sql.Scanner.
func (j fromJSON) Scan(v any) error {
	text, _ := v.(string)
	if text == "" {
		return nil
	}
	return json.Unmarshal([]byte(text), j.to)
}

// toJSON returns the JSON text of a value that always marshals.
func toJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("sqlite: rows hold plain values only: " + err.Error())
	}
	return string(text)
}

// orNull is a JSON text, or NULL.
func orNull(text json.RawMessage) any {
	if text == nil {
		return nil
	}
	return string(text)
}

// member is a node's row.
type member struct {
	node.Member
	// left says that the process itself ended the row. It has exited, so any message from it was
	// delayed on the way. The row is therefore never revived.
	left bool
}

const memberColumns = `incarnation, id, name, state, judged, seq, heard, advert, traits, highest_term, highest_generation,
	witnessed, registered_at, last_heartbeat_at, heard_at, ended_at, end_reason, left_itself`

func (m *member) dest() []any {
	return []any{
		&m.Incarnation, &m.ID, &m.Name, &m.State, &m.LeaderState, &m.Seq, &m.ConfirmedSeq, &m.Advert,
		fromJSON{&m.Traits},
		&m.HighestTerm, &m.HighestGeneration, &m.ExitProven,
		at{&m.RegisteredAt},
		at{&m.LastHeartbeatAt},
		at{&m.ConfirmedAt},
		at{&m.EndedAt},
		&m.EndReason, &m.left,
	}
}

// node reads a row, present or tombstone; nil if there is none.
func (q *query) node(inc node.Incarnation) *member {
	m := &member{}
	if !q.one(`SELECT `+memberColumns+` FROM ~node WHERE incarnation = ?`, []any{inc}, m.dest()...) {
		return nil
	}
	return m
}

// present reads the row of a process that is a member; nil if it is not.
func (q *query) present(inc node.Incarnation) *member {
	if m := q.node(inc); m != nil && m.Present() {
		return m
	}
	return nil
}

// members reads the list of rows, tombstones included, sorted by incarnation.
func (q *query) members() []node.Member { return q.membersWhere("true") }

func (q *query) membersWhere(condition string, args ...any) []node.Member {
	out := []node.Member{}
	q.each(`SELECT `+memberColumns+` FROM ~node WHERE `+condition+` ORDER BY incarnation`, args, func(scan func(...any) bool) {
		var m member
		if scan(m.dest()...) {
			out = append(out, m.Member)
		}
	})
	return out
}

const unitColumns = `daemon, idx, state, holder_name, holder_id, holder, generation, term, since, assigned_at, revoked_at,
	acknowledge_timeout, drain_timeout, reason, forced, failures, error, retired, embargoes,
	failing_since, retry_at`

func unitDest(r *daemon.Record) []any {
	return []any{
		unitName{&r.Unit},
		unitIndex{&r.Unit},
		&r.State, &r.Holder.Name, &r.Holder.ID, &r.Holder.Incarnation, &r.Generation, &r.Term,
		at{&r.Since},
		at{&r.AssignedAt},
		at{&r.RevokedAt},
		&r.AcknowledgeTimeout, &r.DrainTimeout, &r.Reason, &r.Forced,
		&r.Failures, &r.Error, &r.Retired,
		fromJSON{&r.Embargoes},
		at{&r.FailingSince},
		at{&r.RetryAt},
	}
}

// Unit reads a unit's row; nil if there is none.
func (q *query) Unit(u daemon.Unit) *daemon.Record {
	r := &daemon.Record{}
	if !q.one(`SELECT `+unitColumns+` FROM ~unit WHERE daemon = ? AND idx = ?`, columnsOf(u), unitDest(r)...) {
		return nil
	}
	return r
}

// HeldBy reads the units that a process holds, sorted.
func (q *query) HeldBy(inc node.Incarnation) []daemon.Record {
	return q.units(`SELECT `+unitColumns+` FROM ~unit
		WHERE holder = ? AND state NOT IN ('unassigned', 'deleted') ORDER BY daemon, idx`, inc)
}

func (q *query) units(text string, args ...any) (out []daemon.Record) {
	known := texts{}
	q.each(text, args, func(scan func(...any) bool) {
		var r daemon.Record
		if scan(unitDest(&r)...) {
			intern(known, &r.State)
			intern(known, &r.Holder.Name)
			intern(known, &r.Holder.ID)
			intern(known, &r.Holder.Incarnation)
			intern(known, &r.Reason)
			out = append(out, r)
		}
	})
	return out
}

// texts are the texts that rows have in common: thousands of units have few holders and reasons.
type texts map[string]string

// intern replaces a text by an equal one that is known.
func intern[T ~string](known texts, text *T) {
	if old, ok := known[string(*text)]; ok {
		*text = T(old)
		return
	}
	known[string(*text)] = string(*text)
}

// Put writes a unit's row.
func (q *query) Put(r daemon.Record) {
	embargoes := ""
	if len(r.Embargoes) > 0 {
		embargoes = toJSON(r.Embargoes)
	}
	name, index := rules.Columns(r.Unit)
	q.exec(`INSERT OR REPLACE INTO ~unit (`+unitColumns+`)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		name, index, r.State, r.Holder.Name, r.Holder.ID, r.Holder.Incarnation, r.Generation, r.Term,
		nanos(r.Since), nanos(r.AssignedAt), nanos(r.RevokedAt), r.AcknowledgeTimeout, r.DrainTimeout, r.Reason, r.Forced,
		r.Failures, r.Error, r.Retired, embargoes, nanos(r.FailingSince), nanos(r.RetryAt))
}

const eventColumns = `seq, at, kind, node, node_id, incarnation, daemon, idx, term, term_ordinal, generation, reason, detail`

// history reads events; text is the end of the statement.
func (q *query) history(text string, args ...any) (out []daemon.Event) {
	q.each(`SELECT `+eventColumns+` FROM ~event `+text, args, func(scan func(...any) bool) {
		var e daemon.Event
		var index *int
		if !scan(&e.Seq, at{&e.At}, &e.Kind, &e.Node, &e.NodeID, &e.Incarnation, &e.Daemon, &index,
			&e.Term, &e.TermOrdinal, &e.Generation, &e.Reason, orZero{&e.Detail}) {
			return
		}
		if index != nil {
			e.Unit = rules.FromColumns(string(e.Daemon), *index)
			e.Daemon = e.Unit.Daemon
		}
		out = append(out, e)
	})
	return out
}

// oldest is the number of the first event not dropped; 0 if there is none.
func (q *query) oldest() (n int64) {
	q.one(`SELECT min(seq) FROM ~event`, nil, orZero{&n})
	return n
}

const commandColumns = `id, kind, actor, reason, term, cooldown, args, created_at, done_at, result`

func commandDest(c *storage.Command) []any {
	return []any{&c.ID, &c.Kind, &c.Actor, &c.Reason, &c.Term, &c.Cooldown, orZero{&c.Args}, at{&c.CreatedAt}, at{&c.DoneAt}, &c.Result}
}

// command reads a command; nil if there is none.
func (q *query) command(id string) *storage.Command {
	c := &storage.Command{}
	if !q.one(`SELECT `+commandColumns+` FROM ~command WHERE id = ?`, []any{id}, commandDest(c)...) {
		return nil
	}
	return c
}

// openCommands lists the commands that are not done, oldest first.
func (q *query) openCommands() (out []storage.Command) {
	q.each(`SELECT `+commandColumns+` FROM ~command WHERE done_at = 0 ORDER BY num`, nil, func(scan func(...any) bool) {
		var c storage.Command
		if scan(commandDest(&c)...) {
			out = append(out, c)
		}
	})
	return out
}

// Fence reads the generation that a unit's fence was stamped with; 0 = never.
func (q *query) Fence(u daemon.Unit) (generation int64) {
	q.one(`SELECT generation FROM ~fence WHERE daemon = ? AND idx = ?`, columnsOf(u), &generation)
	return generation
}
