package sqlitelog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	modernc "modernc.org/sqlite"
)

// session is one connection to one file, with its prepared statements. One goroutine uses it at a
// time. It belongs to the file it was opened on.
type session struct {
	conn   *sql.Conn
	prefix string
	file   os.FileInfo
	stmts  map[string]*sql.Stmt
	broken bool // a transaction could not be ended: not to be used again
}

// connector opens connections for database/sql. The file is created by Open only: one that vanishes
// under running relays is not made again, empty.
type connector struct {
	path   string
	create bool
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return &modernc.Driver{} }

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	mode := "rw"
	if c.create {
		mode = "rwc"
	}
	path := filepath.ToSlash(c.path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // a drive letter
	}
	inner, err := modernc.NewConnector((&url.URL{Scheme: "file", Path: path, RawQuery: "mode=" + mode + "&_error_rc=1"}).String())
	if err != nil {
		return nil, err
	}
	return inner.Connect(ctx)
}

// openSession connects to the file that is there now.
func (l *Log) openSession(ctx context.Context, pragmas ...string) (*session, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, prefix: l.cfg.Prefix, stmts: map[string]*sql.Stmt{}}
	for _, p := range append([]string{"busy_timeout = 0"}, pragmas...) {
		err := retryBusy(ctx, func() error {
			_, err := conn.ExecContext(ctx, "PRAGMA "+p)
			return err
		})
		if err != nil {
			s.close()
			return nil, err
		}
	}
	// SQLite opens a file lazily; by the pragmas it has. A file put in its place since then would be
	// noticed at the first use, because it is another one than the one that l.file says.
	if s.file, err = os.Stat(l.cfg.Path); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// openWriter opens the session that writes.
func (l *Log) openWriter(ctx context.Context) (*session, error) {
	return l.openSession(ctx, "synchronous = "+l.cfg.Sync, "journal_size_limit = 16777216")
}

// openReader opens a session that reads.
func (l *Log) openReader(ctx context.Context) (*session, error) {
	return l.openSession(ctx, "query_only = 1")
}

// usable returns a session on the file that is at the path now, the given one if it is that. It
// returns nil with an error.
func (l *Log) usable(ctx context.Context, s *session, open func(context.Context) (*session, error)) (*session, error) {
	if l.ctx.Err() != nil {
		s.close()
		return nil, errClosed
	}
	now, err := os.Stat(l.cfg.Path)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("the database file is gone: put it back, or stop its processes and start anew: %w", err)
	}
	if s != nil && !s.broken && os.SameFile(now, s.file) {
		return s, nil
	}
	s.close()
	return open(ctx)
}

// stmt prepares a statement once. In the text, ~ stands for the prefix.
func (s *session) stmt(ctx context.Context, text string) (*sql.Stmt, error) {
	if st := s.stmts[text]; st != nil {
		return st, nil
	}
	st, err := s.conn.PrepareContext(ctx, strings.ReplaceAll(text, "~", s.prefix))
	if err != nil {
		return nil, err
	}
	s.stmts[text] = st
	return st, nil
}

// run executes what begins or ends a transaction, which must not be interrupted half-way.
func (s *session) run(ctx context.Context, text string) error {
	_, err := s.conn.ExecContext(context.WithoutCancel(ctx), text)
	return err
}

// rollback ends a transaction. After some errors (a full disk) SQLite has done so by itself.
func (s *session) rollback(ctx context.Context) {
	err := s.run(ctx, "ROLLBACK")
	s.broken = err != nil && !strings.Contains(err.Error(), "no transaction is active")
}

// close ends the session; nil is fine.
func (s *session) close() {
	if s == nil {
		return
	}
	for _, st := range s.stmts {
		st.Close()
	}
	s.conn.Close()
}

// query runs the statements of one call. The first error sticks: later statements do nothing and
// find nothing, so that what decides reads like the decision. Whoever began looks at err at the end.
type query struct {
	s   *session
	ctx context.Context
	now time.Time // the log's clock; in a transaction that writes, read under the lock
	err error
}

func (q *query) prepare(text string) *sql.Stmt {
	if q.err != nil {
		return nil
	}
	var st *sql.Stmt
	st, q.err = q.s.stmt(q.ctx, text)
	return st
}

// exec returns how many rows were changed.
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

// one reads one row and reports whether there is one.
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

// number reads one number; 0 where there is none.
func (q *query) number(text string, args ...any) int64 {
	var n sql.NullInt64
	q.one(text, args, &n)
	return n.Int64
}

// each reads rows until take returns false or fails.
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

// write runs fn in one transaction that holds the write lock from its beginning. An error of fn, or
// of a statement, changes nothing; one of the commit leaves open whether it has.
func (l *Log) write(ctx context.Context, fn func(*query) error) error {
	var s *session
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
	if err := retryBusy(ctx, func() error { return s.run(ctx, "BEGIN IMMEDIATE") }); err != nil {
		s.broken = !isBusy(err) && ctx.Err() == nil
		return err
	}
	q := &query{s: s, ctx: context.WithoutCancel(ctx), now: l.cfg.Now()}
	err = fn(q)
	if err == nil {
		err = q.err
	}
	if err == nil {
		err = ctx.Err() // the last moment to change nothing
	}
	if err != nil {
		s.rollback(ctx)
		return errors.Join(err, q.err)
	}
	if err := s.run(ctx, "COMMIT"); err != nil {
		s.rollback(ctx)
		return err
	}
	return nil
}

// read runs fn in one transaction that sees one state of the file and waits for no writer.
func (l *Log) read(ctx context.Context, fn func(*query) error) error {
	var s *session
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
	if err := s.run(ctx, "BEGIN"); err != nil {
		s.broken = true
		return err
	}
	q := &query{s: s, ctx: ctx, now: l.cfg.Now()}
	err = fn(q)
	if err == nil {
		err = q.err
	}
	s.rollback(ctx)
	s.broken = s.broken || ctx.Err() != nil // an interrupted connection is not used again
	return err
}
