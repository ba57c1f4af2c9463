// Package sqlitefile is what every user of a SQLite file needs of its driver: connections to one path,
// the statements prepared on them, and patience with a file that others lock.
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
	// Create says whether a file that is missing is made; nil is no.
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

// Private makes the file be, for its owner alone: it holds what others may not read, and SQLite gives
// the files beside it the same mode. A file that is there keeps the mode it has. What goes wrong here
// goes wrong again where SQLite opens the file, and is told there.
func Private(path string) {
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err == nil {
		_ = f.Close()
	}
}

// Session is one connection to one file, with its prepared statements. One goroutine uses it at a time.
type Session struct {
	Conn   *sql.Conn
	Prefix string // of tables
	// File is the one it was opened on, for whoever wants to know whether it is still at its path. The
	// opener sets it.
	File os.FileInfo
	// Broken is set when a transaction could not be ended: not to be used again.
	Broken bool

	stmts map[string]*sql.Stmt
}

// Open connects. It sets pragmas, after one by which SQLite itself never waits: see [RetryBusy].
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

// Run executes a statement that is not worth preparing, and outlives the caller's context: what begins
// or ends a transaction must not be interrupted half-way.
func (s *Session) Run(ctx context.Context, text string) error {
	_, err := s.Conn.ExecContext(context.WithoutCancel(ctx), text)
	return err
}

// Rollback ends a transaction that must change nothing. After some errors (a full disk) SQLite has done
// so by itself.
func (s *Session) Rollback(ctx context.Context) {
	err := s.Run(ctx, "ROLLBACK")
	s.Broken = err != nil && !strings.Contains(err.Error(), "no transaction is active")
}

// Close ends the session; nil is fine.
func (s *Session) Close() {
	if s == nil {
		return
	}
	for _, st := range s.stmts {
		st.Close()
	}
	s.Conn.Close()
}
