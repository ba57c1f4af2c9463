package pglog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/outbox"
)

// Log is the log of an outbox in a Postgres schema, for relays and operators. Its methods may be
// called from any goroutine.
type Log struct {
	cfg     Config
	names   names
	pool    *pgxpool.Pool
	bell    bell
	listen  sync.Once
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	wg      sync.WaitGroup
	closing sync.Once
	tending tending
}

var (
	_ outbox.Log      = (*Log)(nil)
	_ outbox.Operator = (*Log)(nil)
)

// Open opens the log in the schema of cfg.URL's database. It connects once, to see that the schema
// fits: an [outbox.ErrSchema] says what to do if it does not.
func Open(ctx context.Context, cfg Config) (*Log, error) {
	cfg, err := cfg.withURL()
	if err != nil {
		return nil, fmt.Errorf("open the outbox: %w", err)
	}
	if cfg.AutoMigrate {
		if _, err := Migrate(ctx, cfg, Version); err != nil {
			return nil, err
		}
	}
	pool, err := cfg.pool(identify)
	if err != nil {
		return nil, fmt.Errorf("open the outbox: %w", err)
	}
	l := &Log{cfg: cfg, names: cfg.names()}
	if l.pool, err = pgxpool.NewWithConfig(context.Background(), pool); err != nil {
		return nil, cfg.explain("open the outbox", err)
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	if err := checkSchema(ctx, l.pool, l.names); err != nil {
		l.Close()
		return nil, cfg.explain("open the outbox", err)
	}
	return l, nil
}

// Close ends all calls and connections and waits for them.
func (l *Log) Close() {
	l.closing.Do(func() {
		l.stop()
		l.wg.Wait()
		l.pool.Close()
	})
}

// bounded applies QueryTimeout and the end of the log.
func (l *Log) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.QueryTimeout)
	unhook := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { unhook(); cancel() }
}

// server says which run of which server a connection leads to.
type server struct {
	id      string // the system identifier, "" if the role may not ask
	started time.Time
}

const serverOf = "emitd.server"

// identify notes the server on a new connection.
func identify(ctx context.Context, conn *pgx.Conn) error {
	var s server
	var may bool
	err := conn.QueryRow(ctx, "select pg_postmaster_start_time(), has_function_privilege('pg_control_system()', 'execute')").Scan(&s.started, &may)
	if err == nil && may {
		err = conn.QueryRow(ctx, "select system_identifier::text from pg_control_system()").Scan(&s.id)
	}
	conn.PgConn().CustomData()[serverOf] = s
	return err
}

func serverBehind(conn *pgxpool.Conn) server {
	s, _ := conn.Conn().PgConn().CustomData()[serverOf].(server)
	return s
}

// acquire takes a connection and says clearly why there is none.
func (l *Log) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	if l.ctx.Err() != nil {
		return nil, errClosed
	}
	conn, err := l.pool.Acquire(ctx)
	if err != nil && l.ctx.Err() != nil {
		return nil, errClosed
	}
	if errors.Is(err, context.DeadlineExceeded) {
		if stat := l.pool.Stat(); stat.AcquiredConns() == stat.MaxConns() {
			return nil, fmt.Errorf("all %d connections were busy: raise the outbox's max connections: %w", stat.MaxConns(), err)
		}
	}
	return conn, err
}

// query runs the statements of one call. The first error sticks: later statements do nothing and find
// nothing, so that what decides reads like the decision. Whoever began looks at err at the end.
type query struct {
	n  names
	on interface { // a connection or a transaction
		querier
	}
	ctx context.Context
	err error
}

// exec returns how many rows were changed.
func (q *query) exec(text string, args ...any) int64 {
	if q.err != nil {
		return 0
	}
	rows, err := q.on.Query(q.ctx, q.n.q(text), args...)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if q.err = err; err != nil {
		return 0
	}
	return rows.CommandTag().RowsAffected()
}

// one reads one row and reports whether there is one.
func (q *query) one(text string, args []any, dest ...any) (found bool) {
	q.each(text, args, func(row pgx.Rows) error {
		if found {
			return nil
		}
		found = true
		return row.Scan(dest...)
	})
	return found && q.err == nil
}

// number reads one number; 0 where there is none.
func (q *query) number(text string, args ...any) (n int64) {
	var found *int64
	if q.one(text, args, &found) && found != nil {
		n = *found
	}
	return n
}

// each reads rows until take fails.
func (q *query) each(text string, args []any, take func(row pgx.Rows) error) {
	if q.err != nil {
		return
	}
	rows, err := q.on.Query(q.ctx, q.n.q(text), args...)
	if err != nil {
		q.err = err
		return
	}
	defer rows.Close()
	for rows.Next() {
		if q.err = take(rows); q.err != nil {
			return
		}
	}
	q.err = rows.Err()
}

// write runs fn in one transaction. An error of fn, or of a statement, changes nothing; one of the
// commit leaves open whether it has. at is the server that it must be, if that is known.
func (l *Log) write(ctx context.Context, at *server, fn func(*query) error) error {
	conn, err := l.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if at != nil && *at != serverBehind(conn) {
		return errServer
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		q := &query{n: l.names, on: tx, ctx: ctx}
		if err := fn(q); err != nil {
			return errors.Join(err, q.err)
		}
		return q.err
	})
}

// read runs fn on a connection, each statement by itself.
func (l *Log) read(ctx context.Context, at *server, fn func(*query) error) error {
	conn, err := l.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if at != nil && *at != serverBehind(conn) {
		return errServer
	}
	q := &query{n: l.names, on: conn, ctx: ctx}
	if err := fn(q); err != nil {
		return errors.Join(err, q.err)
	}
	return q.err
}
