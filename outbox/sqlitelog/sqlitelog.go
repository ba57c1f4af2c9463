// Package sqlitelog keeps the log of an outbox in a SQLite file, beside the caller's own tables, so
// that a row of business and the messages about it are one transaction.
//
// # Publishing
//
// A [Publisher] puts messages into the log within the caller's transaction, of whichever SQLite
// driver the caller uses. What is rolled back was never there. [Publisher.InTx] begins the
// transaction properly (it takes the write lock before anything is read, and waits for it as long
// as its context allows) and wakes relays when it has committed.
//
// # Order
//
// SQLite lets one transaction write at a time. Ids of the log are drawn under that lock, so
//
//	order of ids = order of the write locks = order of the commits
//
// and a reader that has seen id n will never see a smaller one appear: a cursor is one number per
// range of shards, and "id > last" is the whole of reading. There is no key to lock and nothing to
// leave unordered.
//
// # Cursors
//
// Every change of a cursor is one BEGIN IMMEDIATE transaction with an UPDATE that compares bounds,
// epoch, rev and position. Next looks, in the statement that it begins with, whether the range is
// still owned: a claim or an operator raises the turn of the rows, and the reader is refused.
// Rows of a range that stand at different positions are read in one pass and become one row as
// soon as a position behind all of them is stored.
//
// # Waking
//
// A commit by InTx or Wrap wakes the relays of the same process at once. Commits of other processes,
// and of bare transactions, are found by "PRAGMA data_version" every [Config.WatchInterval].
//
// # Durability
//
// A [Log] writes with synchronous = FULL. Whether a published message survives a power cut is
// decided by the caller's connection: set "PRAGMA synchronous = FULL" there (SQLite's default).
// With NORMAL in WAL mode the last commits may be gone after a power cut, of messages and of the
// caller's rows alike, and a message that was already delivered may be among them.
//
// # What it does not promise
//
//   - No network file system, and one host: those are SQLite's conditions.
//   - A transaction that stays open after it has written holds up all other writers of the file, the
//     relay's progress among them. Messages that were committed before are read meanwhile.
//   - Times come from the wall clock of the host. When it is set back, what waits, waits longer.
//   - The file does not shrink when messages are removed; their room is used again.
//   - A file that is restored from a backup has the cursors of that backup: messages delivered since
//     are delivered again, and those published since are lost. A file that is replaced under running
//     relays is noticed at their next call.
package sqlitelog

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Config says where the log is and how it is kept. The zero value, but for Path, is good.
type Config struct {
	// Path is the database file of a [Log], created if it is not there; a Publisher has its own
	// handle. It may be the file of the cluster store, and must be the file of the caller's tables.
	Path string
	// Prefix stands before each table's name; default "emitd_".
	Prefix string
	// Sync is "full" by default. "normal" saves a flush of the disk for each change of a cursor; a
	// power cut may then repeat deliveries and take back what an operator did last.
	Sync string
	// NoMigrate makes Open refuse a file without the tables of this program.
	NoMigrate bool
	// MaxConns bounds how many calls of a Log read at the same time; default 4. One connection more
	// writes.
	MaxConns int
	// QueryTimeout bounds every call of a Log, and with it the wait for another writer; default 10 s.
	QueryTimeout time.Duration
	// WatchInterval is how often a Log looks for commits of other processes; default 25 ms. Negative:
	// never, relays poll.
	WatchInterval time.Duration
	// Retention is how long messages stay for a replay; default 24 h, negative none. A subscription
	// that lags holds them longer.
	Retention time.Duration
	// MaxRetained is how many bytes the log may take before OnLag says what becomes of subscriptions
	// that hold its beginning and are a whole Retention behind; default 0, no bound. "keep" (the
	// default) only warns; "forget" moves it behind the oldest messages, as many as must go: those it never
	// delivers. It keeps its lanes, its dead letters and its pause.
	MaxRetained int64
	OnLag       string
	// OnPublished is told after a commit of [Publisher.InTx] or [Publisher.Wrap], in the order of
	// the commits, on a goroutine of its own. A slow one misses what its buffer could not hold, which
	// is logged.
	OnPublished func(messages []outbox.Message)
	// Logger tells what cannot be an error of a call; default slog.Default().
	Logger *slog.Logger
	// Now replaces the clock of the host, for tests.
	Now func() time.Time
}

// The values of Config.Sync and Config.OnLag.
const (
	SyncFull   = "full"
	SyncNormal = "normal"
	LagKeep    = "keep"
	LagForget  = "forget"
)

// validPrefix is the allow-list: the prefix goes into statements as part of names.
var validPrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// withDefaults fills in what was left out and validates the rest.
func (c Config) withDefaults() (Config, error) {
	c.Prefix = cmp.Or(c.Prefix, "emitd_")
	c.Sync = cmp.Or(c.Sync, SyncFull)
	c.OnLag = cmp.Or(c.OnLag, LagKeep)
	c.MaxConns = cmp.Or(c.MaxConns, 4)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, 10*time.Second)
	c.WatchInterval = cmp.Or(c.WatchInterval, 25*time.Millisecond)
	c.Retention = max(cmp.Or(c.Retention, 24*time.Hour), 0)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Now == nil {
		c.Now = time.Now
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !validPrefix.MatchString(c.Prefix) {
		bad("outbox.prefix is %q, want %s", c.Prefix, validPrefix)
	}
	if c.Sync != SyncFull && c.Sync != SyncNormal {
		bad("outbox.sync is %q, want %q or %q", c.Sync, SyncFull, SyncNormal)
	}
	if c.OnLag != LagKeep && c.OnLag != LagForget {
		bad("outbox.on_lag is %q, want %q or %q", c.OnLag, LagKeep, LagForget)
	}
	if c.MaxConns < 1 {
		bad("outbox's max connections is %d, want 1 or more", c.MaxConns)
	}
	if c.QueryTimeout < 10*time.Millisecond {
		bad("outbox.query_timeout is %v, want 10ms or more", c.QueryTimeout)
	}
	if c.WatchInterval > 0 && c.WatchInterval < time.Millisecond {
		bad("outbox.watch_interval is %v, want 1ms or more, or negative", c.WatchInterval)
	}
	if c.MaxRetained < 0 {
		bad("outbox.max_retained is %d, want 0 (no bound) or more", c.MaxRetained)
	}
	return c, errors.Join(errs...)
}
