package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rank orders calls by importance. The more important ones have connections that others cannot take.
type rank int

const (
	other    rank = iota
	joining       // registrations: they wait for each other in the server, where a few at a time are as fast as many
	progress      // calls without which a cluster stands still under load: a leader's passes, stamps, member lists. One of each at a time
	routine       // heartbeats and elections: a node without them is taken for dead
	leading       // calls without which the cluster loses its leader
)

// ranks maps the names of calls to their ranks. All names that are missing here are other.
var ranks = map[string]rank{
	"register": joining,
	"renew":    leading, "leave": leading, "identify": leading,
	"heartbeat": routine, "stand": routine, "heartbeat events": routine, "standing": routine, "register again": routine,
	// The rest of an answer, which the node needs as badly. A node that has registered is a member.
	"renew rest":     leading,
	"heartbeat rest": routine,
	"register rest":  routine, "register again rest": routine,
	"snapshot": progress, "adverts": progress, "commit": progress, "stamps": progress, "members": progress,
}

// rankLimits bound how many calls may have a connection at a time. Each rank has the places that its calls take, one of
// each, in this order. An eighth of the connections, at least one, is reserved for heartbeats against all other
// calls. At most a quarter is for registrations. With eight or more connections, another eighth is reserved for the
// leader's renewals, and a third one for progress: a thousand heartbeats that wait must not delay a leader's pass, or
// the leader gives up.
type rankLimits [leading][]*places

func newRankLimits(conns int) rankLimits {
	eighth, all := conns/8, conns-conns/8
	others, joins := &places{free: all - max(conns/4, 1), newest: true}, &places{free: max(conns/4, 1), newest: true}
	if eighth == 0 { // so few that everybody shares
		heartbeats, passes := &places{free: all}, &places{free: all - 1}
		return rankLimits{other: {others, passes, heartbeats}, joining: {joins, others, passes, heartbeats}, progress: {passes, heartbeats}, routine: {heartbeats}}
	}
	heartbeats := &places{free: all - eighth}
	return rankLimits{other: {others, heartbeats}, joining: {joins, others, heartbeats}, progress: {&places{free: eighth}}, routine: {heartbeats}}
}

// take waits until a call of rank r may have a connection, or until ctx ends.
func (t *rankLimits) take(ctx context.Context, r rank) (leave func(), err error) {
	if r == leading {
		return func() {}, nil
	}
	for i, p := range t[r] {
		if err := p.take(ctx); err != nil {
			free(t[r][:i])
			return nil, err
		}
	}
	return func() { free(t[r]) }, nil
}

// free gives back one place of each kind.
func free(taken []*places) {
	for _, p := range taken {
		p.giveBack()
	}
}

// places is a number of places, and those who wait for one. They come in turn. In a line that is longer than the time of its
// calls, each place would then go to a call whose time is nearly over, so none would succeed, and all would come again.
// With newest, the last one comes first once the first in line has lost three quarters of its time. Heartbeats always come in turn: they
// are quick, and each node needs one within its registration's TTL.
type places struct {
	mu     sync.Mutex
	free   int
	newest bool
	line   []*inLine // in order of arrival
}

// inLine is a call that waits for a place.
type inLine struct {
	granted chan struct{} // closed when it has one
	late    time.Time     // when three quarters of its time are over
}

// take waits for a place until ctx ends.
func (p *places) take(ctx context.Context) error {
	w := p.join(ctx)
	if w == nil {
		return nil
	}
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	if !p.leave(w) {
		p.giveBack() // it was given a place at the same moment
	}
	return ctx.Err()
}

// join takes a free place and returns nil, or joins the line.
func (p *places) join(ctx context.Context) *inLine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free > 0 {
		p.free--
		return nil
	}
	w := &inLine{granted: make(chan struct{})}
	if deadline, ok := ctx.Deadline(); ok {
		w.late = deadline.Add(-time.Until(deadline) / 4)
	}
	p.line = append(p.line, w)
	return w
}

// leave takes a call out of the line. It reports false if the call is in it no longer.
func (p *places) leave(w *inLine) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.line, w)
	if i < 0 {
		return false
	}
	p.line = slices.Delete(p.line, i, i+1)
	return true
}

// giveBack gives a place back, or on to a call in the line.
func (p *places) giveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.line) == 0 {
		p.free++
		return
	}
	next := 0
	if late := p.line[0].late; p.newest && !late.IsZero() && time.Now().After(late) {
		next = len(p.line) - 1
	}
	close(p.line[next].granted)
	p.line = slices.Delete(p.line, next, next+1)
}

// enter waits for a connection until ctx ends; ctx must have a deadline. The caller gives the
// connection back by calling leave.
func (s *Store) enter(ctx context.Context, op string) (conn *pgxpool.Conn, leave func(), err error) {
	began := time.Now()
	giveBack, err := s.limits.take(ctx, ranks[op])
	if err != nil {
		return nil, nil, s.noConnErr(err, s.busy())
	}
	if conn, err = s.pool.Acquire(ctx); err != nil {
		giveBack()
		text := s.busy()
		if stat := s.pool.Stat(); stat.ConstructingConns() > 0 || stat.AcquiredConns()+stat.IdleConns() == 0 {
			text = "cannot reach the database: no connection could be made in time"
		}
		return nil, nil, s.noConnErr(err, text)
	}
	leave = func() { s.release(conn); giveBack() }
	deadline, _ := ctx.Deadline()
	if tooLate(time.Until(deadline), deadline.Sub(began)) {
		leave()
		return nil, nil, s.noConnErr(context.DeadlineExceeded, s.busy())
	}
	return conn, leave, nil
}

// tooLate reports whether too little of a call's time is left to be worth the server's work. Calls
// that wait in a long line get their connections late. If all were begun nevertheless, all would
// end too late.
func tooLate(left, total time.Duration) bool { return left < total/5 }

func (s *Store) busy() string {
	return fmt.Sprintf("all %d connections were busy: raise store.max_connections", s.cfg.MaxConns)
}

// noConnErr returns the error of a call that got no connection. It uses text if the call's time is
// over.
func (s *Store) noConnErr(err error, text string) error {
	switch {
	case s.calls.Err() != nil:
		return errClosed
	case errors.Is(err, context.DeadlineExceeded):
		return &unavailable{text, err}
	}
	return err
}

// graceWatcher keeps a connection open when the call on it is over. The server ends a statement a moment
// before its caller gives up, so its answer is on the way. Dropping the connection instead would
// need one more connection to cancel the statement and one to replace it, at a server that is
// already slow. Other uses of a connection, such as the check whether an idle one has broken, end
// at once.
type graceWatcher struct {
	net.Conn
	calls context.Context // ends when Close begins; nothing waits from then on
	grace time.Duration
}

// callKey marks the contexts of calls, which have an answer to come.
type callKey struct{}

var _ ctxwatch.Handler = (*graceWatcher)(nil)

// graceOf is how long an answer may still arrive after its call has ended.
func graceOf(query time.Duration) time.Duration { return min(query/2, time.Second) }

// newContextWatcher makes the handler that keeps the connections of a pool open; see graceWatcher.
func (s *Store) newContextWatcher(conn *pgconn.PgConn) ctxwatch.Handler {
	return &graceWatcher{conn.Conn(), s.calls, s.grace}
}

// HandleCancel is called when the time of a call is over.
func (p *graceWatcher) HandleCancel(over context.Context) {
	end := time.Now()
	if over.Value(callKey{}) != nil && p.calls.Err() == nil {
		end = end.Add(p.grace)
	}
	_ = p.SetDeadline(end) // fails if the connection has ended
}

// HandleUnwatchAfterCancel is called when the answer arrived nevertheless.
func (p *graceWatcher) HandleUnwatchAfterCancel() { _ = p.SetDeadline(time.Time{}) }
