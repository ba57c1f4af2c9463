// Package sqlite keeps the cluster store in one SQLite file, shared by the processes of one host.
//
// It is the store for one machine: development, an edge box, a single server with several
// workers. Nothing has to be installed (the driver is pure Go), and the user's own tables may
// live in the same file, so that a fenced effect and its fence check are one transaction.
//
// # What it promises
//
// Everything that package storage promises, call by call the same as storage/memory, for any
// number of processes of one host on one local file:
//
//   - Every call that changes something is one short BEGIN IMMEDIATE transaction: the write lock
//     is taken before anything is read, so nothing that was read can be overtaken, and it is
//     never held while something else is waited for.
//   - A deadline is a deadline. The driver's own busy handler cannot be interrupted and is
//     unfair, so it is off: a locked file is tried again with jitter until the context or
//     [Config.QueryTimeout] ends, and nothing has happened then.
//   - [Store.Watch] costs no statement: it looks at the status of a small file beside the
//     database.
//
// # Its clock
//
// Facts are stamped with a clock that counts from the boot of the host, suspend included, and
// never steps (Linux CLOCK_BOOTTIME; the counterpart of macOS):
//
//	now = base + time since boot        base: wall time − time since boot, once per boot
//
// The base is written by the first process that opens the file after a boot and shared by all
// others, so stamps of all processes agree, read like wall time, and do not move when the wall
// clock is set. A boot never begins before the last stamp of the one before.
//
// On other systems the wall clock is used, made non-decreasing across processes by a row of the
// file; it still may jump forward, and a reboot is not noticed.
//
// # Reboot
//
// Every process of an earlier boot is dead. The first opening under a new boot id says so in one
// transaction: the term is vacated, every node becomes a tombstone, every held unit is freed
// (forced), every lock expires, each with its event and the reason [Rebooted]. Nobody waits for
// a lease or a registration to run out.
//
// # Which store it is
//
// The store's identity is made of a random id in the file, the device and inode of the file, and
// the boot id. A copy that was put in the file's place is another store, also one that
// was restored into the same inode, if a process that saw later events is still running. The file
// keeps since when it is another store, and tells every heartbeat: a node that begins soon after a
// copy was restored waits for those who may still run what the lost rows gave them. A file
// that was removed under a running process is not created again: calls fail until it is back.
//
// # What it does not promise
//
//   - No network file system: SQLite's locks and its shared memory do not hold there. [Open]
//     refuses the ones it can recognise.
//   - No two mounts that show the file under different device or inode numbers (bindfs, an overlay
//     over it): the processes of each would take it for a copy of the other's, at every write, with
//     a warning. Bind mounts of one file system, as containers use them, number it alike.
//   - A process that is stopped (SIGSTOP, a debugger) inside a write transaction holds up every
//     writer until it continues or ends; readers go on. [Store.Blocker] names it. The same goes
//     for user code inside [Store.InTx]: keep it short.
//   - With [SyncNormal], a power cut may take back the last transactions, all of them or from one
//     on; none is torn. The host reboots with it, so nobody is left who relied on them.
//     Generations and terms stay higher than any that were lost, because they follow the clock.
//   - Any process that can write the file can forge everything in it.
//   - No code of the process may open and close the database file by other means than a SQLite
//     driver that shares its locks: on Unix, closing a file drops all the process's locks on it.
package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/storage"
)

// Sync says when a transaction reaches the disk.
type Sync string

// The ways to synchronise.
const (
	// SyncNormal survives kill -9 of any process; a power cut may take back the last
	// transactions.
	SyncNormal Sync = "normal"
	// SyncFull survives a power cut, and costs a flush of the disk per transaction.
	SyncFull Sync = "full"
)

// Rebooted is the reason given for everything that ended because the host was started anew.
const Rebooted = "host rebooted"

// Config configures a store. Its zero value, but for Path, is a good one.
type Config struct {
	// Path is the database file. It is created if it is not there; its directory is not.
	Path string
	// Prefix begins the name of every table; default "emitd_". Two clusters may share a file
	// under different prefixes.
	Prefix string
	// QueryTimeout bounds every call in addition to its context; default 5 s. Opening and
	// migrating may take 10 s at least.
	QueryTimeout time.Duration
	// Sync is SyncNormal by default; see there what SyncFull adds and costs.
	Sync Sync
	// WatchInterval is how often Watch looks at the wake file; default 50 ms. Longer finds
	// changes later and saves a system call each time.
	WatchInterval time.Duration
	// MustExist refuses to create the file: for commands that only look.
	MustExist bool
	// NoMigrate refuses a file whose schema is older than the program's (storage.ErrSchema)
	// instead of migrating it.
	NoMigrate bool
	// Logger is told of what an operator should know; default slog.Default().
	Logger *slog.Logger
	// Meter measures calls as db.client.operation.duration; default OpenTelemetry's global one.
	Meter metric.MeterProvider
	// Now replaces the store's clock, for tests.
	Now func() time.Time

	host *host // the clock and boot id of the host, for tests
}

var validPrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// withDefaults fills in what was left out and refuses what cannot be.
func (c Config) withDefaults() (Config, error) {
	c.Prefix = cmp.Or(c.Prefix, "emitd_")
	c.QueryTimeout = cmp.Or(c.QueryTimeout, 5*time.Second)
	c.Sync = cmp.Or(c.Sync, SyncNormal)
	c.WatchInterval = cmp.Or(c.WatchInterval, 50*time.Millisecond)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.Path == "":
		return c, errors.New("the path of the database file is empty")
	case !validPrefix.MatchString(c.Prefix):
		return c, fmt.Errorf("table prefix %q does not match %s", c.Prefix, validPrefix)
	case c.Sync != SyncNormal && c.Sync != SyncFull:
		return c, fmt.Errorf("sync is %q, want %q or %q", c.Sync, SyncNormal, SyncFull)
	case c.QueryTimeout < 0 || c.WatchInterval < 0:
		return c, fmt.Errorf("query timeout %v and watch interval %v must not be negative", c.QueryTimeout, c.WatchInterval)
	}
	return c, nil
}

// Store is a cluster store in a SQLite file. Its methods may be called from any goroutine.
type Store struct {
	cfg  Config // Path is absolute, symbolic links followed
	db   *sql.DB
	host *host

	writer  chan *session // holds the one session that writes, nil if it must be opened
	readers chan *session // holds sessions that read, nil if to be opened
	wakes   wakeFile
	timings timings

	mu      sync.Mutex
	seen    map[string]int64 // newest event seen, by the random id of the file
	adverts map[string]*daemon.Advert
	closed  bool
}

var (
	_ storage.Store   = (*Store)(nil)
	_ storage.Waker   = (*Store)(nil)
	_ storage.Locker  = (*Store)(nil)
	_ storage.Sweeper = (*Store)(nil)
	_ storage.Renamer = (*Store)(nil)
)

// maxReaders is how many calls read at the same time.
const maxReaders = 4

// Open opens the store in the file at path with the default configuration, creating and
// migrating the file as needed. Errors that an operator can do something about are *[FileError];
// a schema newer than the program is a storage.ErrSchema.
func Open(ctx context.Context, path string) (*Store, error) {
	return OpenConfig(ctx, Config{Path: path})
}

// OpenConfig is Open with a configuration.
func OpenConfig(ctx context.Context, cfg Config) (*Store, error) {
	s, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.opening(ctx)
	defer cancel()
	if err := s.write(ctx, func(*step) error { return nil }); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", s.cfg.Path, err), s.Close())
	}
	s.cfg.MustExist = true // a file that vanishes is not made again under running processes
	return s, nil
}

// prepare makes a store that has not touched its file yet.
func prepare(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if cfg.Path, err = locate(cfg.Path, cfg.MustExist); err != nil {
		return nil, err
	}
	s := &Store{
		cfg:     cfg,
		host:    cfg.host,
		writer:  make(chan *session, 1),
		readers: make(chan *session, maxReaders),
		seen:    map[string]int64{},
	}
	if s.host == nil {
		if s.host, err = thisHost(); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	if s.timings, err = newTimings(cfg.Meter); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.wakes = wakeFile{path: cfg.Path + wakeSuffix, log: cfg.Logger}
	s.db = sql.OpenDB(&sqlitefile.Connector{Path: cfg.Path, Create: func() bool { return !s.cfg.MustExist }})
	s.db.SetMaxIdleConns(-1) // a session owns its connection; none is kept for another file's session
	s.writer <- nil
	for range maxReaders {
		s.readers <- nil
	}
	return s, nil
}

// Path returns the database file, absolute and with symbolic links followed.
func (s *Store) Path() string { return s.cfg.Path }

// Close waits for running calls, then closes the file. Calls after Close fail. It may be called
// more than once.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	for range maxReaders {
		(<-s.readers).close()
	}
	(<-s.writer).close()
	s.readers <- nil // whoever comes now finds the store closed
	s.writer <- nil
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close store %s: %w", s.cfg.Path, err)
	}
	return nil
}

// opening bounds what happens once: it may wait for another process that migrates.
func (s *Store) opening(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(s.cfg.QueryTimeout, 10*time.Second))
}

// bounded applies QueryTimeout.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.cfg.QueryTimeout)
}
