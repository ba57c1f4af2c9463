package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/storage"
)

// reconnect bounds the back-off of the connection that listens.
const reconnectFirst, reconnectCap = 100 * time.Millisecond, 5 * time.Second

// errDeaf says that notifications are accepted and do not arrive.
var errDeaf = errors.New("notifications do not arrive")

// Watch implements [storage.Waker]: one connection of its own that listens and says nothing while
// all is well. Where notifications do not arrive, which a pooler that hands connections around
// makes so, Watch says it once and from then on only waits for ctx.
func (s *Store) Watch(ctx context.Context, wake func(storage.Wake)) error {
	if s.silent.Load() {
		return s.waitFor(ctx)
	}
	wait, deaf := reconnectFirst, 0
	for {
		listened, err := s.listen(ctx, wake)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case s.calls.Err() != nil:
			return s.waitFor(ctx)
		case errors.Is(err, errDeaf):
			deaf++
		}
		if deaf == 2 {
			s.silent.Store(true)
			s.cfg.Logger.Warn("notifications do not arrive, changes are found at the next heartbeat: "+
				"is there a transaction pooler before the database? give coordination a direct connection, or set store.notify: poll to keep it so",
				"channel", s.cfg.names().channel())
			return s.waitFor(ctx)
		}
		if listened {
			wait = reconnectFirst
		} else {
			wait = min(2*wait, reconnectCap)
		}
		s.cfg.Logger.Debug("the connection for notifications ended, connecting again", "after", wait, "error", s.fail("watch", err))
		select {
		case <-ctx.Done():
		case <-s.calls.Done():
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
	}
}

// waitFor is a watch that hears nothing.
func (s *Store) waitFor(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// listen connects, makes sure that notifications arrive, and passes them on until the connection
// ends. Whatever happened while nobody listened is covered by one hint for everybody.
func (s *Store) listen(ctx context.Context, wake func(storage.Wake)) (listened bool, err error) {
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
	wake(storage.Wake{Leader: true})
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, err
		}
		wake(parseWake(n.Payload))
	}
}

// parseWake reads a hint; what is not understood is one for everybody.
func parseWake(payload string) storage.Wake {
	var w storage.Wake
	if err := json.Unmarshal([]byte(payload), &w); err != nil {
		return storage.Wake{Leader: true}
	}
	return w
}

// connectListener makes the connection and listens.
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

// probe sends a notification to this connection alone, from another one, and waits for it. A
// pooler accepts LISTEN and forgets it: nothing else would show that.
func (s *Store) probe(ctx context.Context, conn *pgx.Conn) error {
	channel := "emitd_probe_" + uuid.NewString()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	if err := s.call(ctx, "probe", writing, func(m *message) { m.set("select pg_notify(" + literal(channel) + ", '')") }); err != nil {
		return err
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%w: %w", errDeaf, err)
		}
		if err != nil {
			return err
		}
		if n.Channel == channel {
			break
		}
	}
	_, err := conn.Exec(ctx, "unlisten "+pgx.Identifier{channel}.Sanitize())
	return err
}
