// Package sqlitefile is what every user of a SQLite file needs from its driver: connections to one
// path, prepared statements on them, and retries while another process has locked the file.
package sqlitefile

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	modernc "modernc.org/sqlite"
)

// Connector opens connections for database/sql.
type Connector struct {
	Path string
	// Create reports whether to create a missing file. Nil: it is not created.
	Create func() bool
}

// Driver implements driver.Connector.
func (c *Connector) Driver() driver.Driver { return &modernc.Driver{} }

// Connect implements driver.Connector.
func (c *Connector) Connect(ctx context.Context) (driver.Conn, error) {
	mode := "rw"
	if c.Create != nil && c.Create() {
		mode = "rwc"
		Private(c.Path)
	}
	path := filepath.ToSlash(c.Path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // a drive letter
	}
	inner, err := modernc.NewConnector((&url.URL{Scheme: "file", Path: path, RawQuery: "mode=" + mode + "&_error_rc=1"}).String())
	if err != nil {
		return nil, err
	}
	return inner.Connect(ctx)
}

// Private creates the file with access for its owner only, because its content may be confidential.
// SQLite gives the files beside it the same mode. A file that exists keeps its mode. An error here
// also occurs when SQLite opens the file, and is reported there.
func Private(path string) {
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err == nil {
		_ = f.Close()
	}
}

// Session is one connection to one file, with its prepared statements. One goroutine at a time may
// use it.
type Session struct {
	Conn   *sql.Conn
	Prefix string // of tables
	// File is the file on which the session was opened. Callers compare it with what is at Path now. The opener sets
	// it.
	File os.FileInfo
	// Broken is set when a transaction could not be ended: the session must not be used again.
	Broken bool

	stmts map[string]*sql.Stmt
}

// Open connects and sets the pragmas. Before these it turns SQLite's own waiting for locks off (busy_timeout),
// because [RetryBusy] waits instead.
func Open(ctx context.Context, db *sql.DB, prefix string, pragmas ...string) (*Session, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s := &Session{Conn: conn, Prefix: prefix, stmts: map[string]*sql.Stmt{}}
	for _, p := range append([]string{"busy_timeout = 0"}, pragmas...) {
		err := RetryBusy(ctx, func() error {
			_, err := conn.ExecContext(ctx, "PRAGMA "+p)
			return err
		})
		if err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Stmt prepares a statement once. In the text, ~ stands for the prefix.
func (s *Session) Stmt(ctx context.Context, text string) (*sql.Stmt, error) {
	if st := s.stmts[text]; st != nil {
		return st, nil
	}
	st, err := s.Conn.PrepareContext(ctx, strings.ReplaceAll(text, "~", s.Prefix))
	if err != nil {
		return nil, err
	}
	s.stmts[text] = st
	return st, nil
}

// Run executes a statement that is not worth preparing. The end of the caller's context does not
// interrupt it, because a statement that begins or ends a transaction must not stop halfway.
func (s *Session) Run(ctx context.Context, text string) error {
	_, err := s.Conn.ExecContext(context.WithoutCancel(ctx), text)
	return err
}

// LockedOut reports whether a transaction of another connection keeps the session, which has none, from writing. Callers ask
// while such a transaction has the write lock. Between two SQLite drivers of one process that lock has no effect: POSIX locks
// belong to the process, and each driver keeps account of its own connections only. Then commits are lost.
func (s *Session) LockedOut(ctx context.Context) (bool, error) {
	err := s.Run(ctx, "BEGIN IMMEDIATE")
	if IsBusy(err) {
		return true, nil
	}
	if err == nil {
		s.Rollback(ctx)
	}
	return false, err
}

// Rollback ends a transaction that must change nothing. After some errors (a full disk) SQLite has
// already done so by itself.
func (s *Session) Rollback(ctx context.Context) {
	err := s.Run(ctx, "ROLLBACK")
	s.Broken = err != nil && !strings.Contains(err.Error(), "no transaction is active")
}

// Close ends the session; a nil session is allowed.
func (s *Session) Close() {
	if s == nil {
		return
	}
	for _, st := range s.stmts {
		st.Close()
	}
	s.Conn.Close()
}
