// Package sqlite keeps the cluster store in one SQLite file that the processes of one host share.
//
// It is the store for one machine: development, an edge box, a single server with several workers.
// Nothing has to be installed, because the driver is pure Go. The user's own tables may be in the
// same file, so that an effect and its fence check are one transaction.
//
// # What it promises
//
// Everything that package storage promises, call by call the same as storage/memory, for any number
// of processes of one host on one local file:
//
//   - Every call that changes something is one short BEGIN IMMEDIATE transaction. It takes the
//     write lock before it reads anything, so nothing that it read can change before it commits. It
//     never waits for anything else while it holds the lock.
//   - A call never waits beyond its deadline. The driver's own busy handler cannot be interrupted
//     and is unfair, so it is off. A call on a locked file tries again with jitter until the
//     context or [Config.QueryTimeout] ends. In that case it has changed nothing.
//   - [Store.Watch] costs no statement: it checks the status of a small file beside the database.
//
// # Its clock
//
// Facts are stamped with a clock that counts from the boot of the host, suspend included, and never
// steps (Linux CLOCK_BOOTTIME; the counterpart of macOS):
//
//	now = base + time since boot        base: wall time − time since boot, once per boot
//
// The first process that opens the file after a boot writes the base, and all others use it. The
// stamps of all processes therefore agree, look like wall time, and do not move when the wall clock
// is set. A boot never begins before the last stamp of the previous boot.
//
// On other systems the store uses the wall clock and makes it non-decreasing across processes by a
// row of the file. It may still jump forward, and the store does not notice a reboot.
//
// # Reboot
//
// Every process of an earlier boot has ended. The first opening under a new boot ID records that in
// one transaction. The term is vacated (its event has the reason node.Expired), every node becomes
// a tombstone, and every held unit is freed by force, each with an event with the reason
// [ReasonRebooted]. Every lock is released. No node has to wait until a lease or a registration runs out.
//
// # Store identity
//
// The store identity consists of a random ID in the file, the device and inode of the file, and the
// boot ID. A copy that replaced the file is another store. So is a copy that was restored into the
// same inode, if a process that saw later events is still running, however many events others have
// written since. If the same copy is restored once more after all those have ended, its own random ID is back: whoever
// has used the file between the two notices that. The file records since when it is another store, and every heartbeat's
// reply contains that time. A node that starts soon after a restore therefore waits for runs that the lost rows may
// have assigned to other nodes.
//
// A copy from before the last reboot is both. What was of the former boot has ended, and runs of this boot
// that the lost rows assigned may go on, so nodes wait. Only if it was restored into the same inode, and a process opens
// it that starts before any running one has called, is it taken for a reboot until one of them calls.
//
// If the file is removed under a running process, the process does not create it again: calls fail
// until it is back.
//
// # What it does not promise
//
//   - No network file system: SQLite's locks and its shared memory do not work there. [Open]
//     refuses the ones that it can recognise.
//   - No two mounts that show the file under different device or inode numbers (bindfs, an overlay
//     over it). The processes of each mount would take the file for a copy of the other's, at every
//     write, with a warning. Bind mounts of one file system, as containers use them, show the same
//     numbers.
//   - A process that is stopped (SIGSTOP, a debugger) inside a write transaction blocks every
//     writer until it continues or ends; readers go on. [Store.WriteLockHolder] names it. The same goes for
//     user code inside [Store.InTx]: keep it short.
//   - With [SyncNormal], a power cut may undo the last transactions, all of them or from one on;
//     none is half undone. The host reboots with it, so no process is left that relied on them.
//     Generations and terms stay higher than any that were lost, because they follow the clock.
//   - Any process that can write the file can forge everything in it.
//   - No code of the process may open the database file except through the store's SQLite driver,
//     modernc.org/sqlite. Two drivers of one process do not see each other's locks, so commits would
//     be lost. On Unix, closing a file drops all of the process's locks on it.
//     Other processes may use any driver.
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
	"weak"

	"go.opentelemetry.io/otel/metric"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/storage"
)

// Sync says when a transaction reaches the disk.
type Sync string

// The ways to synchronise.
const (
	// SyncNormal survives kill -9 of any process. A power cut may undo the last transactions.
	SyncNormal Sync = "normal"
	// SyncFull survives a power cut, and costs a flush of the disk per transaction.
	SyncFull Sync = "full"
)

// ReasonRebooted is the reason of the events of nodes and units that ended because the host was rebooted.
const ReasonRebooted = "host rebooted"

// Config configures a store. Only Path has no default.
type Config struct {
	// Path is the database file. It is created if it does not exist; its directory is not.
	Path string
	// Prefix begins the name of every table; default "emitd_". Two clusters may share a file under
	// different prefixes.
	Prefix string
	// QueryTimeout bounds every call in addition to its context; default 5 s. Opening and migrating
	// may take at least 10 s.
	QueryTimeout time.Duration
	// Sync is SyncNormal by default; see there what SyncFull adds and costs.
	Sync Sync
	// WatchInterval is how often Watch checks the wake file; default 50 ms. A longer interval finds
	// changes later and makes fewer system calls.
	WatchInterval time.Duration
	// MustExist refuses to create the file. It is for commands that only read.
	MustExist bool
	// NoMigrate refuses a file whose schema is older than the program's (storage.ErrSchema)
	// instead of migrating it.
	NoMigrate bool
	// Logger gets what an operator should know; default slog.Default().
	Logger *slog.Logger
	// Meter measures calls as db.client.operation.duration; default OpenTelemetry's global one.
	Meter metric.MeterProvider
	// Now replaces the store's clock, for tests.
	Now func() time.Time

	host *host // the clock and boot id of the host, for tests
}

var validPrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// withDefaults fills in the defaults and validates the rest.
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

	writer  chan *session // holds the one session that writes; nil: it must be opened
	readers chan *session // holds the sessions that read; nil: it must be opened
	wakes   wakeFile
	timings timings
	stamps  stamps

	mu      sync.Mutex
	seen    map[string]mark                        // by the random id of the file
	last    visit                                  // the newest call
	adverts map[string]weak.Pointer[daemon.Advert] // by hash; see parseAdverts
	closed  bool
}

var (
	_ storage.Store   = (*Store)(nil)
	_ storage.Watcher = (*Store)(nil)
	_ storage.Locker  = (*Store)(nil)
	_ storage.Sweeper = (*Store)(nil)
	_ storage.Renamer = (*Store)(nil)
)

// maxReaders is how many calls can read at the same time.
const maxReaders = 4

// Open opens the store in the file at path with the default configuration. It creates and migrates
// the file as needed. Errors that an operator can fix are *[FileError]. A schema newer than the
// program is a storage.ErrSchema.
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
	s.cfg.MustExist = true // do not create the file again if it vanishes later
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
		seen:    map[string]mark{},
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
	s.readers <- nil // later calls find the store closed
	s.writer <- nil
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close store %s: %w", s.cfg.Path, err)
	}
	return nil
}

// opening bounds the work of opening, which may wait for another process that migrates.
func (s *Store) opening(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(s.cfg.QueryTimeout, 10*time.Second))
}

// bounded applies QueryTimeout.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.cfg.QueryTimeout)
}
