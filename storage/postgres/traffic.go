package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rank says whose calls a call waits for. Each lower rank has fewer of the connections at a time.
type rank int

const (
	other    rank = iota
	everyday      // what nodes trust each other by, and what belongs to it
	leading       // what the cluster's leadership hangs on
)

// ranks are those of calls by their names; all that stand not here are other.
var ranks = map[string]rank{
	"renew": leading, "leave": leading, "identify": leading,
	"heartbeat": everyday, "stand": everyday, "heartbeat events": everyday,
}

// turns bound how many calls of a rank and all below it may have a connection at a time: everyday calls
// have a quarter of the connections to themselves, those of the leader, if there are many, an eighth.
type turns [leading]chan struct{}

func newTurns(conns int) turns {
	all := conns - conns/8
	return turns{other: make(chan struct{}, all-max(conns/4, 1)), everyday: make(chan struct{}, all)}
}

// take waits for the turn of a rank until ctx ends.
func (t *turns) take(ctx context.Context, r rank) (leave func(), err error) {
	for i := r; i < leading; i++ {
		select {
		case t[i] <- struct{}{}:
		case <-ctx.Done():
			t.leave(r, i)
			return nil, ctx.Err()
		}
	}
	return func() { t.leave(r, leading) }, nil
}

// leave gives back the turns of the ranks from, …, to-1.
func (t *turns) leave(from, to rank) {
	for i := from; i < to; i++ {
		<-t[i]
	}
}

// enter waits for a connection until ctx ends, which has a deadline. What is returned with it gives
// it back.
func (s *Store) enter(ctx context.Context, op string) (conn *pgxpool.Conn, leave func(), err error) {
	began := time.Now()
	turn, err := s.turns.take(ctx, ranks[op])
	if err != nil {
		return nil, nil, s.crowded(err, s.busy())
	}
	if conn, err = s.pool.Acquire(ctx); err != nil {
		turn()
		text := s.busy()
		if stat := s.pool.Stat(); stat.ConstructingConns() > 0 || stat.AcquiredConns()+stat.IdleConns() == 0 {
			text = "cannot reach the database: no connection could be made in time"
		}
		return nil, nil, s.crowded(err, text)
	}
	leave = func() { s.release(conn); turn() }
	deadline, _ := ctx.Deadline()
	if hopeless(time.Until(deadline), deadline.Sub(began)) {
		leave()
		return nil, nil, s.crowded(context.DeadlineExceeded, s.busy())
	}
	return conn, leave, nil
}

// hopeless reports whether a call has too little of its time left to be worth a server's work. A
// crowd that waits in line is served late one by one; if all are nevertheless begun, all are late.
func hopeless(left, total time.Duration) bool { return left < total/5 }

func (s *Store) busy() string {
	return fmt.Sprintf("all %d connections were busy: raise store.max_connections", s.cfg.MaxConns)
}

// crowded says why a call got no connection; text, if its time went by.
func (s *Store) crowded(err error, text string) error {
	switch {
	case s.calls.Err() != nil:
		return errClosed
	case errors.Is(err, context.DeadlineExceeded):
		return &unavailable{text, err}
	}
	return err
}

// patient keeps a connection when the call on it is over: the server ends statements a moment before
// their callers give up, and its answer is on its way. A connection that is dropped instead takes
// another one to tell the server, and one more in its place, of a server that is late already. What
// else ends on a connection, such as the look whether an idle one has broken, ends at once.
type patient struct {
	net.Conn
	calls context.Context // ends when Close begins: then nobody waits
	grace time.Duration
}

// asking marks the contexts of calls, which have an answer to come.
type asking struct{}

var _ ctxwatch.Handler = (*patient)(nil)

// graceOf is how long an answer may still come after its call.
func graceOf(query time.Duration) time.Duration { return min(query/2, time.Second) }

// patience makes the connections of a pool patient.
func (s *Store) patience(conn *pgconn.PgConn) ctxwatch.Handler {
	return &patient{conn.Conn(), s.calls, s.grace}
}

// HandleCancel is called when the time of a call is over.
func (p *patient) HandleCancel(over context.Context) {
	end := time.Now()
	if over.Value(asking{}) != nil && p.calls.Err() == nil {
		end = end.Add(p.grace)
	}
	_ = p.SetDeadline(end) // fails if the connection has ended
}

// HandleUnwatchAfterCancel is called when the answer came nevertheless.
func (p *patient) HandleUnwatchAfterCancel() { _ = p.SetDeadline(time.Time{}) }
