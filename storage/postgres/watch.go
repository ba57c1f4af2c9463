package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/pgschema"
	"github.com/emitd/emitd/storage"
)

// reconnects are the pauses before the connection that listens is made again.
var reconnects = backoff.Policy{First: 100 * time.Millisecond, Limit: 5 * time.Second}

// ErrNoNotifications says that LISTEN is accepted but notifications do not arrive. The cause is a pooler that
// hands connections around, such as PgBouncer in transaction mode.
var ErrNoNotifications = errors.New("notifications do not arrive")

// Watch implements [storage.Watcher]. One connection listens for all callers of Watch, so thousands
// of nodes in one process need no more. It sends no statements while all is well. Where
// notifications do not arrive, because a pooler hands connections around, the store logs that once
// and probes again each minute. wake is called on a goroutine of the store and must not block.
func (s *Store) Watch(ctx context.Context, wake func(storage.WakeUp)) error {
	defer s.watchers.join(wake, s.listenLoop)()
	<-ctx.Done()
	return ctx.Err()
}

// watchers is the callers of Watch. While there is one, one goroutine listens for all. The last one
// to leave ends that goroutine and waits for its end.
type watchers struct {
	mu     sync.Mutex
	lastID int
	wakes  map[int]func(storage.WakeUp)
	end    func()
}

// join adds a caller and returns the function that removes it. A caller that joins later gets a
// wake-up at once, because it has missed the earlier ones.
func (a *watchers) join(wake func(storage.WakeUp), hear func(context.Context)) (leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.wakes) > 0 {
		wake(storage.WakeUp{Leader: true})
	} else {
		a.wakes = map[int]func(storage.WakeUp){}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		a.end = func() { cancel(); <-done }
		go func() { defer close(done); hear(ctx) }()
	}
	a.lastID++
	seat := a.lastID
	a.wakes[seat] = wake
	return func() { a.leave(seat) }
}

func (a *watchers) leave(seat int) {
	a.mu.Lock()
	delete(a.wakes, seat)
	end := a.end
	last := len(a.wakes) == 0
	a.mu.Unlock()
	if last {
		end()
	}
}

// broadcast passes a wake-up on to all callers of Watch.
func (a *watchers) broadcast(w storage.WakeUp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, wake := range a.wakes {
		wake(w)
	}
}

// listenLoop listens until ctx ends, and reconnects for that as often as needed.
func (s *Store) listenLoop(ctx context.Context) {
	if s.cfg.Notify == NotifyPoll {
		return
	}
	failures, deaf := 0, 0
	for {
		listened, err := s.listen(ctx)
		switch {
		case ctx.Err() != nil, s.calls.Err() != nil:
			return
		case errors.Is(err, ErrNoNotifications):
			deaf++
		}
		if deaf == 2 && !s.notifyOff.Swap(true) {
			s.cfg.Logger.Warn("notifications do not arrive, so changes are found at the next heartbeat: "+
				"a transaction pooler may stand before the database: use a direct connection for the store, or set store.notify: poll to keep the pooler",
				"channel", s.cfg.names().channel())
		}
		if listened {
			failures, deaf = 0, 0
		} else {
			failures++
		}
		wait := reconnects.Jittered(failures + 1)
		if s.notifyOff.Load() {
			wait = s.probeAgain
		}
		s.cfg.Logger.Debug("the connection for notifications ended; connecting again", "after", wait, "error", s.fail("watch", err))
		select {
		case <-ctx.Done():
		case <-s.calls.Done():
		case <-time.After(wait):
		}
	}
}

// listen connects, checks that notifications arrive, and passes them on until the connection ends.
// It first sends one wake-up to everybody, which covers what happened while no connection listened.
func (s *Store) listen(ctx context.Context) (listened bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.calls, cancel)()
	conn, err := s.connectListener(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		over, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(over)
	}()
	if err := s.probe(ctx, conn); err != nil {
		return false, err
	}
	if s.notifyOff.Swap(false) {
		s.cfg.Logger.Info("notifications arrive again")
	}
	s.watchers.broadcast(storage.WakeUp{Leader: true})
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, err
		}
		s.watchers.broadcast(parseWake(n.Payload))
	}
}

// CheckNotifications reports whether Watch would receive wake-ups: nil if a notification arrives, [ErrNoNotifications] if
// none does.
func (s *Store) CheckNotifications(ctx context.Context) error {
	conn, err := s.connectListener(ctx)
	if err != nil {
		return s.fail("listen for notifications", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := s.probe(ctx, conn); errors.Is(err, ErrNoNotifications) {
		return fmt.Errorf("listen for notifications: %w", err)
	} else if err != nil {
		return s.fail("listen for notifications", err)
	}
	return nil
}

// parseWake reads a wake-up. One that it cannot parse becomes a wake-up for everybody.
func parseWake(payload string) storage.WakeUp {
	var w storage.WakeUp
	if err := json.Unmarshal([]byte(payload), &w); err != nil {
		return storage.WakeUp{Leader: true}
	}
	return w
}

// connectListener makes the connection that listens.
func (s *Store) connectListener(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	cfg := s.pool.Config().ConnConfig
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{s.cfg.names().channel()}.Sanitize()); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// probe sends a notification to this connection alone, from another one, and waits for it. A pooler
// accepts LISTEN and forgets it, and nothing else would show that.
func (s *Store) probe(ctx context.Context, conn *pgx.Conn) error {
	channel := "emitd_probe_" + uuid.NewString()
	bounded, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	if _, err := conn.Exec(bounded, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	if err := s.call(ctx, "probe", writing, func(m *message) { m.set("select pg_notify(" + pgschema.Literal(channel) + ", '')") }); err != nil {
		return err
	}
	// A busy server may take long for the statements. Their time does not count here: once they are
	// done, the notification has been sent. It may be late itself on a busy machine. Whoever waits too short a time
	// does without wake-ups.
	arrival, cancel := context.WithTimeout(ctx, s.arrival)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(arrival)
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%w: %w", ErrNoNotifications, err)
		}
		if err != nil {
			return err
		}
		if n.Channel == channel {
			break
		}
	}
	_, err := conn.Exec(arrival, "unlisten "+pgx.Identifier{channel}.Sanitize())
	return err
}
