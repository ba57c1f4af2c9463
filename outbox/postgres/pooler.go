package postgres

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

// A pooler that shares sessions may give a connection another session of the server, or of another
// server, at each transaction. So behind a pooler a log keeps no state in a session. Statements are not
// prepared. Each runs in a transaction that first applies the settings and asks which run of the server
// this is. Nothing is listened for, because LISTEN belongs to a session, which other clients get.

// errPooled says that the session does not have the parameters that the connection asked for.
var errPooled = errors.New("the settings of the connection do not reach the server")

// pooled reports whether err is of a kind that poolers cause: refused or missing parameters.
func pooled(err error) bool { return errors.Is(err, errPooled) || pgerror.Code(err) == "08P01" }

// settings returns the settings under which statements run. Each statement has one good plan, by index,
// whatever the statistics say. A plan made while a table was empty would be many times slower.
func (c Config) settings() map[string]string {
	timeout := strconv.FormatInt(c.QueryTimeout.Milliseconds(), 10)
	return map[string]string{
		"plan_cache_mode": generic, "enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off",
		"max_parallel_workers_per_gather": "0", "statement_timeout": timeout, "idle_in_transaction_session_timeout": timeout,
	}
}

const generic = "force_generic_plan"

// started is the start time of the server, in microseconds.
const started = `(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint`

// beginning returns the text that begins a transaction behind a pooler.
func (c Config) beginning() string {
	text := []string{"begin isolation level read committed read write"}
	for name, value := range c.settings() {
		text = append(text, "set local "+name+" = "+pgschema.Literal(value))
	}
	text = append(text, "set local search_path = "+pgschema.SearchPath)
	slices.Sort(text) // "begin" sorts first
	return strings.Join(append(text, "select "+started), "; ")
}

// transact runs fn in a transaction of a pooled connection, on the required server if at is not nil.
func (l *Log) transact(ctx context.Context, conn *pgx.Conn, at *server, fn func() error) error {
	began, err := conn.PgConn().Exec(ctx, l.begin).ReadAll()
	if pgerror.Code(err) == "0A000" { // a server in recovery has no transactions that write
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
		_, _ = conn.Exec(ctx, "rollback") // without this the pool closes the connection
		return err
	}
	tag, err := conn.Exec(ctx, "commit")
	if err == nil && tag.String() == "ROLLBACK" {
		err = pgx.ErrTxCommitRollback
	}
	return err
}

// on runs fn on a connection to the required server, if at is not nil. Behind a pooler only a transaction
// can check that: see transact.
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

// currentServer returns the server that connections reach now.
func (l *Log) currentServer(ctx context.Context) (s server, err error) {
	err = l.session(ctx, nil, func(conn *pgx.Conn) error {
		s, err = serverOfSession(ctx, conn)
		return err
	})
	return s, err
}

// result runs a statement with arguments in text format. Its columns are in binary format.
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

// connect makes the pool, for a direct connection or one behind a pooler, and checks the schema.
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

// open connects, and finds out whether a pooler that shares sessions is in between. That is so if the
// connection's parameters are refused or ignored, or if the URL sets default_query_exec_mode.
func (l *Log) open(ctx context.Context) error {
	cc, err := pgx.ParseConfig(l.cfg.URL)
	if err != nil {
		return errors.New("outbox.url is not a valid connection string")
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
	l.cfg.Logger.InfoContext(ctx, "the outbox's database is behind a transaction pooler: relays poll instead of listening, and statements are planned each time")
	return nil
}
