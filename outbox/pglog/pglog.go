// Package pglog keeps the log of an outbox in Postgres, beside the caller's own tables, so that a row
// of business and the messages about it are one transaction. Postgres 14 or later.
//
// # Publishing
//
// A [Publisher] puts messages into the log within the caller's transaction: of pgx, as part of a
// batch, or of database/sql. What is rolled back was never there. Nothing is notified inside the
// caller's transaction. [Publisher.InTx] and [Publisher.Wrap] wake relays after the commit, with one
// notification for all commits of a moment; messages of a bare transaction are found by polling.
//
// # Order
//
// Transactions commit in another order than the one in which they drew their ids, so "id > last"
// would lose messages. A reader compares snapshots instead: having delivered what snapshot S1 sees,
// it takes the snapshot S2 of now and delivers, by id,
//
//	T(S1, S2) = what S2 sees and S1 does not
//
// then goes on from S2. Every message whose transaction commits is in exactly one T; no open
// transaction holds up what others have committed. If transaction B published for a key after A had
// released the key's lock, then every snapshot that sees B sees A, and A's ids are smaller: B is in no
// earlier T, and in one T behind A. (The idea is that of PgQ.) The lock is one that the caller's
// transaction holds on a row of its own from before it publishes until its end; or the one that
// Publish takes, see [Publisher.Ordered].
//
// # Reading
//
// T is found without looking at what was delivered before. Every write of a cursor reads the last id
// that was drawn before it draws its own transaction's number: transactions with higher numbers have
// higher ids. So T is
//
//	messages of transactions that were open in S1 and ended since, by the index on (tx, id)
//	+ a range of the primary key above a known floor
//
// whose cost depends neither on the backlog nor on what is retained. Pages are read ahead of the
// caller, in chunks of several, while pages before them are delivered.
//
// # Cursors
//
// A cursor is written by statements that compare bounds, epoch, turn, rev and position in full; what
// was claimed by another, moved by an operator, or lost by a failover is refused. A claim is of one
// run of one server: when a connection leads to another, the cursor is claimed and read again.
// Servers that recover are refused. Rows of a range that stand at different snapshots are each read
// up to one common snapshot, and are one row then.
//
// # Another server
//
// Snapshots are numbers of one server. When the log finds itself on one that numbers transactions
// anew (a dump that was restored), it begins another era: for a moment nobody publishes, all ids up
// to the highest one are said to have ended, and what the stored snapshots do not see, or is later
// than the last id drawn when they were stored, is delivered. After the promotion of an asynchronous
// standby the cursors are those that it received; what was delivered since comes again.
//
// # Retention
//
// The log is partitioned by id; partitions are made ahead and removed as a whole, by the sweeper
// ([Log.Tasks]), when they are older than [Config.Retention] and every cursor has passed them: a number
// is drawn once the partition is full, and all transactions below it must have ended in the stored
// snapshot of every cursor. So a transaction that commits late is never cut off. A partition whose
// oldest message is older than half of the retention, and than an hour, is ended: the ids that are left
// of it are given to nobody.
//
// # Poolers
//
// Publishers work behind any pooler, as far as the caller's pool does. A [Log] notices one that hands
// sessions around (PgBouncer in transaction mode) when it opens, and keeps nothing in a session then:
// every statement asks which run of which server it is in. Relays are not woken but poll, and reading
// costs several times as many round trips; a direct connection is better where there is one. Who has
// a pooler that takes a connection's parameters and forgets them with the session says so in
// the URL: default_query_exec_mode=exec.
//
// # What it does not promise
//
//   - With synchronous_commit off, or after an asynchronous failover, Postgres loses commits that it
//     has acknowledged, and messages of them may have been delivered.
//   - Ids have gaps, and the sequence must stay without a cache.
//   - A transaction that publishes for several keys at several times may meet another that does so in
//     another order: Postgres ends one of the two (a deadlock), as with any locks.
package pglog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/internal/pgschema"
	"github.com/emitd/emitd/outbox"
)

// Config says where the log is and how it is kept. The zero value is good for a Publisher; a [Log] and
// [Migrate] need URL.
type Config struct {
	// URL is a connection string as libpq and pgx understand it. It is never logged, and its password
	// stands in no error. The database must be that of the caller's tables. A Publisher does not use it.
	URL string
	// Schema holds the tables; default emitd. Prefix stands before each table's name; default none.
	Schema, Prefix string
	// Notify is "auto" (LISTEN and NOTIFY, the default) or "poll": relays find messages by polling, as
	// they do behind a pooler that hands sessions around.
	Notify string
	// MaxConns bounds the connections of a Log, emitd's outbox.max_connections; default 8, at least 2.
	// One more listens. A relay uses two at a time while it is busy, none while it has nothing to do.
	MaxConns int
	// QueryTimeout bounds every call of a Log and every statement of it; default 10 s.
	QueryTimeout time.Duration
	// AutoMigrate brings the schema to this program's version when a Log opens. It needs a role that
	// may create tables; two programs at once do no harm.
	AutoMigrate bool
	// Retention is how long messages stay for a replay; default 24 h, negative none. They go by
	// partitions, so they may stay half as long again. A subscription that lags holds them longer.
	Retention time.Duration
	// MaxRetained is how many bytes the log may take before OnLag says what becomes of subscriptions
	// that hold its beginning and are a whole Retention behind; default 0, no bound. "keep" (the
	// default) only warns; "forget" moves it behind the oldest messages, as many as must go: those it never
	// delivers. It keeps its lanes, its dead letters and its pause.
	MaxRetained int64
	OnLag       string
	// OnPublished is told after a commit of [Publisher.InTx] or [Publisher.Wrap], on a goroutine of its
	// own. A slow one misses what its buffer could not hold, which is logged.
	OnPublished func(messages []outbox.Message)
	// Logger tells what cannot be an error of a call; default slog.Default().
	Logger *slog.Logger

	width int64         // ids of a partition; tests make it small
	age   time.Duration // of a partition that is filled up, at least; likewise
}

// The values of Config.Notify and Config.OnLag.
const (
	NotifyAuto = "auto"
	NotifyPoll = "poll"
	LagKeep    = "keep"
	LagForget  = "forget"
)

// LogValue keeps the URL out of logs.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(slog.String("schema", c.Schema), slog.String("prefix", c.Prefix), slog.String("notify", c.Notify))
}

// String keeps the URL out of texts.
func (c Config) String() string { return "outbox in postgres " + c.LogValue().String() }

// GoString keeps the URL out of %#v.
func (c Config) GoString() string { return c.String() }

const (
	minConns = 2
	minAhead = 4       // partitions that are ready, at least
	minWidth = 1 << 22 // ids of a partition, at least
)

// withDefaults fills in what was left out and validates the rest.
func (c Config) withDefaults() (Config, error) {
	c.Schema = cmp.Or(c.Schema, "emitd")
	c.Notify = cmp.Or(c.Notify, NotifyAuto)
	c.OnLag = cmp.Or(c.OnLag, LagKeep)
	c.MaxConns = cmp.Or(c.MaxConns, 8)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, 10*time.Second)
	c.Retention = max(cmp.Or(c.Retention, 24*time.Hour), 0)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.width, c.age = cmp.Or(c.width, minWidth), cmp.Or(c.age, time.Hour)
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := c.names().validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Notify != NotifyAuto && c.Notify != NotifyPoll {
		bad("outbox.notify is %q, want %q or %q", c.Notify, NotifyAuto, NotifyPoll)
	}
	if c.OnLag != LagKeep && c.OnLag != LagForget {
		bad("outbox.on_lag is %q, want %q or %q", c.OnLag, LagKeep, LagForget)
	}
	if c.MaxConns < minConns || c.MaxConns > 1<<15 {
		bad("outbox.max_connections is %d, want %d or more", c.MaxConns, minConns)
	}
	if c.QueryTimeout < 10*time.Millisecond {
		bad("outbox.query_timeout is %v, want 10ms or more", c.QueryTimeout)
	}
	if c.MaxRetained < 0 {
		bad("outbox.max_retained is %d, want 0 (no bound) or more", c.MaxRetained)
	}
	return c, errors.Join(errs...)
}

func (c Config) names() names { return names{c.Schema, c.Prefix} }

// withURL is withDefaults for what connects.
func (c Config) withURL() (Config, error) {
	c, err := c.withDefaults()
	if c.URL == "" {
		err = errors.Join(err, errors.New("outbox.url is empty, want postgres://…"))
	} else if bad := pgerror.Check(c.URL); bad != nil {
		err = errors.Join(err, fmt.Errorf("outbox.url %w", bad))
	}
	return c, err
}

// dialer makes connections that notice a vanished peer within a minute, without any statement.
var dialer = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 4}}

// connection sets what every connection of a log has in common. Poolers pass the first two parameters
// on, and may refuse any other.
func (c Config) connection(cc *pgx.ConnConfig, pooled bool) {
	cc.RuntimeParams["client_encoding"] = "UTF8"
	cc.RuntimeParams["application_name"] = cmp.Or(cc.RuntimeParams["application_name"], "emitd")
	cc.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	if !pooled {
		maps.Copy(cc.RuntimeParams, c.settings())
		cc.RuntimeParams["search_path"] = pgschema.SearchPath
		cc.RuntimeParams["default_transaction_isolation"] = "read committed"
		cc.RuntimeParams["default_transaction_read_only"] = "off"
		cc.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	}
	cc.ConnectTimeout = c.QueryTimeout * 9 / 10
	cc.DialFunc = dialer.DialContext
}

// pool returns the configuration of the pool; without connected, of one behind a pooler.
func (c Config) pool(connected func(context.Context, *pgx.Conn) error) (*pgxpool.Config, error) {
	p, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, errors.New("outbox.url is no connection string")
	}
	p.MaxConns, p.MinConns = int32(c.MaxConns), 0 //nolint:gosec // validated
	p.ShouldPing = func(_ context.Context, idle pgxpool.ShouldPingParams) bool {
		return idle.IdleDuration > time.Second && idle.Conn.PgConn().CheckConn() != nil //nolint:staticcheck // no round trip
	}
	p.AfterConnect = connected
	c.connection(p.ConnConfig, connected == nil)
	return p, nil
}
