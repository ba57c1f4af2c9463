package pglog

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/internal/pgschema"
)

// A pooler that hands sessions around gives a connection another session of the server, perhaps of
// another server, whenever it begins a transaction. So behind one nothing is kept in a session:
// statements are not prepared, and each runs in a transaction that begins with the settings and with
// the question which run of the server this is. Nothing is listened for, because what listens is the
// session, which others get.

// errPooled says that the parameters of a connection are not the session's.
var errPooled = errors.New("the settings of the connection do not reach the server")

// pooled reports whether a connection was refused, or given other settings, as poolers do.
func pooled(err error) bool { return errors.Is(err, errPooled) || pgerror.Code(err) == "08P01" }

// settings are what statements of a log run under. They have one good plan each, by index, whatever the
// statistics say: a plan of the hour when the table was empty would be many times slower.
func (c Config) settings() map[string]string {
	timeout := strconv.FormatInt(c.QueryTimeout.Milliseconds(), 10)
	return map[string]string{
		"plan_cache_mode": generic, "enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off",
		"max_parallel_workers_per_gather": "0", "statement_timeout": timeout, "idle_in_transaction_session_timeout": timeout,
	}
}

const generic = "force_generic_plan"

// started is when the server was started, in microseconds.
const started = `(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint`

// beginning is what begins a transaction behind a pooler.
func (c Config) beginning() string {
	text := []string{"begin isolation level read committed read write"}
	for name, value := range c.settings() {
		text = append(text, "set local "+name+" = "+pgschema.Literal(value))
	}
	text = append(text, "set local search_path = "+pgschema.SearchPath)
	slices.Sort(text) // begin comes first
	return strings.Join(append(text, "select "+started), "; ")
}

// transact runs fn in a transaction of a pooled connection, on the server that it must be, if that is
// known.
func (l *Log) transact(ctx context.Context, conn *pgx.Conn, at *server, fn func() error) error {
	began, err := conn.PgConn().Exec(ctx, l.begin).ReadAll()
	if pgerror.Code(err) == "0A000" { // a server that recovers has no transactions that write
		err = errStandby
	}
	if err == nil && at != nil {
		if run := began[len(began)-1].Rows; len(run) != 1 || string(run[0][0]) != strconv.FormatInt(at.started, 10) {
			err = errServer
		}
	}
	if err == nil {
		err = fn()
	}
	if conn.IsClosed() {
		return err
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = conn.Exec(ctx, "rollback") // else the pool closes the connection
		return err
	}
	tag, err := conn.Exec(ctx, "commit")
	if err == nil && tag.String() == "ROLLBACK" {
		err = pgx.ErrTxCommitRollback
	}
	return err
}

// on runs fn on a connection to the server that it must be, if that is known. Behind a pooler only a
// transaction can tell.
func (l *Log) on(ctx context.Context, at *server, fn func(conn *pgx.Conn) error) error {
	conn, err := l.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if !l.pooled && at != nil && *at != serverBehind(conn) {
		return errServer
	}
	return fn(conn.Conn())
}

// session runs fn on one session of the server.
func (l *Log) session(ctx context.Context, at *server, fn func(conn *pgx.Conn) error) error {
	return l.on(ctx, at, func(conn *pgx.Conn) error {
		if !l.pooled {
			return fn(conn)
		}
		return l.transact(ctx, conn, at, func() error { return fn(conn) })
	})
}

// where returns the server that connections lead to now.
func (l *Log) where(ctx context.Context) (s server, err error) {
	err = l.session(ctx, nil, func(conn *pgx.Conn) error {
		s, err = ask(ctx, conn)
		return err
	})
	return s, err
}

// result runs a statement with arguments as text, and returns its columns in binary.
func (l *Log) result(ctx context.Context, conn *pgx.Conn, statement string, args [][]byte) (*pgconn.ResultReader, error) {
	if l.pooled {
		return conn.PgConn().ExecParams(ctx, statement, args, nil, nil, []int16{1}), nil
	}
	sd, err := conn.Prepare(ctx, statement, statement)
	if err != nil {
		return nil, err
	}
	return conn.PgConn().ExecPrepared(ctx, sd.Name, args, nil, []int16{1}), nil
}

// connect makes the pool and sees that the schema fits, without or with a pooler in between.
func (l *Log) connect(ctx context.Context, behindPooler bool) error {
	connected := identify
	if l.pooled = behindPooler; l.pooled {
		connected, l.begin = nil, l.cfg.beginning()
	}
	pool, err := l.cfg.pool(connected)
	if err != nil {
		return err
	}
	if l.pool, err = pgxpool.NewWithConfig(context.Background(), pool); err != nil {
		return err
	}
	err = l.session(ctx, nil, func(conn *pgx.Conn) error { return checkSchema(ctx, conn, l.cfg) })
	if err != nil {
		l.pool.Close()
	}
	return err
}

// open connects, and finds out whether there is a pooler that hands sessions around: it refuses the
// parameters of a connection, or ignores them, or the URL says so by a mode of execution.
func (l *Log) open(ctx context.Context) error {
	cc, err := pgx.ParseConfig(l.cfg.URL)
	if err != nil {
		return errors.New("outbox.url is no connection string")
	}
	if cc.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return l.connect(ctx, true)
	}
	if err := l.connect(ctx, false); !pooled(err) {
		return err
	}
	if err := l.connect(ctx, true); err != nil {
		return err
	}
	l.cfg.Logger.InfoContext(ctx, "the outbox's database is behind a pooler that hands sessions around: relays poll, and statements are planned each time")
	return nil
}
