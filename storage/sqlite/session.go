package sqlite

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

	modernc "modernc.org/sqlite"

	"github.com/emitd/emitd/storage"
)

// session is one connection to one file, with its prepared statements. It is used by one
// goroutine at a time and belongs to exactly the file it was opened on: when another file stands
// at the path, the session is closed and a new one opened.
type session struct {
	conn   *sql.Conn
	prefix string
	file   os.FileInfo
	place  string // device and inode, in text
	stmts  map[string]*sql.Stmt
	// adopted is set once this session has made sure that the file is of this boot.
	adopted bool
	// broken is set when a transaction could not be ended: the connection is not used again.
	broken bool
}

// connector opens connections for database/sql.
type connector struct{ s *Store }

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return &modernc.Driver{} }

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	mode := "rwc"
	if c.s.cfg.MustExist {
		mode = "rw"
	}
	path := filepath.ToSlash(c.s.cfg.Path)
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
func (s *Store) openSession(ctx context.Context, pragmas ...string) (*session, error) {
	before, err := os.Stat(s.cfg.Path)
	if err != nil && (s.cfg.MustExist || !errors.Is(err, os.ErrNotExist)) {
		return nil, s.gone(err)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, s.explain(err)
	}
	c := &session{conn: conn, prefix: s.cfg.Prefix, stmts: map[string]*sql.Stmt{}}
	after, err := os.Stat(s.cfg.Path)
	switch {
	case err != nil:
		c.close()
		return nil, s.gone(err)
	case before != nil && !os.SameFile(before, after):
		c.close()
		return nil, fmt.Errorf("%w: the database file was replaced while it was opened", storage.ErrUnavailable)
	}
	c.file, c.place = after, place(s.cfg.Path, after)
	for _, p := range pragmas {
		err := retryBusy(ctx, func() error {
			_, err := conn.ExecContext(ctx, "PRAGMA "+p)
			return err
		})
		if err != nil {
			c.close()
			return nil, s.explain(err)
		}
	}
	return c, nil
}

// openWriter opens the session that writes and brings the schema to the program's version.
func (s *Store) openWriter(ctx context.Context) (*session, error) {
	c, err := s.openSession(ctx, "busy_timeout = 0", "synchronous = "+string(s.cfg.Sync), "journal_size_limit = 16777216")
	if err != nil {
		return nil, err
	}
	if err := s.walMode(ctx, c); err != nil {
		c.close()
		return nil, err
	}
	if err := s.fitSchema(ctx, c); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// walMode makes the file write ahead, which lets readers go on beside a writer.
func (s *Store) walMode(ctx context.Context, c *session) error {
	var mode string
	err := retryBusy(ctx, func() error {
		return c.conn.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode)
	})
	if err != nil {
		return s.explain(err)
	}
	if mode != "wal" {
		return &FileError{
			Path:    s.cfg.Path,
			Problem: fmt.Sprintf("write-ahead logging is not available here (journal mode is %q, expected \"wal\")", mode),
			Hint:    "put the file on a local file system that supports shared memory",
		}
	}
	return nil
}

// openReader opens a session that reads.
func (s *Store) openReader(ctx context.Context) (*session, error) {
	return s.openSession(ctx, "busy_timeout = 0", "query_only = 1")
}

// ready returns the session if its file still is the one at the path, or a new one. It returns
// nil with an error.
func (s *Store) ready(ctx context.Context, c *session, open func(context.Context) (*session, error)) (*session, error) {
	if s.isClosed() {
		c.close()
		return nil, errClosed
	}
	if c != nil && !c.broken {
		err := s.inPlace(c)
		if err == nil {
			return c, nil
		}
		c.close()
		if !errors.Is(err, errReplaced) {
			return nil, err
		}
		c = nil
		s.cfg.Logger.WarnContext(ctx, "the database file was replaced by another one; going on with it", "path", s.cfg.Path)
	}
	c.close()
	return open(ctx)
}

// inPlace reports that the session's file is not at the path any more: errReplaced, or an error
// that says that nothing is.
func (s *Store) inPlace(c *session) error {
	now, err := os.Stat(s.cfg.Path)
	switch {
	case err != nil:
		return s.gone(err)
	case !os.SameFile(now, c.file):
		return errReplaced
	}
	return nil
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// stmt prepares a statement once. In the text, ~ stands for the table prefix.
func (c *session) stmt(ctx context.Context, text string) (*sql.Stmt, error) {
	if st := c.stmts[text]; st != nil {
		return st, nil
	}
	st, err := c.conn.PrepareContext(ctx, strings.ReplaceAll(text, "~", c.prefix))
	if err != nil {
		return nil, err
	}
	c.stmts[text] = st
	return st, nil
}

// run executes a statement that is not worth preparing, and outlives the caller's context: what
// ends a transaction must not be interrupted.
func (c *session) run(ctx context.Context, text string) error {
	_, err := c.conn.ExecContext(context.WithoutCancel(ctx), text)
	return err
}

// rollback ends a transaction that must change nothing. After some errors (a full disk) SQLite has
// done so by itself.
func (c *session) rollback(ctx context.Context) {
	err := c.run(ctx, "ROLLBACK")
	c.broken = err != nil && !strings.Contains(err.Error(), "no transaction is active")
}

// close ends the session; nil is fine.
func (c *session) close() {
	if c == nil {
		return
	}
	for _, st := range c.stmts {
		st.Close()
	}
	c.conn.Close()
}
