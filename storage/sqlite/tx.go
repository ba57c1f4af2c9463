package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// query runs statements within one transaction. The first error stays: later statements do nothing
// and find nothing, so code need not check each error. The code that began the transaction checks
// err before it commits or uses results.
type query struct {
	c   *session
	ctx context.Context
	err error
}

// exec runs a statement and returns how many rows it changed.
func (q *query) exec(text string, args ...any) int64 {
	st := q.prepare(text)
	if st == nil {
		return 0
	}
	res, err := st.ExecContext(q.ctx, args...)
	if err != nil {
		q.err = err
		return 0
	}
	n, err := res.RowsAffected()
	if err != nil {
		q.err = err
	}
	return n
}

// one reads one row into dest and reports whether there was one.
func (q *query) one(text string, args []any, dest ...any) bool {
	st := q.prepare(text)
	if st == nil {
		return false
	}
	switch err := st.QueryRowContext(q.ctx, args...).Scan(dest...); {
	case err == nil:
		return true
	case !errors.Is(err, sql.ErrNoRows):
		q.err = err
	}
	return false
}

// each reads rows, in the order that the statement gives.
func (q *query) each(text string, args []any, row func(scan func(dest ...any) bool)) {
	st := q.prepare(text)
	if st == nil {
		return
	}
	rows, err := st.QueryContext(q.ctx, args...)
	if err != nil {
		q.err = err
		return
	}
	defer rows.Close()
	for rows.Next() {
		row(func(dest ...any) bool {
			if err := rows.Scan(dest...); err != nil && q.err == nil {
				q.err = err
			}
			return q.err == nil
		})
	}
	if err := rows.Err(); err != nil && q.err == nil {
		q.err = err
	}
}

func (q *query) prepare(text string) *sql.Stmt {
	if q.err != nil {
		return nil
	}
	st, err := q.c.Stmt(q.ctx, text)
	q.err = err
	return st
}

// step is one call in one write transaction.
type step struct {
	query
	now    time.Time     // the store's clock, read after the write lock was taken
	waited time.Duration // how long it waited for the write lock
	meta   meta
	term   node.Term
	lease  node.Lease

	events []daemon.Event
	woken  bool
}

// write runs fn in one write transaction. An error of fn is an answer: nothing is changed. Any
// other error means that the outcome is unknown. It is an ErrUnavailable if it may pass by itself.
func (s *Store) write(ctx context.Context, fn func(*step) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c := <-s.writer:
		defer func() { s.writer <- c }()
		c, err = s.writeOn(ctx, c, fn)
		return err
	case <-ctx.Done():
		return s.lockError(ctx.Err())
	}
}

// writeOn is write on the session that writes. It returns the session to use next: nil if one must be opened.
func (s *Store) writeOn(ctx context.Context, c *session, fn func(*step) error) (*session, error) {
	c, err := s.ready(ctx, c, s.openWriter)
	if err != nil {
		return nil, err
	}
	st, err := s.begin(ctx, c)
	if err != nil {
		return c, err
	}
	err = fn(st)
	if st.err == nil && err == nil {
		st.flush()
	}
	if st.err == nil && err == nil {
		st.err = ctx.Err() // the last moment at which nothing has been changed
	}
	if st.err != nil || err != nil {
		c.Rollback(ctx)
		if st.err != nil {
			return c, s.explain(st.err)
		}
		return c, err
	}
	return c, s.commit(ctx, st)
}

// commit ends a transaction that changes something. After an error the change may have happened or
// not.
func (s *Store) commit(ctx context.Context, st *step) error {
	err := st.c.Run(ctx, "COMMIT")
	if err != nil {
		st.c.Rollback(ctx)
		return s.explain(err)
	}
	if err := s.inPlace(st.c); err != nil {
		return fmt.Errorf("%w: the database file was replaced during the call: %w", storage.ErrUnavailable, err)
	}
	s.noteHead(st.meta, st.now)
	if st.woken {
		s.wakes.touch(st.meta.head)
	}
	return nil
}

// begin takes the write lock, reads the clock, and makes sure that the file belongs to this boot.
func (s *Store) begin(ctx context.Context, c *session) (*step, error) {
	begun := time.Now()
	if err := sqlitefile.RetryBusy(ctx, func() error { return c.Run(ctx, "BEGIN IMMEDIATE") }); err != nil {
		c.Broken = !sqlitefile.IsBusy(err) && ctx.Err() == nil
		return nil, s.explain(err)
	}
	st := &step{query: query{c: c, ctx: context.WithoutCancel(ctx)}, waited: time.Since(begun)}
	s.load(&st.query, &st.meta, &st.term, &st.lease)
	if st.err == nil {
		st.err = s.ensureIdentity(ctx, st)
	}
	if st.err != nil {
		err := s.explain(st.err)
		c.Rollback(ctx)
		return nil, err
	}
	return st, nil
}

// view is one consistent read.
type view struct {
	query
	now   time.Time
	meta  meta
	term  node.Term
	lease node.Lease
}

// read runs fn in one read transaction. It waits for no writer.
func (s *Store) read(ctx context.Context, fn func(*view)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var c *session
	select {
	case c = <-s.readers:
	case <-ctx.Done():
		return s.explain(ctx.Err())
	}
	defer func() { s.readers <- c }()
	for again := true; ; again = false {
		var err error
		if c, err = s.ready(ctx, c, s.openReader); err != nil {
			return err
		}
		if err = s.readOnce(ctx, c, fn); err == nil {
			return nil
		}
		c.close() // an interrupted connection is not used again
		c = nil
		if !again || !errors.Is(err, errUnadopted) {
			return s.explain(err)
		}
		if err := s.write(ctx, func(*step) error { return nil }); err != nil {
			return err
		}
	}
}

// errUnadopted makes a read run an empty write transaction first, which adopts the file or returns
// what is wrong with it.
var errUnadopted = errors.New("the database file is not the one that was opened, or not of this boot")

// readOnce is one read transaction on one session.
func (s *Store) readOnce(ctx context.Context, c *session, fn func(*view)) error {
	seen, before := s.seenMarks()
	v := &view{query: query{c: c, ctx: ctx}}
	if err := s.beginRead(v); err != nil {
		return err
	}
	if last, known := seen[v.meta.fileID]; !known || v.meta.bootID != s.host.bootID || exchanged(before, v.meta) || v.lost(last, v.meta) {
		v.err = errUnadopted
	} else {
		v.now = s.clock(v.meta)
	}
	if v.err == nil {
		fn(v)
	}
	if v.err != nil {
		return v.err // the session ends, and the transaction with it
	}
	s.noteHead(v.meta, v.now)
	return c.Run(ctx, "ROLLBACK")
}

// beginRead begins a transaction. Its first read fixes the moment that it sees.
func (s *Store) beginRead(v *view) error {
	err := sqlitefile.RetryBusy(v.ctx, func() error {
		v.err = nil
		if err := v.c.Run(v.ctx, "BEGIN"); err != nil {
			return err
		}
		if s.load(&v.query, &v.meta, &v.term, &v.lease); v.err != nil {
			v.c.Rollback(v.ctx)
			return v.err
		}
		return nil
	})
	if sqlitefile.Code(err) == lib.SQLITE_ERROR {
		return errUnadopted // a table is missing: another file
	}
	return err
}

// load reads the rows that every call needs, in one statement.
func (s *Store) load(q *query, m *meta, t *node.Term, l *node.Lease) {
	q.one(`SELECT m.file_id, m.place, coalesce(m.other_since, 0), m.boot_id, m.clock_base, m.latest, m.head, e.at, m.lock_floor, m.cluster,
			t.number, t.ordinal, t.name, t.id, t.incarnation, t.elected_at, t.vacant,
			l.expires_at, l.renewals, l.last_pass_at, l.pass_seq
		FROM ~term t JOIN ~lease l ON l.one = t.one LEFT JOIN ~meta m ON m.one = t.one LEFT JOIN ~event e ON e.seq = m.head`, nil,
		orZero{&m.fileID}, orZero{&m.place}, at{&m.since}, orZero{&m.bootID}, orZero{&m.base}, orZero{&m.latest}, orZero{&m.head}, orZero{&m.headAt}, orZero{&m.lockFloor}, orZero{&m.cluster},
		&t.Number, &t.Ordinal, &t.Leader.Name, &t.Leader.ID, &t.Leader.Incarnation, at{&t.ElectedAt}, &t.Vacant,
		at{&l.ExpiresAt}, &l.Renewals, at{&l.LastPassAt}, &l.PassSeq)
}
