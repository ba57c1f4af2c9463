package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/wakeup"
)

// Publisher inserts messages into the log in transactions of the caller. Its methods may be called from
// any goroutine.
type Publisher struct {
	cfg        Config
	notifier   *wakeup.Notifier
	begun      atomic.Uint32 // how many transactions were begun
	mistrusted atomic.Bool   // one was refused with errNotLockedOut, so all later ones are checked
}

// New returns a publisher. db is the caller's handle. New itself does not use it, and only [Publisher.InTx] writes through
// a handle. The file must have the outbox's tables ([Migrate], or [Open] of a log). If this process has a [Log] or a
// cluster store of the file open, the handle must be of their driver (see the package comment).
func New(db *sql.DB, cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("create an outbox publisher: %w", err)
	}
	return &Publisher{cfg: cfg, notifier: newNotifier(db, cfg)}, nil
}

// Close waits until hooks and relays are notified of all commits, or ctx ends.
func (p *Publisher) Close(ctx context.Context) error { return p.notifier.Close(ctx) }

// Execer is a transaction: [*sql.Tx], [*Tx], or a [*sql.Conn] on which the caller has begun one.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// Publish inserts messages into the log as part of tx. If tx was made by [Publisher.InTx] or
// [Publisher.Wrap], relays of this process are woken after its commit; otherwise they find the messages
// by watching the file.
//
// Messages of one key are delivered in the order in which their transactions took the write lock, and
// within a transaction in the order in which they were published. A transaction that has read before it
// first publishes may fail with SQLITE_BUSY, as before every first write, unless it was begun by InTx or
// BEGIN IMMEDIATE.
func (p *Publisher) Publish(ctx context.Context, tx Execer, messages ...outbox.Message) error {
	if _, handle := tx.(*sql.DB); handle {
		return errors.New("publish: this is a database handle, not a transaction: begin one, or use InTx")
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
		w.add(messages)
	}
	return nil
}

// PublishTx is [Publisher.Publish] for a plain transaction.
func (p *Publisher) PublishTx(ctx context.Context, tx *sql.Tx, messages ...outbox.Message) error {
	return p.Publish(ctx, tx, messages...)
}

// InTx runs fn in a transaction of its own: it is committed if fn returns nil, and rolled back otherwise.
// It takes the write lock at the beginning and waits for it as long as ctx allows, so fn never finds the
// file locked. After the commit relays are woken and Config.OnPublished is called.
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

// begin retries until it has the write lock. database/sql has no BEGIN IMMEDIATE; an UPDATE of no row (no
// subscription has an empty name) has the same effect.
func (p *Publisher) begin(ctx context.Context, db *sql.DB) (tx *sql.Tx, err error) {
	checked := p.begun.Add(1)%checkEvery == 1 || p.mistrusted.Load()
	lock := p.text("UPDATE ~outbox_subscription SET paused = paused WHERE name = ''")
	err = sqlitefile.RetryBusy(ctx, func() error {
		if tx, err = db.BeginTx(ctx, nil); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, lock)
		if err == nil && checked && writtenBeside(ctx, tx) {
			if _, err = tx.ExecContext(ctx, lock); err == nil { // otherwise the transaction has ended meanwhile
				p.mistrusted.Store(true)
				err = errNotLockedOut
			}
		}
		if err != nil {
			_ = tx.Rollback() // nothing was written
		}
		return err
	})
	return tx, err
}

// checkEvery is how many transactions are begun for each one whose lock is checked, the first one included, while no check finds
// anything. A check costs as much as half a small transaction, and finds nothing if another connection has the lock at that moment.
const checkEvery = 64

var errNotLockedOut = errors.New("the transaction's lock does not keep the outbox of this process from writing: it is of another SQLite driver than " +
	"modernc.org/sqlite, or its connection has a file open that was replaced since: open the file anew, with that driver in this process")

// writtenBeside reports whether an open log of the transaction's file can write although the transaction has the write lock.
func writtenBeside(ctx context.Context, tx *sql.Tx) bool {
	path, err := fileOf(ctx, tx)
	return err == nil && slices.ContainsFunc(commits.logsOf(path), func(l *Log) bool { return l.writesBeside(ctx) })
}

// Tx is a transaction whose commit wakes relays and calls OnPublished.
type Tx struct {
	*sql.Tx
	p         *Publisher
	depth     int
	wrote     bool             // messages were published
	published []outbox.Message // these messages, if there is a hook
}

// add adds published messages. Without a hook nobody needs their payloads, of which a transaction may have many.
func (t *Tx) add(messages []outbox.Message) {
	t.wrote = true
	if t.p.cfg.OnPublished != nil {
		t.published = append(t.published, messages...)
	}
}

// Wrap returns a transaction whose commit wakes relays and calls OnPublished. The caller must commit that
// one instead of tx.
func (p *Publisher) Wrap(tx *sql.Tx) *Tx { return &Tx{Tx: tx, p: p} }

// Savepoint runs fn in a savepoint. If fn returns an error, its changes are undone, including its
// messages, and the transaction goes on. A savepoint made by SQL undoes messages as well, but
// Config.OnPublished gets them all the same.
func (t *Tx) Savepoint(ctx context.Context, fn func() error) (err error) {
	t.depth++
	name, wrote, before := fmt.Sprintf("outbox_%d", t.depth), t.wrote, len(t.published)
	defer func() { t.depth-- }()
	run := func(text string) error {
		_, err := t.ExecContext(ctx, text+name)
		return err
	}
	if err := run("SAVEPOINT "); err != nil {
		return explain("create a savepoint", "", err)
	}
	if err := fn(); err != nil {
		t.wrote, t.published = wrote, t.published[:before]
		return errors.Join(err, run("ROLLBACK TO "), run("RELEASE "))
	}
	return explain("release a savepoint", "", run("RELEASE "))
}

// Commit commits and announces the messages. If an error leaves open whether the transaction committed,
// relays are woken as well: a needless wake-up is harmless.
func (t *Tx) Commit() error {
	published := t.published
	err := t.Tx.Commit()
	switch {
	case !t.wrote, errors.Is(err, sql.ErrTxDone), sqlitefile.IsBusy(err):
	case err != nil:
		t.wrote, t.published = false, nil
		t.p.notifier.Committed(nil)
	default:
		t.wrote, t.published = false, nil
		t.p.notifier.Committed(published)
	}
	return err
}

// Rollback rolls back and announces nothing.
func (t *Tx) Rollback() error {
	t.wrote, t.published = false, nil
	return t.Tx.Rollback()
}

// target is a table into which messages are inserted.
type target struct {
	head string
	row  string // placeholders of one row
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

// body returns the values of a message, after those in before.
func body(m outbox.Message, before ...any) []any {
	return append(before, m.ID[:], m.Key, m.Topic, m.Type, headerText(m.Headers), m.TraceParent, m.TraceState, m.Payload)
}

// together is how many messages one statement inserts if there are many.
const together = 25

// insert inserts messages with as few statements as possible.
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

// values returns the arguments of one statement.
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

// nanos converts a time. A time outside the range of int64 nanoseconds becomes the nearest one inside.
func nanos(t time.Time) int64 {
	switch {
	case t.Year() > 2261:
		return math.MaxInt64
	case t.Year() < 1678:
		return math.MinInt64
	}
	return t.UnixNano()
}

// headerText encodes headers as JSON; no headers give an empty text.
func headerText(headers map[string]string) string {
	if len(headers) == 0 {
		return ""
	}
	text, err := json.Marshal(headers)
	if err != nil {
		panic("outbox/sqlite: headers are plain text: " + err.Error())
	}
	return string(text)
}
