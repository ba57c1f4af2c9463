// Package postgres is the sink that writes messages into a table of a Postgres database, exactly once.
//
// # What is written
//
// A delivery is one transaction on the target database. It locks the fence rows of the shards that it
// writes, compares their epoch with its own, and writes the messages
//
//   - into Config.Table, whose primary key is the message's ID, so that a message that is already there
//     stays unchanged. The sink creates the table if Config.Create is set;
//   - or by Config.Statement, run once for each new message. The message's ID is inserted into the table
//     of delivered IDs in the same transaction, and the statement runs only if the ID was not there. IDs
//     are kept for Config.KeepIDs; a repetition after that time is not noticed.
//
// Either way a message takes effect once. Repetitions change nothing, for example after a crash between
// the commit here and the advance of the cursor in the outbox. So a replay of a subscription changes
// nothing either, as long as the IDs are kept.
//
// # The fence
//
// The fence table holds the epoch of each (subscription, shard). Fence raises it, and refuses an epoch
// lower than the stored one. A delivery reads it with a lock that blocks a raise until the transaction
// has ended. So a delivery that was before the new relay's Fence has ended when Fence returns. If it
// has committed, the new relay finds its IDs. A delivery that is after Fence sees the higher epoch and
// writes nothing. A relay that stops in the middle of a delivery (a paused
// process, a lost host) blocks its successor for five seconds; then the database rolls it back.
//
// # What an error means
//
// A message that the database refuses (type, constraint, trigger) is found by savepoints, and the others
// of its delivery are written. If only the commit fails, because of a deferred constraint or trigger, the
// delivery is repeated with each constraint checked after each message (SET CONSTRAINTS ALL IMMEDIATE). In that repetition,
// messages that satisfy a deferred constraint only together, such as two that exchange unique values, are refused too:
//
//	bad data (22…, 23… except 23503, P0001)                      permanent
//	a foreign key that is not there yet (23503), a lock, others  another attempt
//	a policy of row-level security refuses the row (42501)       another attempt
//	table missing or other, rights, read-only (42…, 25006)       the sink is down
//	no connection, login refused, no space (08…, 28…, 53…, 57…)  the sink is down
//	a higher epoch                                               fenced
//	a deadlock or serialization failure (40P01, 40001)           repeated at once; another attempt after Config.Timeout
//
// After a deadlock or serialization failure the sink's deliveries exclude each other for a minute, also
// those of other processes and subscriptions that share Config.Schema. So a Statement or trigger that locks
// its rows in no order costs a second once a minute, and no attempts.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// Config configures the sink. URL or Pool is required.
type Config struct {
	// URL is the target database, in a form that libpq understands. It may contain a password. Behind a
	// pooler that shares sessions it needs default_query_exec_mode=cache_describe. (With exec, types are
	// unknown, and the database refuses every message.)
	URL sink.Secret `yaml:"url"`
	// Schema holds the sink's own tables; default emitd_sink. It is created if Create is set.
	Schema string `yaml:"schema"`
	// Table is the table to insert into, "name" or "schema.name"; default <schema>.message. Its columns: id
	// uuid primary key, subscription, topic, key, type text, headers jsonb, payload bytea, traceparent,
	// tracestate text, created_at, delivered_at timestamptz.
	Table string `yaml:"table"`
	// Statement to run instead for each new message. It may name @id (uuid), @subscription, @topic,
	// @key, @type (text), @headers (jsonb), @payload (bytea) and @created_at (timestamptz). Example:
	//
	//	insert into orders (id, body) values (@id, convert_from(@payload, 'UTF8')::jsonb)
	Statement string `yaml:"statement"`
	// KeepIDs is how long the IDs are kept for which a Statement was run; default 7 days.
	KeepIDs time.Duration `yaml:"keep"`
	// Create creates missing schemas and tables. Without it they must exist: see Schema.
	Create bool `yaml:"create"`
	// Timeout bounds one transaction; default 30 s.
	Timeout time.Duration `yaml:"timeout"`
	// Connections bounds the pool, if the sink makes one; default 8.
	Connections int `yaml:"connections"`
	// Pool is used instead of URL. The sink does not close it.
	Pool *pgxpool.Pool `yaml:"-"`
}

// Sink writes messages. It is safe for concurrent use.
type Sink struct {
	cfg      Config
	sql      statements
	pool     *pgxpool.Pool
	ownsPool bool // the sink made the pool

	mu         sync.Mutex
	ready      bool      // tables were created, or need not be
	pruned     time.Time // when expired IDs were last removed
	aloneUntil time.Time // until when it delivers alone, because of a conflict
}

var (
	_ outbox.Sink   = (*Sink)(nil)
	_ outbox.Fencer = (*Sink)(nil)
)

// New checks the configuration. It does not connect: while the database cannot be reached, the sink is
// down.
func New(ctx context.Context, cfg Config) (*Sink, error) {
	s := &Sink{cfg: cfg}
	if err := s.configure(); err != nil {
		return nil, fmt.Errorf("postgres sink: %w", err)
	}
	s.sql = s.cfg.statements()
	s.ready = !s.cfg.Create
	if s.pool = cfg.Pool; s.pool != nil {
		return s, nil
	}
	if err := pgerror.Check(string(cfg.URL)); err != nil {
		return nil, fmt.Errorf("postgres sink: url %w", err)
	}
	pc, err := pgxpool.ParseConfig(string(cfg.URL))
	if err != nil {
		return nil, errors.New("postgres sink: url is not a valid connection string")
	}
	pc.MaxConns = int32(min(s.cfg.Connections, 1000)) // bounded
	if pc.ConnConfig.RuntimeParams["application_name"] == "" {
		pc.ConnConfig.RuntimeParams["application_name"] = "emitd sink"
	}
	if s.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, fmt.Errorf("postgres sink: %w", err)
	}
	s.ownsPool = true
	return s, nil
}

var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// parameter matches the names in a statement that are not part of a literal.
var parameter = regexp.MustCompile(`(?:^|[\s(,=])@([a-zA-Z_]\w*)`)

var parameters = []string{"id", "subscription", "topic", "key", "type", "headers", "payload", "created_at"}

// configure sets the defaults and validates the configuration.
func (s *Sink) configure() error {
	c := &s.cfg
	if c.Schema == "" {
		c.Schema = "emitd_sink"
	}
	if c.Table == "" {
		c.Table = c.Schema + ".message"
	}
	parts := strings.Split(c.Table, ".")
	for _, part := range append(parts, c.Schema) {
		if !identifier.MatchString(part) || len(parts) > 2 {
			return fmt.Errorf("schema %q and table %q must be names as in %s", c.Schema, c.Table, identifier)
		}
	}
	switch {
	case c.Pool == nil && c.URL == "":
		return errors.New("url is empty")
	case c.Timeout < 0 || c.KeepIDs < 0 || c.Connections < 0:
		return errors.New("timeout, keep and connections must not be negative")
	}
	for _, m := range parameter.FindAllStringSubmatch(c.Statement, -1) {
		if !slices.Contains(parameters, m[1]) {
			return fmt.Errorf("the statement names @%s, want one of %s", m[1], strings.Join(parameters, ", "))
		}
	}
	c.Timeout = sink.DurationOr(c.Timeout, 30*time.Second)
	c.KeepIDs = sink.DurationOr(c.KeepIDs, 7*24*time.Hour)
	if c.Connections == 0 {
		c.Connections = 8
	}
	return nil
}

// Close closes the pool, if the sink made it.
func (s *Sink) Close() error {
	if s.ownsPool {
		s.pool.Close()
	}
	return nil
}

// Schema returns the statements that create the tables, for users who create them themselves.
func (s *Sink) Schema() string { return s.sql.create }

// Fence raises the epoch of the shards.
func (s *Sink) Fence(ctx context.Context, subscription, shards string, epoch int64) error {
	r, err := sink.Range(shards)
	if err != nil {
		return fmt.Errorf("postgres sink: fence: %w", err)
	}
	var all []int32
	for shard := r.Lo; shard <= r.Hi; shard++ {
		all = append(all, int32(shard)) // below 64
	}
	return s.inTx(ctx, "fence", func(ctx context.Context, tx pgx.Tx) error {
		return s.raise(ctx, tx, fenceKey{subscription, all, epoch})
	})
}

// fenceKey is an epoch for a set of shards.
type fenceKey struct {
	subscription string
	shards       []int32 // sorted, so that locks are taken in one order
	epoch        int64
}

// raise writes the epoch to shards with a lower one, and refuses it if a shard has a higher one.
func (s *Sink) raise(ctx context.Context, tx pgx.Tx, c fenceKey) error {
	var highest int64
	if err := tx.QueryRow(ctx, s.sql.raise, c.subscription, c.shards, c.epoch).Scan(&highest, nil); err != nil {
		return err
	}
	return c.compare(highest)
}

func (c fenceKey) compare(highest int64) error {
	if highest > c.epoch {
		return fmt.Errorf("subscription %s at epoch %d: %w", c.subscription, c.epoch, &outbox.FencedError{Floor: highest})
	}
	return nil
}

// errNotRaised says that shards have a lower epoch than the delivery's, or none: nobody has called Fence.
var errNotRaised = errors.New("the fence does not have the epoch of this delivery, although it was just raised; does something else change the table of fences?")

// hold locks the fence rows until the transaction ends, so that no higher epoch can be written. It fails with
// errNotRaised if they do not have the epoch yet.
func (s *Sink) hold(ctx context.Context, tx pgx.Tx, c fenceKey) error {
	var found int
	var lowest, highest int64
	if err := tx.QueryRow(ctx, s.sql.hold, c.subscription, c.shards).Scan(&found, &lowest, &highest, nil); err != nil {
		return err
	}
	if err := c.compare(highest); err != nil {
		return err
	}
	if found < len(c.shards) || lowest < c.epoch {
		return errNotRaised
	}
	return nil
}
