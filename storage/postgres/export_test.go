package postgres

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// fake replaces the server's clock and identity by SQL expressions.
func fake(clock, id string) *strings.Replacer {
	return strings.NewReplacer("clock_timestamp()", clock, "(pg_control_system()).system_identifier", id, "pg_postmaster_start_time()", id)
}

// FakeServer makes a store ask SQL expressions instead of the server's clock and identity. The
// function of heartbeats is the schema's: see [FakeFunction].
func (s *Store) FakeServer(clock, id string) {
	for name, text := range s.sql {
		s.sql[name] = cut(fake(clock, id).Replace(text.String()))
	}
}

// FakeFunction is the definition of a function of heartbeats that asks the expressions.
func FakeFunction(cfg Config, clock, id string) string {
	return fake(clock, id).Replace(cfg.names().include("001_heartbeat"))
}

// Slow makes heartbeats go without the function.
func (s *Store) Slow() { s.quick.Store(false) }

// Quick reports whether heartbeats use the function.
func (s *Store) Quick() bool { return s.quick.Load() }

// ParseTime reads a timestamptz.
func ParseTime(text string) (time.Time, error) { return parseTime([]byte(text)) }

// Patient makes calls that were given up wait long for their answers, on new connections.
func (s *Store) Patient() {
	s.grace = time.Minute
	s.pool.Reset()
}

// Connections counts those that were ever made for calls.
func (s *Store) Connections() int64 { return s.pool.Stat().NewConnsCount() }

// CheckIdle looks whether an idle connection has broken, as the pool does before it hands one out.
// The connection is one of those whose calls have a minute of grace.
func (s *Store) CheckIdle(ctx context.Context) error {
	s.grace = time.Minute
	s.pool.Reset()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	check := s.pool.Config().ShouldPing
	if check(ctx, pgxpool.ShouldPingParams{Conn: conn.Conn(), IdleDuration: time.Hour}) {
		return errors.New("the connection is said to be broken")
	}
	return nil
}

// Hopeless is what it is called in the package.
func Hopeless(left, total time.Duration) bool { return hopeless(left, total) }

// StampsWaiting counts the stamps that no call has taken along.
func (s *Store) StampsWaiting() int {
	s.stamps.mu.Lock()
	defer s.stamps.mu.Unlock()
	return len(s.stamps.waiting)
}

// StampsTravel reports whether a call with stamps is under way.
func (s *Store) StampsTravel() bool {
	s.stamps.mu.Lock()
	defer s.stamps.mu.Unlock()
	return s.stamps.sending
}

// StampBatch stamps in one call and returns what the fences hold.
func (s *Store) StampBatch(fences ...daemon.Fence) []int64 {
	batch, held := make([]*wanted, len(fences)), make([]int64, len(fences))
	for i, f := range fences {
		batch[i] = &wanted{fence: f, done: make(chan struct{})}
	}
	s.sendBatch(batch)
	for i, w := range batch {
		if held[i] = w.held; w.err != nil {
			panic(w.err)
		}
	}
	return held
}

// ParseWake is what it is called in the package.
func ParseWake(payload string) storage.Wake { return parseWake(payload) }
