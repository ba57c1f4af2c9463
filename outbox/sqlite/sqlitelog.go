// Package sqlite stores the log of an outbox in a SQLite file, beside the caller's own tables. So a
// change of business data and the messages about it are one transaction.
//
// # Publishing
//
// A [Publisher] inserts messages into the log within the caller's transaction. If the transaction rolls back, the messages never existed. [Publisher.InTx]
// begins a transaction that takes the write lock before it reads anything, and waits for the lock as long
// as its context allows. After the commit it wakes relays.
//
// A process that has a [Log] or a cluster store of the file open must open it with their driver only, modernc.org/sqlite. Two
// SQLite drivers of one process do not see each other's locks, so both write at the same time and commits are lost.
// InTx refuses a transaction if it finds that the lock does not hold for a log of its process. A process that only publishes may use any
// driver.
//
// # Order
//
// SQLite lets one transaction write at a time. Ids of the log are drawn under that lock, so
//
//	order of ids = order of the write locks = order of the commits
//
// A reader that has seen id n will never see a smaller one appear. So a cursor is one number per range of
// shards, and reading is just "id > last". No key needs a lock, and there is no option to publish without
// order.
//
// # Cursors
//
// Every change of a cursor row is one BEGIN IMMEDIATE transaction with an UPDATE that compares bounds,
// epoch, turn, rev and position. Next first checks whether the range is still owned: a claim or an
// operator raises the turn of the rows, and the reader is refused. Rows of a range that stand at
// different positions are read in one pass. They become one row as soon as a position after all of them
// is stored.
//
// # Waking relays
//
// A commit by InTx or Wrap wakes the relays of the same process at once. Commits of other processes, and
// of other transactions, are found by "PRAGMA data_version" every [Config.WatchInterval].
//
// # Durability
//
// A [Log] writes with synchronous = FULL. Whether a published message survives a power cut is decided by
// the caller's connection: set "PRAGMA synchronous = FULL" there (SQLite's default). With NORMAL in WAL
// mode the last commits may be lost in a power cut, messages and the caller's rows alike. Some of the
// lost messages may already have been delivered.
//
// # What is not promised
//
//   - Work on a network file system or across hosts: SQLite supports neither.
//   - Progress while a transaction stays open after it has written: it holds up all other writers of the
//     file, the relay's stored positions among them. Messages that were committed before are still read.
//   - Correct times if the host's wall clock is set back: what waits then waits longer.
//   - A smaller file after messages are removed; their space is used again.
//   - Continuity after a restore: a file that is restored from a backup has the cursors of that backup.
//     Messages delivered since are delivered again, and messages published since are lost. Running relays
//     notice at their next call that a file was replaced. Connections of the caller's handle that were open stay on the file
//     that is gone, and what they publish is lost: open the handle anew. In the process of a log, InTx refuses the first
//     or a later one of their transactions (it checks every 64th), and then all.
package sqlite

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Config says where the log is and how it is maintained. Only Path has no default.
type Config struct {
	// Path is the database file of a [Log]; it is created if it does not exist. A Publisher does not use it,
	// because it has its own handle. The file may also hold the cluster store, and must be that of the
	// caller's tables.
	Path string
	// Prefix is put before each table's name; default "emitd_".
	Prefix string
	// Sync is "full" by default. "normal" saves a flush of the disk for each change of a cursor. After a
	// power cut it may repeat deliveries and lose the last changes by an operator.
	Sync string
	// NoMigrate makes Open refuse a file that lacks the tables of this program.
	NoMigrate bool
	// MaxConns bounds how many calls of a Log read at the same time; default 4. One more connection writes.
	MaxConns int
	// QueryTimeout bounds every call of a Log, including the wait for another writer; default 10 s.
	QueryTimeout time.Duration
	// WatchInterval is how often a Log checks for commits of other processes; default 25 ms. If it is
	// negative, the Log never checks and relays poll.
	WatchInterval time.Duration
	// Retention is how long messages are kept for a replay; default 24 h, negative none. A subscription that
	// lags keeps them longer.
	Retention time.Duration
	// MaxRetained is how many bytes the log may use before OnLag applies to subscriptions that are a whole
	// Retention behind and so keep the oldest messages; default 0, no bound. OnLag "keep" (the default) only
	// warns. "forget" moves such a subscription past as many of the oldest messages as must be removed, and
	// it never delivers them. The subscription keeps its lanes, its dead letters and its pause.
	MaxRetained int64
	OnLag       string
	// DeadRetention is how long dead letters are kept; default 720 h (30 days), negative for ever.
	DeadRetention time.Duration
	// OnPublished is called after a commit of [Publisher.InTx] or [Publisher.Wrap], in the order of the
	// commits, on its own goroutine. Commits that do not fit its buffer (1,024, of 64 MiB) because it is slow are dropped and
	// logged.
	OnPublished func(messages []outbox.Message)
	// Logger gets what cannot be returned as an error of a call; default slog.Default().
	Logger *slog.Logger
	// Now replaces the host's clock, for tests.
	Now func() time.Time
}

// The values of Config.Sync and Config.OnLag.
const (
	SyncFull   = "full"
	SyncNormal = "normal"
	LagKeep    = "keep"
	LagForget  = "forget"
)

// validPrefix restricts the prefix, because it becomes part of names in statements.
var validPrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// withDefaults sets the defaults and validates the rest.
func (c Config) withDefaults() (Config, error) {
	c.Prefix = cmp.Or(c.Prefix, "emitd_")
	c.Sync = cmp.Or(c.Sync, SyncFull)
	c.OnLag = cmp.Or(c.OnLag, LagKeep)
	c.MaxConns = cmp.Or(c.MaxConns, 4)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, 10*time.Second)
	c.WatchInterval = cmp.Or(c.WatchInterval, 25*time.Millisecond)
	c.Retention = max(cmp.Or(c.Retention, 24*time.Hour), 0)
	c.DeadRetention = max(cmp.Or(c.DeadRetention, 720*time.Hour), 0)
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
		bad("outbox.max_retained is %d, want 0 (no limit) or more", c.MaxRetained)
	}
	return c, errors.Join(errs...)
}
