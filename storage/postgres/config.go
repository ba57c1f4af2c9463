package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgerror"
)

// Config says where the store is. Only URL has no default.
type Config struct {
	// URL is a connection string as libpq and pgx understand it. It is never logged, and no error
	// contains its password.
	URL string
	// Schema holds the tables; default emitd. Several clusters can share a database by different
	// schemas, or by Prefix, which is put before each table's name; default none.
	Schema, Prefix string
	// Notify is "auto" (LISTEN and NOTIFY where they work, the default) or "poll": no wake-ups are
	// sent, and nodes find every change at their next heartbeat. Behind a pooler that hands
	// connections around, auto detects that notifications do not arrive and logs it once.
	Notify string
	// MaxConns bounds the connections of coordination, emitd's store.max_connections. The default
	// and minimum is 4, so that blocked calls cannot use all of them. Watch uses one more. Nodes in
	// one process may share one store.
	MaxConns int
	// QueryTimeout bounds every call, including the wait for a connection; default 5 s. It should
	// equal the coordinator's. To keep its connection, a call may take up to half of QueryTimeout,
	// at most a second, longer than QueryTimeout or its context allows.
	QueryTimeout time.Duration
	// AutoMigrate brings the schema to this program's version when the store opens. It needs a role
	// that may create tables. Two programs may do so at once.
	AutoMigrate bool
	// Logger gets what cannot be an error of a call; default slog.Default().
	Logger *slog.Logger
}

// The values of Config.Notify.
const (
	NotifyAuto = "auto"
	NotifyPoll = "poll"
)

// LogValue keeps the URL out of logs.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(slog.String("schema", c.Schema), slog.String("prefix", c.Prefix), slog.String("notify", c.Notify),
		slog.Int("max_conns", c.MaxConns), slog.Duration("query_timeout", c.QueryTimeout))
}

// String keeps the URL out of texts.
func (c Config) String() string { return "postgres " + c.LogValue().String() }

// GoString keeps the URL out of %#v.
func (c Config) GoString() string { return c.String() }

// minConns lets a heartbeat, a report and a commit proceed while one call is blocked.
const minConns = 4

// withDefaults fills in the defaults and validates the rest.
func (c Config) withDefaults() (Config, error) {
	c.Schema = cmp.Or(c.Schema, "emitd")
	c.Notify = cmp.Or(c.Notify, NotifyAuto)
	c.MaxConns = cmp.Or(c.MaxConns, minConns)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, 5*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	var errs []error
	if c.URL == "" {
		errs = append(errs, errors.New("store.url is empty, want postgres://…"))
	} else if err := pgerror.Check(c.URL); err != nil {
		errs = append(errs, fmt.Errorf("store.url %w", err))
	}
	if err := c.names().validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Notify != NotifyAuto && c.Notify != NotifyPoll {
		errs = append(errs, fmt.Errorf("store.notify is %q, want %q or %q", c.Notify, NotifyAuto, NotifyPoll))
	}
	if c.MaxConns < minConns {
		errs = append(errs, fmt.Errorf("store.max_connections is %d, want %d or more", c.MaxConns, minConns))
	}
	if c.QueryTimeout < 10*time.Millisecond {
		errs = append(errs, fmt.Errorf("query_timeout is %v, want 10ms or more", c.QueryTimeout))
	}
	return c, errors.Join(errs...)
}

func (c Config) names() names {
	return names{schema: c.Schema, prefix: c.Prefix, silent: c.Notify == NotifyPoll}
}

// pool returns the configuration of the connection pool. Whatever the URL says, statements use the
// simple protocol: see the package comment.
func (c Config) pool(dial func(ctx context.Context, network, address string) (net.Conn, error)) (*pgxpool.Config, error) {
	p, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, errors.New("store.url is not a valid connection string")
	}
	p.MaxConns, p.MinConns = int32(c.MaxConns), 0
	// CheckConn notices without a round trip that a connection broke while it idled, because the
	// end of the stream has already arrived. Only then a ping is requested, which fails at once.
	p.ShouldPing = func(_ context.Context, idle pgxpool.ShouldPingParams) bool {
		return idle.IdleDuration > time.Second && idle.Conn.PgConn().CheckConn() != nil //nolint:staticcheck // no round trip
	}
	c.connection(p.ConnConfig, dial)
	return p, nil
}

// connection sets what all connections of the store have in common.
func (c Config) connection(cc *pgx.ConnConfig, dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	cc.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cc.StatementCacheCapacity, cc.DescriptionCacheCapacity = 0, 0
	// Poolers pass these two parameters on. A pooler may refuse any other start-up parameter.
	cc.RuntimeParams["client_encoding"] = "UTF8"
	cc.RuntimeParams["application_name"] = cmp.Or(cc.RuntimeParams["application_name"], "emitd")
	// An attempt to connect must fail before the call that waits for it ends. Otherwise a partition
	// would fill the pool with attempts that outlive their calls.
	cc.ConnectTimeout = c.QueryTimeout * 9 / 10
	cc.DialFunc = dial
}

// dialer makes connections that notice a vanished peer within a minute, without any statement.
var dialer = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 4}}

// Open opens a store that has been migrated, with defaults: see [Config].
func Open(ctx context.Context, url string) (*Store, error) {
	return OpenConfig(ctx, Config{URL: url})
}

// OpenConfig opens a store. It connects once to check the schema. If the schema does not fit, a
// [storage.SchemaError] says what to do. Errors of the network are [storage.ErrUnavailable]; the
// caller decides how long to try.
func OpenConfig(ctx context.Context, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open the Postgres store: %w", err)
	}
	if cfg.AutoMigrate {
		if _, err := Migrate(ctx, cfg, Version); err != nil {
			return nil, err
		}
	}
	s, err := newStore(cfg)
	if err != nil {
		return nil, fmt.Errorf("open the Postgres store: %w", err)
	}
	if err := s.checkSchema(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("open the Postgres store: %w", explain(err, cfg))
	}
	return s, nil
}
