// Package postgres is the sink that writes messages into a table of a Postgres database, exactly once.
//
// # What is written
//
// A delivery is one transaction on the target database. It locks the fence rows of the shards that it
// writes, compares their epoch with its own, and inserts the messages:
//
//   - into Config.Table, which has the messages' id as its primary key: a message that is there is left
//     as it is. The sink makes the table if Config.Create is set;
//   - or by Config.Statement, run once for each message that was never delivered: its id is put into the
//     table of delivered ids in the same transaction, and the statement runs only if it was not there.
//     Ids are kept for Config.Keep, which bounds after what time a repetition is noticed.
//
// Either way a message takes effect once: repetitions, after a crash between the commit here and the
// advance of the cursor there, change nothing. A replay of a subscription therefore changes nothing
// either, as long as the ids are kept.
//
// # The fence
//
// The fence table holds the epoch of each (subscription, shard). Fence raises it, and refuses an epoch
// lower than what is there. A delivery reads it with a lock that holds off a raise until the
// transaction has ended: so either it commits before the new relay begins, which then finds its ids, or
// it sees the higher epoch and writes nothing. A relay that stops in the middle of a delivery (a paused
// process, a lost host) holds its successor off for five seconds: then the database rolls it back.
//
// # What an error means
//
// A message that the database refuses (type, constraint, trigger) is found by savepoints, and the others
// of its delivery are written:
//
//	bad data (22…, 23… but foreign keys, P0001)                  permanent
//	a foreign key that is not there yet (23503), a lock, others  another attempt
//	a policy of row-level security refuses the row (42501)       another attempt
//	table missing or other, rights, read-only (42…, 25006)       the sink is down
//	no connection, login refused, no space (08…, 28…, 53…, 57…)  the sink is down
//	a higher epoch                                               fenced
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

// Config of the sink. URL or Pool is required.
type Config struct {
	// URL of the target database, as libpq knows it. It may contain a password.
	// Behind a pooler that hands sessions around it needs default_query_exec_mode=cache_describe (with
	// exec, types are unknown, and the database refuses every message).
	URL sink.Secret `yaml:"url"`
	// Schema of the sink's own tables; default emitd_sink. It is made if Create is set.
	Schema string `yaml:"schema"`
	// Table to insert into, "name" or "schema.name"; default <schema>.message. Its columns: id uuid
	// primary key, subscription, topic, key, type text, headers jsonb, payload bytea, traceparent,
	// tracestate text, created_at, delivered_at timestamptz.
	Table string `yaml:"table"`
	// Statement to run instead for each new message. It may name @id (uuid), @subscription, @topic,
	// @key, @type (text), @headers (jsonb), @payload (bytea) and @created_at (timestamptz). Example:
	//
	//	insert into orders (id, body) values (@id, convert_from(@payload, 'UTF8')::jsonb)
	Statement string `yaml:"statement"`
	// Keep is how long ids are known that a Statement was run for; default 7 days.
	Keep time.Duration `yaml:"keep"`
	// Create makes schema and tables that are missing. Without it they must be there: see Schema.
	Create bool `yaml:"create"`
	// Timeout of one transaction; default 30 s.
	Timeout time.Duration `yaml:"timeout"`
	// Connections at most, if the sink makes the pool; default 8.
	Connections int `yaml:"connections"`
	// Pool to use instead of one of URL's. It is not closed.
	Pool *pgxpool.Pool `yaml:"-"`
}

// Sink writes messages. It is safe for concurrent use.
type Sink struct {
	cfg  Config
	sql  statements
	pool *pgxpool.Pool
	own  bool // the pool is ours

	mu     sync.Mutex
	ready  bool      // tables were made, or need not be
	pruned time.Time // when ids were removed last
}

var (
	_ outbox.Sink   = (*Sink)(nil)
	_ outbox.Fencer = (*Sink)(nil)
)

// New checks the configuration. It does not connect: a database that is away is a sink that is down.
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
		return nil, errors.New("postgres sink: url is no connection string")
	}
	pc.MaxConns = int32(min(s.cfg.Connections, 1000)) //nolint:gosec // bounded
	if pc.ConnConfig.RuntimeParams["application_name"] == "" {
		pc.ConnConfig.RuntimeParams["application_name"] = "emitd sink"
	}
	if s.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, fmt.Errorf("postgres sink: %w", err)
	}
	s.own = true
	return s, nil
}

var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// parameter finds the names in a statement, as far as they are not part of a literal.
var parameter = regexp.MustCompile(`(?:^|[\s(,=])@([a-zA-Z_]\w*)`)

var parameters = []string{"id", "subscription", "topic", "key", "type", "headers", "payload", "created_at"}

// configure fills in defaults and says what is wrong.
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
	case c.Timeout < 0 || c.Keep < 0 || c.Connections < 0:
		return errors.New("timeout, keep and connections must not be negative")
	}
	for _, m := range parameter.FindAllStringSubmatch(c.Statement, -1) {
		if !slices.Contains(parameters, m[1]) {
			return fmt.Errorf("the statement names @%s, which is none of %s", m[1], strings.Join(parameters, ", "))
		}
	}
	c.Timeout = sink.Default(c.Timeout, 30*time.Second)
	c.Keep = sink.Default(c.Keep, 7*24*time.Hour)
	if c.Connections == 0 {
		c.Connections = 8
	}
	return nil
}

// Close closes the pool, if the sink made it.
func (s *Sink) Close() error {
	if s.own {
		s.pool.Close()
	}
	return nil
}

// Schema returns the statements that make the tables, for those who make them on their own.
func (s *Sink) Schema() string { return s.sql.create }

// Fence raises the epoch of the shards.
func (s *Sink) Fence(ctx context.Context, subscription, shards string, epoch int64) error {
	r, err := sink.Range(shards)
	if err != nil {
		return fmt.Errorf("postgres sink: fence: %w", err)
	}
	var all []int32
	for shard := r.Lo; shard <= r.Hi; shard++ {
		all = append(all, int32(shard)) //nolint:gosec // below 64
	}
	return s.inTx(ctx, "fence", func(ctx context.Context, tx pgx.Tx) error {
		return s.raise(ctx, tx, claim{subscription, all, epoch})
	})
}

// claim is an epoch on shards.
type claim struct {
	subscription string
	shards       []int32 // sorted: locks are taken in one order
	epoch        int64
}

// raise writes the epoch where it is lower, and refuses it where it is higher.
func (s *Sink) raise(ctx context.Context, tx pgx.Tx, c claim) error {
	var highest int64
	if err := tx.QueryRow(ctx, s.sql.raise, c.subscription, c.shards, c.epoch).Scan(&highest, nil); err != nil {
		return err
	}
	return c.compare(highest)
}

func (c claim) compare(highest int64) error {
	if highest > c.epoch {
		return fmt.Errorf("subscription %s at epoch %d: %w", c.subscription, c.epoch, &outbox.FencedError{Floor: highest})
	}
	return nil
}

// hold locks the fence rows until the transaction ends, so that no higher epoch can be written. A relay
// that did not call Fence raises them here.
func (s *Sink) hold(ctx context.Context, tx pgx.Tx, c claim) error {
	var found int
	var lowest, highest int64
	if err := tx.QueryRow(ctx, s.sql.hold, c.subscription, c.shards).Scan(&found, &lowest, &highest, nil); err != nil {
		return err
	}
	if err := c.compare(highest); err != nil {
		return err
	}
	if found == len(c.shards) && lowest == c.epoch {
		return nil
	}
	return s.raise(ctx, tx, c)
}
