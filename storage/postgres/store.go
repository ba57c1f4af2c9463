package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/storage"
)

// Store is a cluster store in a Postgres schema. Its methods may be called from any goroutine.
type Store struct {
	cfg         Config
	sql         statements
	pool        *pgxpool.Pool
	instruments *instruments

	adverts      sync.Map // hash → *daemon.Advert, never written to
	systems      sync.Map // start time of a server process → its system identifier
	seen         atomic.Pointer[heads]
	known        sync.Map // incarnation → known: what its newest reply said
	answered     sync.Map // incarnation → answered: the newest heartbeat that was
	unanswered   sync.Map // incarnation → true, of processes whose registration was sent and not answered
	units        atomic.Pointer[knownUnits]
	loading      loading
	limits       rankLimits    // bound the connections that calls use at a time
	grace        time.Duration // how long after the end of its call an answer is still waited for
	stamps       stamps
	lists        memberLists
	memberEvents memberEvents
	traits       traitsCache
	briefWaiters chan struct{} // semaphore of short attempts to stamp; see stampWithRetry
	lockWaiters  chan struct{} // semaphore of long attempts to stamp
	notifyOff    atomic.Bool   // notifications do not arrive, or Config.Notify is poll
	arrival      time.Duration // how long the notification of a probe may take
	probeAgain   time.Duration // how often it is probed whether notifications arrive, while they do not
	watchers     watchers
	isolates     atomic.Bool // the server's default isolation level is not read committed, so each heartbeat sets it

	calls    context.Context // ends when Close begins
	endCalls context.CancelFunc
	life     context.Context // ends when connections are cut
	cut      context.CancelFunc
	own      sync.WaitGroup // goroutines that send batches of stamps
	broken   sync.WaitGroup // broken connections that end outside the pool
	nBroken  atomic.Int32
	close    sync.Once
}

var (
	_ storage.Store   = (*Store)(nil)
	_ storage.Watcher = (*Store)(nil)
	_ storage.Locker  = (*Store)(nil)
	_ storage.Sweeper = (*Store)(nil)
	_ storage.Renamer = (*Store)(nil)
	_ storage.Capable = (*Store)(nil)
)

func newStore(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, sql: cfg.names().compile(), loading: loading{busy: make(chan struct{}, 1), size: unitsPage}}
	s.limits, s.grace = newRankLimits(cfg.MaxConns), graceOf(cfg.QueryTimeout)
	s.briefWaiters, s.lockWaiters = make(chan struct{}, cfg.MaxConns/4), make(chan struct{}, cfg.MaxConns/4)
	s.calls, s.endCalls = context.WithCancel(context.Background())
	s.life, s.cut = context.WithCancel(context.Background())
	s.notifyOff.Store(cfg.Notify == NotifyPoll)
	s.arrival, s.probeAgain = max(cfg.QueryTimeout, 5*time.Second), time.Minute
	var err error
	if s.instruments, err = newInstruments(); err != nil {
		return nil, err
	}
	pool, err := cfg.pool(s.dial)
	if err != nil {
		return nil, err
	}
	pool.ConnConfig.BuildContextWatcherHandler = s.newContextWatcher
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), pool); err != nil {
		return nil, errors.New(pgerror.Redact(err.Error(), cfg.URL))
	}
	return s, nil
}

// dial connects unless the store is closed. Closing the store also closes the connection.
func (s *Store) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &storeConn{Conn: conn, stop: context.AfterFunc(s.life, func() { conn.Close() })}, nil
}

// storeConn is a connection that ends with the store.
type storeConn struct {
	net.Conn
	stop func() bool
}

// Close closes the connection, and removes it from those that the store closes.
func (c *storeConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// Close ends all calls and connections and waits for them.
func (s *Store) Close() {
	s.close.Do(func() {
		s.endCalls()
		s.stamps.end()
		s.lists.end()
		s.own.Wait()
		s.pool.Close()
		s.cut()
		s.broken.Wait()
	})
}

// Capabilities implements [storage.Capable].
func (s *Store) Capabilities() storage.Capabilities {
	return storage.Capabilities{NoWakeUps: s.notifyOff.Load()}
}

// call sends statements as one message, which is one transaction: the server executes it entirely
// or not at all. A process that is stopped in the middle of sending leaves nothing behind, not even
// a lock. Errors come back untranslated.
func (s *Store) call(ctx context.Context, op, isolation string, fill func(*message)) error {
	return s.callWithin(ctx, op, isolation, 0, fill)
}

// callWithin is call with a bound on each wait for a lock; 0 = as long as the call may take.
func (s *Store) callWithin(ctx context.Context, op, isolation string, lock time.Duration, fill func(*message)) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	defer context.AfterFunc(s.calls, cancel)()
	began := time.Now()
	defer func() { s.instruments.record(op, time.Since(began), err) }()

	conn, leave, err := s.enter(ctx, op)
	if err != nil {
		return err
	}
	defer leave()
	left := s.cfg.QueryTimeout
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	m := &message{statements: s.sql}
	m.begin(conn.Conn().PgConn(), isolation, left, min(lock, left))
	fill(m)
	err = m.send(context.WithValue(ctx, callKey{}, true), conn.Conn())
	if err != nil && isReadOnlyServer(err) {
		s.pool.Reset()
	}
	return err
}

// errClosed says that Close was called.
var errClosed = errors.New("the store is closed")

// maxBroken bounds the broken connections that end outside the pool.
const maxBroken = 16

// release gives a connection back. When a call was cut short, pgx takes up to 15 s to end its
// connection, and the connection occupies its place in the pool meanwhile. After a partition the
// pool would have no place left, although the network works again. Therefore a broken connection
// first leaves the pool.
func (s *Store) release(conn *pgxpool.Conn) {
	if !conn.Conn().IsClosed() {
		conn.Release()
		return
	}
	if s.nBroken.Add(1) > maxBroken {
		s.nBroken.Add(-1)
		conn.Release()
		return
	}
	raw := conn.Hijack().PgConn()
	s.broken.Go(func() {
		defer s.nBroken.Add(-1)
		<-raw.CleanupDone()
	})
}

// advertOf returns a parsed advert from the cache, or nil.
func (s *Store) advertOf(hash string) *daemon.Advert {
	if a, ok := s.adverts.Load(hash); ok {
		return a.(*daemon.Advert)
	}
	return nil
}
