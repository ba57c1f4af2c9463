package sqlitelog

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/herald"
)

// Publisher puts messages into the log, in transactions of the caller. Its methods may be called
// from any goroutine.
type Publisher struct {
	cfg    Config
	herald *herald.Herald
}

// New makes a publisher. db is the caller's handle, of any SQLite driver; New does not use it yet,
// and nobody but [Publisher.InTx] writes by it. The file must have the outbox's tables ([Migrate], or
// [Open] of a log).
func New(db *sql.DB, cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("make an outbox publisher: %w", err)
	}
	return &Publisher{cfg: cfg, herald: newHerald(db, cfg)}, nil
}

// Close tells what is left to hooks and relays, until ctx ends.
func (p *Publisher) Close(ctx context.Context) error { return p.herald.Close(ctx) }

// Execer is a transaction: [*sql.Tx], [*Tx], or a [*sql.Conn] on which the caller has begun one.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// Publish puts messages into the log as part of tx. If tx is one of [Publisher.InTx] or
// [Publisher.Wrap], relays of this process are told when it has committed; else they find the
// messages by watching the file.
//
// Messages of one key are delivered in the order in which their transactions took the write lock,
// and within a transaction in the order in which they were published. A transaction that has read
// before it publishes for the first time may fail with SQLITE_BUSY, as before every first write,
// unless it was begun by InTx or BEGIN IMMEDIATE.
func (p *Publisher) Publish(ctx context.Context, tx Execer, messages ...outbox.Message) error {
	if _, handle := tx.(*sql.DB); handle {
		return errors.New("publish: this is a handle, not a transaction: begin one, or use InTx")
	}
	messages, err := outbox.Prepare(ctx, messages)
	if err != nil || len(messages) == 0 {
		return err
	}
	now := p.cfg.Now()
	var due, delayed []outbox.Message
	for _, m := range messages {
		if m.NotBefore.After(now) {
			delayed = append(delayed, m)
		} else {
			due = append(due, m)
		}
	}
	if err := p.insert(ctx, tx, intoLog, due, now); err != nil {
		return explain("publish", "", err)
	}
	if err := p.insert(ctx, tx, intoDelayed, delayed, now); err != nil {
		return explain("publish", "", err)
	}
	if w, ok := tx.(*Tx); ok {
		w.published = append(w.published, messages...)
	}
	return nil
}

// PublishTx is [Publisher.Publish] for a plain transaction.
func (p *Publisher) PublishTx(ctx context.Context, tx *sql.Tx, messages ...outbox.Message) error {
	return p.Publish(ctx, tx, messages...)
}

// InTx runs fn in a transaction of its own: committed when fn returns nil, rolled back otherwise. The
// write lock is taken at the beginning, and waited for as long as ctx allows: fn never finds the
// file locked. After the commit relays are told, and Config.OnPublished is.
func (p *Publisher) InTx(ctx context.Context, db *sql.DB, fn func(tx *Tx) error) error {
	tx, err := p.begin(ctx, db)
	if err != nil {
		return explain("begin", "", err)
	}
	w := p.Wrap(tx)
	defer w.Rollback() // after a commit it does nothing; a panic of fn must not leave the transaction open
	if err := fn(w); err != nil {
		return err
	}
	if err := w.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// begin takes the write lock, again and again while others have it. database/sql knows no BEGIN
// IMMEDIATE; an UPDATE of no row (no subscription has an empty name) does the same.
func (p *Publisher) begin(ctx context.Context, db *sql.DB) (tx *sql.Tx, err error) {
	lock := p.text("UPDATE ~outbox_subscription SET paused = paused WHERE name = ''")
	err = sqlitefile.RetryBusy(ctx, func() error {
		if tx, err = db.BeginTx(ctx, nil); err != nil {
			return err
		}
		if _, err = tx.ExecContext(ctx, lock); err != nil {
			_ = tx.Rollback() // nothing was written
		}
		return err
	})
	return tx, err
}

// Tx is a transaction whose commit tells relays and hooks.
type Tx struct {
	*sql.Tx
	p         *Publisher
	depth     int
	published []outbox.Message
}

// Wrap makes the commit of tx tell relays and hooks. The caller commits what Wrap returned.
func (p *Publisher) Wrap(tx *sql.Tx) *Tx { return &Tx{Tx: tx, p: p} }

// Savepoint runs fn in a savepoint: what it did is undone if it returns an error, its messages
// included, and the transaction goes on. Savepoints made by SQL undo messages as well, but
// Config.OnPublished does not hear of it.
func (t *Tx) Savepoint(ctx context.Context, fn func() error) (err error) {
	t.depth++
	name, before := fmt.Sprintf("outbox_%d", t.depth), len(t.published)
	defer func() { t.depth-- }()
	run := func(text string) error {
		_, err := t.ExecContext(ctx, text+name)
		return err
	}
	if err := run("SAVEPOINT "); err != nil {
		return explain("make a savepoint", "", err)
	}
	if err := fn(); err != nil {
		t.published = t.published[:before]
		return errors.Join(err, run("ROLLBACK TO "), run("RELEASE "))
	}
	return explain("release a savepoint", "", run("RELEASE "))
}

// Commit commits and tells. After an error of which the outcome is unknown relays are told too: a
// wake-up for nothing does no harm.
func (t *Tx) Commit() error {
	published := t.published
	err := t.Tx.Commit()
	switch {
	case len(published) == 0, errors.Is(err, sql.ErrTxDone), sqlitefile.IsBusy(err):
	case err != nil:
		t.published = nil
		t.p.herald.Committed(nil)
	default:
		t.published = nil
		t.p.herald.Committed(published)
	}
	return err
}

// Rollback rolls back.
func (t *Tx) Rollback() error {
	t.published = nil
	return t.Tx.Rollback()
}

// target is a table that messages go into.
type target struct {
	head string
	row  string // of values
	args func(m outbox.Message, now time.Time) []any
}

const (
	bodyColumns = "dedup_id, key, topic, type, headers, traceparent, tracestate, payload"
	bodyValues  = "?, ?, ?, ?, ?, ?, ?, ?)"
)

var (
	intoLog = target{
		head: "INSERT INTO ~outbox (shard, created_at, " + bodyColumns + ") VALUES ",
		row:  "(?, ?, " + bodyValues,
		args: func(m outbox.Message, now time.Time) []any { return body(m, m.Shard(), nanos(now)) },
	}
	intoDelayed = target{
		head: "INSERT INTO ~outbox_delayed (shard, not_before, created_at, " + bodyColumns + ") VALUES ",
		row:  "(?, ?, ?, " + bodyValues,
		args: func(m outbox.Message, now time.Time) []any {
			return body(m, m.Shard(), nanos(m.NotBefore), nanos(now))
		},
	}
)

// body are the values of a message, behind others.
func body(m outbox.Message, before ...any) []any {
	return append(before, m.ID[:], m.Key, m.Topic, m.Type, headerText(m.Headers), m.TraceParent, m.TraceState, m.Payload)
}

// together is how many messages one statement inserts where there are many.
const together = 25

// insert runs as few statements as it takes.
func (p *Publisher) insert(ctx context.Context, tx Execer, to target, messages []outbox.Message, now time.Time) error {
	head := p.text(to.head)
	if len(messages) >= 2*together {
		st, err := tx.PrepareContext(ctx, head+to.row+strings.Repeat(", "+to.row, together-1))
		if err != nil {
			return err
		}
		defer st.Close()
		for len(messages) >= together {
			if _, err := st.ExecContext(ctx, to.values(messages[:together], now)...); err != nil {
				return err
			}
			messages = messages[together:]
		}
	}
	for len(messages) > 0 {
		n := min(len(messages), together)
		if _, err := tx.ExecContext(ctx, head+to.row+strings.Repeat(", "+to.row, n-1), to.values(messages[:n], now)...); err != nil {
			return err
		}
		messages = messages[n:]
	}
	return nil
}

// values are the arguments of one statement.
func (to target) values(messages []outbox.Message, now time.Time) []any {
	args := make([]any, 0, 11*len(messages))
	for _, m := range messages {
		args = append(args, to.args(m, now)...)
	}
	return args
}

func (p *Publisher) text(statement string) string {
	return strings.ReplaceAll(statement, "~", p.cfg.Prefix)
}

// nanos writes a time; one that is too far away for 64 bits is as far as they go.
func nanos(t time.Time) int64 {
	switch {
	case t.Year() > 2261:
		return math.MaxInt64
	case t.Year() < 1678:
		return math.MinInt64
	}
	return t.UnixNano()
}

// headerText writes headers as JSON; none are empty text.
func headerText(headers map[string]string) string {
	if len(headers) == 0 {
		return ""
	}
	text, err := json.Marshal(headers)
	if err != nil {
		panic("sqlitelog: headers are plain text: " + err.Error())
	}
	return string(text)
}
