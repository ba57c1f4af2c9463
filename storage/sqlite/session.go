package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/storage"
)

// session is one connection to one file. It belongs to exactly the file on which it was opened.
// When another file replaces that one, the session is closed and a new one is opened.
type session struct {
	*sqlitefile.Session
	place string // device and inode, in text
	// adopted is set once this session has made sure that the file belongs to this boot.
	adopted bool
}

// close ends the session; nil is fine.
func (c *session) close() {
	if c != nil {
		c.Close()
	}
}

// openSession connects to the file that exists now.
func (s *Store) openSession(ctx context.Context, pragmas ...string) (*session, error) {
	before, err := os.Stat(s.cfg.Path)
	if err != nil && (s.cfg.MustExist || !errors.Is(err, os.ErrNotExist)) {
		return nil, s.gone(err)
	}
	inner, err := sqlitefile.Open(ctx, s.db, s.cfg.Prefix, pragmas...)
	if err != nil {
		return nil, s.explain(err)
	}
	c := &session{Session: inner}
	after, err := os.Stat(s.cfg.Path)
	switch {
	case err != nil:
		c.close()
		return nil, s.gone(err)
	case before != nil && !os.SameFile(before, after):
		c.close()
		return nil, fmt.Errorf("%w: the database file was replaced while it was opened", storage.ErrUnavailable)
	}
	c.File, c.place = after, place(s.cfg.Path, after)
	return c, nil
}

// openWriter opens the session that writes, and brings the schema to the program's version.
func (s *Store) openWriter(ctx context.Context) (*session, error) {
	c, err := s.openSession(ctx, "synchronous = "+string(s.cfg.Sync), "journal_size_limit = 16777216")
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

// walMode switches the file to write-ahead logging, so that reads continue beside a writer.
func (s *Store) walMode(ctx context.Context, c *session) error {
	var mode string
	err := sqlitefile.RetryBusy(ctx, func() error {
		return c.Conn.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode)
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
	return s.openSession(ctx, "query_only = 1")
}

// ready returns the session if its file is still the one at the path, or a new session. With an
// error it returns nil.
func (s *Store) ready(ctx context.Context, c *session, open func(context.Context) (*session, error)) (*session, error) {
	if s.isClosed() {
		c.close()
		return nil, errClosed
	}
	if c != nil && !c.Broken {
		err := s.inPlace(c)
		if err == nil {
			return c, nil
		}
		c.close()
		if !errors.Is(err, errReplaced) {
			return nil, err
		}
		c = nil
		s.cfg.Logger.WarnContext(ctx, "the database file was replaced by another one, which is used now", "path", s.cfg.Path)
	}
	c.close()
	return open(ctx)
}

// inPlace checks that the session's file is still at the path. It returns errReplaced if another
// file is, or an error that says that none is.
func (s *Store) inPlace(c *session) error {
	now, err := os.Stat(s.cfg.Path)
	switch {
	case err != nil:
		return s.gone(err)
	case !os.SameFile(now, c.File):
		return errReplaced
	}
	return nil
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}
