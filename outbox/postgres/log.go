package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgschema"
	"github.com/emitd/emitd/outbox"
)

// Log is the log of an outbox in a Postgres schema, for relays and operators. Its methods may be called
// from any goroutine.
type Log struct {
	cfg        Config
	names      names
	pool       *pgxpool.Pool
	pooled     bool   // there is a pooler that shares sessions,
	begin      string // and each transaction begins with this text
	listeners  wakeups
	listen     sync.Once
	ctx        context.Context // ends with Close
	stop       context.CancelFunc
	wg         sync.WaitGroup
	closing    sync.Once
	lastExtend extendTimer
}

var (
	_ outbox.Log      = (*Log)(nil)
	_ outbox.Operator = (*Log)(nil)
)

// Open opens the log in the schema of cfg.URL's database. It connects once, to check the schema: if that
// does not fit, an [outbox.ErrSchema] says what to do.
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
	l := &Log{cfg: cfg, names: cfg.names()}
	l.ctx, l.stop = context.WithCancel(context.Background())
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	if err := l.open(ctx); err != nil {
		l.stop()
		return nil, cfg.explain("open the outbox", err)
	}
	return l, nil
}

// Close ends all calls and connections, and waits until they have ended.
func (l *Log) Close() {
	l.closing.Do(func() {
		l.stop()
		l.wg.Wait()
		l.pool.Close()
	})
}

// bounded limits ctx by QueryTimeout and by the close of the log.
func (l *Log) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.QueryTimeout)
	unhook := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { unhook(); cancel() }
}

// server identifies one run of one server.
type server struct {
	id      string // the system identifier; "" if the role may not read it
	started int64
}

const serverOf = "emitd.server"

// identify stores the server's identity with a new connection. It fails with errPooled if the session
// lacks the requested settings.
func identify(ctx context.Context, conn *pgx.Conn) error {
	s, err := serverOfSession(ctx, conn)
	conn.PgConn().CustomData()[serverOf] = s
	if err != nil {
		return err
	}
	var mode string
	if err = conn.QueryRow(ctx, "select current_setting('plan_cache_mode')").Scan(&mode); err == nil && mode != generic {
		err = errPooled
	}
	return err
}

// serverOfSession returns the server that a session reaches.
func serverOfSession(ctx context.Context, conn *pgx.Conn) (s server, err error) {
	var may bool
	err = conn.QueryRow(ctx, "select "+started+", has_function_privilege('pg_control_system()', 'execute')").Scan(&s.started, &may)
	if err == nil && may {
		err = conn.QueryRow(ctx, "select system_identifier::text from pg_control_system()").Scan(&s.id)
	}
	return s, err
}

func serverBehind(conn *pgxpool.Conn) server {
	s, _ := conn.Conn().PgConn().CustomData()[serverOf].(server)
	return s
}

// acquire takes a connection from the pool. Its error says why there is none.
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
			return nil, fmt.Errorf("all %d connections were busy: raise outbox.max_connections: %w", stat.MaxConns(), err)
		}
	}
	return conn, err
}

// query runs the statements of one call. The first error is kept, and later statements do nothing and
// find nothing. So the code of a decision needs no error checks; the caller checks err at the end.
type query struct {
	n   names
	on  pgschema.Querier // a connection or a transaction
	ctx context.Context
	err error
	// wrap runs a statement in a transaction of its own. It is nil if the statement is part of a transaction
	// or needs none.
	wrap func(statement func() error) error
}

// run runs a statement and calls take for each row until take fails. A nil take reads no rows.
func (q *query) run(text string, args []any, take func(row pgx.Rows) error) (changed int64) {
	if q.err != nil {
		return 0
	}
	statement := func() error {
		rows, err := q.on.Query(q.ctx, q.n.q(text), args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for take != nil && rows.Next() {
			if err := take(rows); err != nil {
				return err
			}
		}
		rows.Close()
		changed = rows.CommandTag().RowsAffected()
		return rows.Err()
	}
	if q.wrap != nil {
		q.err = q.wrap(statement)
	} else {
		q.err = statement()
	}
	if q.err != nil {
		return 0
	}
	return changed
}

// exec returns the number of affected rows.
func (q *query) exec(text string, args ...any) int64 { return q.run(text, args, nil) }

// one reads one row and reports whether there was one.
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

// number reads one number; 0 if there is no row or the value is null.
func (q *query) number(text string, args ...any) (n int64) {
	var found *int64
	if q.one(text, args, &found) && found != nil {
		n = *found
	}
	return n
}

// each calls take for each row until take fails.
func (q *query) each(text string, args []any, take func(row pgx.Rows) error) { q.run(text, args, take) }

// write runs fn in one transaction. If fn or a statement fails, nothing is changed. After an error of the
// commit it is unknown whether the change was made. at is the required server, nil for any.
func (l *Log) write(ctx context.Context, at *server, fn func(*query) error) error {
	return l.on(ctx, at, func(conn *pgx.Conn) error {
		if l.pooled {
			return l.transact(ctx, conn, at, func() error { return (&query{n: l.names, on: conn, ctx: ctx}).do(fn) })
		}
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return (&query{n: l.names, on: tx, ctx: ctx}).do(fn) })
	})
}

// read runs fn on a connection without a transaction: each statement stands alone.
func (l *Log) read(ctx context.Context, at *server, fn func(*query) error) error {
	return l.on(ctx, at, func(conn *pgx.Conn) error {
		q := &query{n: l.names, on: conn, ctx: ctx}
		if l.pooled {
			q.wrap = func(statement func() error) error { return l.transact(ctx, conn, at, statement) }
		}
		return q.do(fn)
	})
}

// do runs fn and returns its error or that of a statement.
func (q *query) do(fn func(*query) error) error {
	if err := fn(q); err != nil {
		return errors.Join(err, q.err)
	}
	return q.err
}
