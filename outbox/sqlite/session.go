package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/emitd/emitd/internal/sqlitefile"
)

// openSession connects to the file that is at the path now. SQLite opens the file at some moment of that. If the path
// had another file before than after it, it is not known which one was opened, so it connects again.
func (l *Log) openSession(ctx context.Context, pragmas ...string) (*sqlitefile.Session, error) {
	for {
		before, err := os.Stat(l.cfg.Path)
		if err != nil {
			return nil, err
		}
		s, err := sqlitefile.Open(ctx, l.db, l.cfg.Prefix, pragmas...)
		if err != nil {
			return nil, err
		}
		if s.File, err = os.Stat(l.cfg.Path); err == nil && os.SameFile(before, s.File) {
			return s, nil
		}
		s.Close()
		if err != nil {
			return nil, err
		}
	}
}

// openWriter opens the session that writes.
func (l *Log) openWriter(ctx context.Context) (*sqlitefile.Session, error) {
	return l.openSession(ctx, "synchronous = "+l.cfg.Sync, "journal_size_limit = 16777216")
}

// openReader opens a session that reads.
func (l *Log) openReader(ctx context.Context) (*sqlitefile.Session, error) {
	return l.openSession(ctx, "query_only = 1")
}

// usable returns a session on the file that is at the path now: s if it is on that file, otherwise a new
// one. With an error the session is nil.
func (l *Log) usable(ctx context.Context, s *sqlitefile.Session, open func(context.Context) (*sqlitefile.Session, error)) (*sqlitefile.Session, error) {
	if l.ctx.Err() != nil {
		s.Close()
		return nil, errClosed
	}
	now, err := os.Stat(l.cfg.Path)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("the database file is gone: put it back, or stop its processes and start anew: %w", err)
	}
	if s != nil && !s.Broken && os.SameFile(now, s.File) {
		return s, nil
	}
	s.Close()
	return open(ctx)
}

// writesBeside reports whether the log can write although a transaction has the file's write lock. While the session
// that writes is in use or not open, it is not known to.
func (l *Log) writesBeside(ctx context.Context) bool {
	var s *sqlitefile.Session
	select {
	case s = <-l.writer:
	default:
		return false
	}
	defer func() { l.writer <- s }()
	if now, err := os.Stat(l.cfg.Path); s == nil || s.Broken || err != nil || !os.SameFile(now, s.File) {
		return false
	}
	lockedOut, err := s.LockedOut(ctx)
	s.Broken = s.Broken || err != nil
	return !lockedOut && err == nil
}

// query runs the statements of one call. The first error is kept, and later statements do nothing and
// find nothing. So the code of a decision needs no error checks; the caller checks err at the end.
type query struct {
	s   *sqlitefile.Session
	ctx context.Context
	now time.Time // the log's clock; a transaction that writes reads it under the lock
	err error
}

func (q *query) prepare(text string) *sql.Stmt {
	if q.err != nil {
		return nil
	}
	var st *sql.Stmt
	st, q.err = q.s.Stmt(q.ctx, text)
	return st
}

// exec returns the number of affected rows.
func (q *query) exec(text string, args ...any) int64 {
	st := q.prepare(text) //nolint:sqlclosecheck // the session keeps it, and closes it with the connection
	if st == nil {
		return 0
	}
	res, err := st.ExecContext(q.ctx, args...)
	if err != nil {
		q.err = err
		return 0
	}
	n, err := res.RowsAffected()
	q.err = err
	return n
}

// one reads one row and reports whether there was one.
func (q *query) one(text string, args []any, dest ...any) bool {
	st := q.prepare(text) //nolint:sqlclosecheck // the session keeps it, and closes it with the connection
	if st == nil {
		return false
	}
	err := st.QueryRowContext(q.ctx, args...).Scan(dest...)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		q.err = err
	}
	return err == nil
}

// number reads one number; 0 if there is no row or the value is null.
func (q *query) number(text string, args ...any) int64 {
	var n sql.NullInt64
	q.one(text, args, &n)
	return n.Int64
}

// each calls take for each row until take returns false or fails.
func (q *query) each(text string, args []any, take func(scan func(dest ...any) error) (bool, error)) {
	st := q.prepare(text) //nolint:sqlclosecheck // the session keeps it, and closes it with the connection
	if st == nil {
		return
	}
	rows, err := st.QueryContext(q.ctx, args...)
	if err != nil {
		q.err = err
		return
	}
	defer rows.Close()
	for more := true; more && rows.Next(); {
		if more, q.err = take(rows.Scan); q.err != nil {
			return
		}
	}
	q.err = rows.Err()
}

// write runs fn in one transaction that holds the write lock from its beginning. If fn or a statement
// fails, nothing is changed. After an error of the commit it is unknown whether the change was made.
func (l *Log) write(ctx context.Context, fn func(*query) error) error {
	var s *sqlitefile.Session
	select {
	case s = <-l.writer:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { l.writer <- s }()
	s, err := l.usable(ctx, s, l.openWriter)
	if err != nil {
		return err
	}
	if err := sqlitefile.RetryBusy(ctx, func() error { return s.Run(ctx, "BEGIN IMMEDIATE") }); err != nil {
		s.Broken = !sqlitefile.IsBusy(err) && ctx.Err() == nil
		return err
	}
	q := &query{s: s, ctx: context.WithoutCancel(ctx), now: l.cfg.Now()}
	err = fn(q)
	if err == nil {
		err = q.err
	}
	if err == nil {
		err = ctx.Err() // after this it is too late to change nothing
	}
	if err != nil {
		s.Rollback(ctx)
		return errors.Join(err, q.err)
	}
	if err := s.Run(ctx, "COMMIT"); err != nil {
		s.Rollback(ctx)
		return err
	}
	return nil
}

// read runs fn in one transaction that sees one state of the file and waits for no writer.
func (l *Log) read(ctx context.Context, fn func(*query) error) error {
	var s *sqlitefile.Session
	select {
	case s = <-l.readers:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { l.readers <- s }()
	s, err := l.usable(ctx, s, l.openReader)
	if err != nil {
		return err
	}
	if err := s.Run(ctx, "BEGIN"); err != nil {
		s.Broken = true
		return err
	}
	q := &query{s: s, ctx: ctx, now: l.cfg.Now()}
	err = fn(q)
	if err == nil {
		err = q.err
	}
	s.Rollback(ctx)
	s.Broken = s.Broken || ctx.Err() != nil // an interrupted connection is not reused
	return err
}
