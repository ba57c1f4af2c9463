package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/outbox"
)

// Log is the log of an outbox in a file, for relays and operators. Its methods may be called from any
// goroutine.
type Log struct {
	cfg     Config // Path is absolute, symbolic links followed
	db      *sql.DB
	writer  chan *sqlitefile.Session // holds the one session that writes, nil if it is not open
	readers chan *sqlitefile.Session // holds the sessions that read, nil if not open
	watch   sync.Once                // starts watchFile with the first relay
	ctx     context.Context          // ends with Close
	stop    context.CancelFunc
	wg      sync.WaitGroup // the goroutine of watchFile
	closing sync.Once      // makes Close idempotent
}

var (
	_ outbox.Log      = (*Log)(nil)
	_ outbox.Operator = (*Log)(nil)
)

// Open opens the log in the file cfg.Path. Unless NoMigrate is set, it creates the file and migrates its
// tables to the version of this program.
func Open(ctx context.Context, cfg Config) (*Log, error) {
	cfg, err := cfg.withDefaults()
	if err == nil && (cfg.Path == "" || cfg.Path == ":memory:") {
		err = fmt.Errorf("the path of the database file is %q: want a file that relays and callers share", cfg.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the outbox: %w", err)
	}
	path := cfg.Path
	if cfg.Path, err = locate(path); err != nil {
		return nil, fmt.Errorf("open the outbox in %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, max(cfg.QueryTimeout, 10*time.Second)) // another process may be migrating
	defer cancel()
	if err := prepareFile(ctx, cfg); err != nil {
		return nil, explain("open the outbox", cfg.Path, err)
	}
	l := &Log{
		cfg: cfg, db: sql.OpenDB(&sqlitefile.Connector{Path: cfg.Path}),
		writer: make(chan *sqlitefile.Session, 1), readers: make(chan *sqlitefile.Session, cfg.MaxConns),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.db.SetMaxIdleConns(-1) // sessions hold their connections; an idle one could belong to a replaced file
	l.writer <- nil
	for range cfg.MaxConns {
		l.readers <- nil
	}
	commits.opened(l)
	return l, nil
}

// locate makes a path absolute and resolves symbolic links, so that all processes use the same names for
// the file and for those beside it.
func locate(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fmt.Errorf("its directory does not exist: %w", err)
	}
	abs = filepath.Join(dir, filepath.Base(abs))
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	if info, err := os.Stat(abs); err == nil && !info.Mode().IsRegular() {
		return "", errors.New("it is not a regular file")
	}
	return abs, nil
}

// prepareFile makes sure that the file exists, is in WAL mode and has the tables.
func prepareFile(ctx context.Context, cfg Config) error {
	db := sql.OpenDB(&sqlitefile.Connector{Path: cfg.Path, Create: func() bool { return !cfg.NoMigrate }})
	defer db.Close()
	var mode string
	err := sqlitefile.RetryBusy(ctx, func() error { return db.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode) })
	if err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("write-ahead logging is not available here (journal mode is %q): put the file on a local file system", mode)
	}
	if !cfg.NoMigrate {
		have, err := applied(ctx, db, cfg.Prefix)
		if err != nil {
			return err
		}
		if len(have) < Version {
			_, err := Migrate(ctx, db, cfg, Version)
			return err
		}
	}
	return checkSchema(ctx, db, cfg.Prefix)
}

// Close stops watching the file, waits for calls in progress and closes the file. Later calls fail.
func (l *Log) Close() {
	l.closing.Do(func() {
		commits.closed(l)
		l.stop()
		l.wg.Wait()
		for range cap(l.readers) {
			(<-l.readers).Close()
		}
		(<-l.writer).Close()
		for range cap(l.readers) { // later calls find closed sessions and do not block
			l.readers <- nil
		}
		l.writer <- nil
		l.db.Close()
	})
}

// bounded limits ctx by QueryTimeout.
func (l *Log) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.cfg.QueryTimeout)
}
