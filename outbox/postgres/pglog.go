// Package postgres stores the log of an outbox in Postgres 14 or later, beside the caller's own tables. So a
// change of business data and the messages about it are one transaction.
//
// In this package "id" is the column id of a message, which is [outbox.Row] Seq, and "transaction ID" is
// the number that Postgres gives a transaction (xid8).
//
// # Publishing
//
// A [Publisher] inserts messages into the log within the caller's transaction: a transaction of pgx, a
// batch of pgx, or a transaction of database/sql. If the transaction rolls back, the messages never
// existed. Nothing is notified inside the caller's transaction. After the commit, [Publisher.InTx] and
// [Publisher.Wrap] wake relays, with one notification for commits that are close together. Relays find
// messages of any other transaction by polling.
//
// # Order
//
// Transactions do not commit in the order of their ids. So a reader that selects "id > last" would miss a
// message with a lower id that commits later. A reader compares snapshots instead. After it has delivered
// everything that snapshot S1 sees, it takes a snapshot S2 of the present and delivers, in the order of
// ids,
//
//	T(S1, S2) = what S2 sees and S1 does not
//
// and continues from S2. Every message whose transaction commits is in exactly one T. No open transaction
// holds up what others have committed. (The idea is that of PgQ.)
//
// Example: transaction A draws id 1, transaction B draws id 2, and B commits first. S1 sees B and not A,
// so id 2 is delivered. Then A commits, and T(S1, S2) is id 1.
//
// The order of a key holds as well. Transaction B publishes for a key after A has released the key's
// lock. Then every snapshot that sees B also sees A, and A's ids are smaller. So B is in no earlier T
// than A, and within one T it follows A. The lock is either one that the caller's transaction holds on a
// row of its own, from before it publishes until its end, or the one that Publish takes: see
// [Publisher.Ordered].
//
// # Reading
//
// A reader finds T without reading again what it has delivered. When it stores a position, the first
// statement of that transaction reads the last id that was drawn, and only then draws the transaction ID. So
// a transaction with a higher transaction ID has only ids above that last id, which is called a *floor*. With
// it, T is
//
//	messages of transactions that were open in S1 and have ended since, by the index on (tx, id)
//	+ a range of the primary key above a known floor
//
// The cost depends neither on the backlog nor on how much is retained.
//
// The way of a page: [outbox.Cursor].Next asks the server with one statement whether there is anything to
// read. If so, a *round* begins: every cursor row of the range is read up to one target snapshot, S2. A
// goroutine reads a *chunk* of several pages of one row at a time and puts it into memory in batches.
// Next cuts pages off the batches, and starts the next chunk when half of the last one has been returned.
// So reading goes on while earlier pages are delivered.
//
// # Cursors
//
// A relay claims the cursor rows of its range before it reads. A claim writes the relay's epoch into them
// and raises their *turn*; an operator who moves them raises the turn too. Every write raises *rev*, the
// row's revision. Each write compares the bounds, epoch, turn, rev and position of the row with those
// that the cursor wrote last. So a cursor is refused if its row was claimed by another relay, moved by an
// operator, or set back by a failover. A claim is valid until the server restarts, and for that server
// only: when a connection leads to another, the range is claimed and read again. Servers in recovery are refused. Rows of a range that stand at different snapshots are
// each read up to one common snapshot, and then become one row.
//
// # Another server
//
// Snapshots are made of transaction IDs of one server. A server that was restored from a dump has its
// own, lower transaction IDs. The time of one server is an *era*. When the log finds itself on another server, it
// begins the next era. For a moment publishers are blocked, and all ids up to the highest one count as ended. Then the
// log delivers
// what the stored snapshots do not see, and whatever is above the last id that was drawn when they were
// stored. After the promotion of an asynchronous standby, the cursors are those that the standby had
// received. What was delivered since is delivered again.
//
// # Retention
//
// The log is partitioned by id. Partitions are created ahead, and removed as a whole by the sweeper
// ([Log.Tasks]) when they are older than [Config.Retention] and every cursor has passed them. A position
// alone does not show that, because a transaction may have drawn an id of the partition and commit later.
// So a transaction ID is drawn once the partition is full. A cursor has passed the partition when, in its
// stored snapshot, all transactions below that ID have ended. If the oldest message of a partition is older than half of the retention, and than an hour,
// the partition is closed: its remaining ids are never used.
//
// # Poolers
//
// Publishers work behind any pooler that the caller's pool works behind. When a [Log] opens, it detects a
// pooler that gives one session to several clients in turn (PgBouncer in transaction mode). Behind such a
// pooler it keeps no state in a session: every statement first asks which run of which server it reaches.
// Relays are not woken but poll, and reading takes several times as many round trips; a direct connection
// is better where there is one. A pooler that accepts a connection's parameters and loses them with the
// session cannot be detected reliably: then set default_query_exec_mode=exec in the URL.
//
// # What is not promised
//
//   - With synchronous_commit off, or after an asynchronous failover, Postgres loses commits that it has
//     acknowledged. Their messages may have been delivered.
//   - Ids have gaps, and the sequence must keep cache 1.
//   - Two transactions that each publish for several keys in several calls, in different orders, may
//     deadlock. Postgres then aborts one of them, as with any locks.
package postgres

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

// Config says where the log is and how it is maintained. The zero value is valid for a Publisher. A [Log]
// and [Migrate] require URL.
type Config struct {
	// URL is a connection string as libpq and pgx understand it. It is never logged, and no error contains
	// its password. The database must be that of the caller's tables. A Publisher does not use it.
	URL string
	// Schema holds the tables; default emitd. Prefix is put before each table's name; default none.
	Schema, Prefix string
	// Notify is "auto" (LISTEN and NOTIFY, the default) or "poll" (relays find messages by polling, as they
	// always do behind a pooler that shares sessions).
	Notify string
	// MaxConns bounds the connections of a Log, emitd's outbox.max_connections; default 8, at least 2. One
	// more connection listens for notifications. A busy relay uses two at a time, an idle one none.
	MaxConns int
	// QueryTimeout bounds every call of a Log and every statement in it; default 10 s.
	QueryTimeout time.Duration
	// AutoMigrate migrates the schema to this program's version when a Log opens. The role must be allowed
	// to create tables. Two programs may do this at the same time.
	AutoMigrate bool
	// Retention is how long messages are kept for a replay; default 24 h, negative none. Whole partitions
	// are removed, so messages may stay half as long again. A subscription that lags keeps them longer.
	Retention time.Duration
	// MaxRetained is how many bytes the log may use before OnLag applies to subscriptions that are a whole
	// Retention behind and so keep the oldest messages; default 0, no bound. OnLag "keep" (the default) only
	// warns. "forget" moves such a subscription past as many of the oldest messages as must be removed, and
	// it never delivers them. The subscription keeps its parked messages, its dead letters and its pause.
	MaxRetained int64
	OnLag       string
	// DeadRetention is how long dead letters are kept; default 720 h (30 days), negative for ever.
	DeadRetention time.Duration
	// OnPublished is called after a commit of [Publisher.InTx] or [Publisher.Wrap], on its own goroutine.
	// Commits that do not fit its buffer (1,024, of 64 MiB) because it is slow are dropped and logged.
	OnPublished func(messages []outbox.Message)
	// Logger gets what cannot be returned as an error of a call; default slog.Default().
	Logger *slog.Logger

	width int64         // ids of a partition; tests set it small
	age   time.Duration // shortest age at which a partition is closed; tests set it small
}

// The values of Config.Notify and Config.OnLag.
const (
	NotifyAuto = "auto"
	NotifyPoll = "poll"
	LagKeep    = "keep"
	LagForget  = "forget"
)

// LogValue omits the URL from logs.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(slog.String("schema", c.Schema), slog.String("prefix", c.Prefix), slog.String("notify", c.Notify))
}

// String omits the URL.
func (c Config) String() string { return "outbox in postgres " + c.LogValue().String() }

// GoString omits the URL from %#v.
func (c Config) GoString() string { return c.String() }

const (
	minConns = 2
	minAhead = 4       // partitions that are created ahead, at least
	minWidth = 1 << 22 // ids of a partition, at least
)

// withDefaults sets the defaults and validates the rest.
func (c Config) withDefaults() (Config, error) {
	c.Schema = cmp.Or(c.Schema, "emitd")
	c.Notify = cmp.Or(c.Notify, NotifyAuto)
	c.OnLag = cmp.Or(c.OnLag, LagKeep)
	c.MaxConns = cmp.Or(c.MaxConns, 8)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, 10*time.Second)
	c.Retention = max(cmp.Or(c.Retention, 24*time.Hour), 0)
	c.DeadRetention = max(cmp.Or(c.DeadRetention, 720*time.Hour), 0)
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
		bad("outbox.max_retained is %d, want 0 (no limit) or more", c.MaxRetained)
	}
	return c, errors.Join(errs...)
}

func (c Config) names() names { return names{c.Schema, c.Prefix} }

// withURL is withDefaults for functions that connect.
func (c Config) withURL() (Config, error) {
	c, err := c.withDefaults()
	if c.URL == "" {
		err = errors.Join(err, errors.New("outbox.url is empty, want postgres://…"))
	} else if bad := pgerror.Check(c.URL); bad != nil {
		err = errors.Join(err, fmt.Errorf("outbox.url %w", bad))
	}
	return c, err
}

// dialer makes connections that detect a vanished peer within a minute, even without any statement.
var dialer = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 4}}

// connection sets what all connections of a log have in common. Poolers pass the first two parameters on,
// and may refuse any other.
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

// pool returns the configuration of the pool. If connected is nil, it is the configuration for a pool
// behind a pooler.
func (c Config) pool(connected func(context.Context, *pgx.Conn) error) (*pgxpool.Config, error) {
	p, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, errors.New("outbox.url is not a valid connection string")
	}
	p.MaxConns, p.MinConns = int32(c.MaxConns), 0 // validated
	p.ShouldPing = func(_ context.Context, idle pgxpool.ShouldPingParams) bool {
		return idle.IdleDuration > time.Second && idle.Conn.PgConn().CheckConn() != nil //nolint:staticcheck // no round trip
	}
	p.AfterConnect = connected
	c.connection(p.ConnConfig, connected == nil)
	return p, nil
}
