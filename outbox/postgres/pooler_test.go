package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/logtest"
)

// through opens a log behind a pooler, with a caller that uses the pooler too.
func (s *stage) through(t testing.TB, pooler *pgtest.PgBouncer) *world {
	t.Helper()
	cfg := s.config(t, Config{})
	cfg.URL = pooler.URL
	return openPooled(t, cfg, s.pool)
}

// openPooled is openWorld behind a pooler, where a caller must not prepare statements.
func openPooled(t testing.TB, cfg Config, owner *pgxpool.Pool) *world {
	t.Helper()
	w := openAs(t, cfg, mustPool(t, cfg.URL+"&default_query_exec_mode=cache_describe"), owner)
	if !w.pooled {
		t.Fatal("the pooler was not noticed")
	}
	return w
}

// TestConformanceThroughPooler runs the whole suite through a transaction pooler, where every transaction
// may run in another session. Only wake-ups are missing. Callers keep many transactions open, so they
// connect directly.
func TestConformanceThroughPooler(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pooler := pgtest.NewPgBouncer(t, s.user)
	logtest.Run(t, func(t testing.TB) logtest.Backend {
		w := s.through(t, pooler)
		app := mustPool(t, s.user)
		return logtest.Backend{
			Log: w.Log, Operator: w.Log, Concurrent: true,
			Begin: func(ctx context.Context) (logtest.Tx, error) {
				plain, err := app.Begin(ctx)
				if err != nil {
					return nil, err
				}
				return tx{w.pub.Wrap(plain), w.pub}, nil
			},
		}
	})
}

// TestPoolerIsNoticed checks that a pooler is detected if it refuses a connection's parameters, if it
// ignores them, and if only the URL says so; a server must not be taken for a pooler.
func TestPoolerIsNoticed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var ignored []string
	for name := range (Config{}).settings() {
		ignored = append(ignored, name)
	}
	ignore := "ignore_startup_parameters = default_transaction_isolation, default_transaction_read_only, " + strings.Join(ignored, ", ")
	for _, c := range []struct {
		name, url string
		want      bool
	}{
		{"server", s.user, false},
		{"refuses", pgtest.NewPgBouncer(t, s.user).URL, true},
		{"ignores", pgtest.NewPgBouncer(t, s.user, ignore).URL, true},
		{"hands out sessions", pgtest.NewPgBouncer(t, s.user, ignore, "pool_mode = session").URL, true},
		{"the URL says so", s.user + "&default_query_exec_mode=exec", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := s.config(t, Config{})
			cfg.URL = c.url
			w := s.open(t, cfg)
			if w.pooled != c.want {
				t.Errorf("a pooler is noticed: %v", w.pooled)
			}
			for name, want := range w.cfg.settings() {
				var got string
				ok(t, w.read(t.Context(), nil, func(q *query) error {
					q.one("select setting from pg_settings where name = $1", []any{name}, &got)
					return nil
				}))
				if got != want {
					t.Errorf("%s is %s, want %s", name, got, want)
				}
			}
			if got := drain(t, w.claim("s", 1)); len(got) != 0 {
				t.Errorf("an empty log has %v", got)
			}
		})
	}
}

// TestPooledSessionsAreClean checks that a log leaves nothing in the sessions that other clients get.
func TestPooledSessionsAreClean(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, silent := s.through(t, pgtest.NewPgBouncer(t, s.user, "default_pool_size = 1")), false
	w.publish(text("a", "1"))
	c := w.claim("s", 1)
	drain(t, c)
	if _, err := c.Promote(t.Context(), 1); err != nil {
		t.Error(err)
	}
	err := w.write(t.Context(), nil, func(q *query) error { q.exec("select 1 / $1::int", 0); return nil })
	if pgerror.Code(err) != "22012" {
		t.Errorf("a transaction that fails: %v", err)
	}
	if _, err := w.Stats(t.Context(), "s"); err != nil {
		t.Error(err)
	}
	w.WakeUps(t.Context())
	w.listen.Do(func() { silent = true })
	if !silent {
		t.Error("it listens with a session that others get")
	}
	w.owner = w.app // its session is that of the log, because there is only one
	for name := range w.cfg.settings() {
		if value[string](w, "select source from pg_settings where name = $1", name) == "session" {
			t.Errorf("%s is left in the session", name)
		}
	}
	if n := value[int](w, "select count(*) from pg_prepared_statements"); n != 0 {
		t.Errorf("%d statements are left in the session", n)
	}
}

// TestRelayThroughPooler checks that a relay behind a pooler delivers, in order, what callers publish
// through it, even if the pooler is killed and started again meanwhile.
func TestRelayThroughPooler(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pooler := pgtest.NewPgBouncer(t, s.user)
	w := s.through(t, pooler)
	var mu sync.Mutex
	got := map[string][]string{} // first deliveries
	seen := map[string]bool{}
	delivered := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
	stop := w.relay(t, outbox.Config{MaxPoll: 20 * time.Millisecond, PageRows: 7, Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range d.Rows {
			if p := string(r.Payload); !seen[p] {
				seen[p] = true
				got[r.Key] = append(got[r.Key], p)
			}
		}
		return nil
	})})
	const keys, each = 4, 15
	want := map[string][]string{}
	n := 0
	for round := range 3 {
		for i := range each {
			for k := range keys {
				key := fmt.Sprint("k", k)
				payload := fmt.Sprintf("%s/%d/%02d", key, round, i)
				eventually(t, "callers can publish", func() bool {
					return w.pub.InTx(t.Context(), w.app, func(tx *Tx) error { return w.pub.Publish(t.Context(), tx, text(key, payload)) }) == nil
				})
				want[key] = append(want[key], payload)
				n++
			}
			if round > 0 && i == each/2 {
				pooler.Restart(t)
			}
		}
		eventually(t, "everything is delivered", func() bool { return delivered() >= n })
	}
	stop()
	mu.Lock()
	defer mu.Unlock()
	for key, all := range want {
		if !slices.Equal(got[key], all) {
			t.Errorf("key %s: got %v", key, got[key])
		}
	}
}

// TestFenceThroughPooler checks that a claim through a pooler fences the earlier one, with or without a
// restart of the pooler in between. The earlier one must neither read nor write, and the new one must
// read everything.
func TestFenceThroughPooler(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart=", restart), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			pooler := pgtest.NewPgBouncer(t, s.user)
			w := s.through(t, pooler)
			other := openPooled(t, w.cfg, s.pool)
			w.publish(text("a", "1"), text("a", "2"))
			old := w.claim("s", 1)
			p, err := old.Next(t.Context(), outbox.Limit{Rows: 1})
			ok(t, err)
			if restart {
				pooler.Restart(t)
			}
			var fresh *cursor
			eventually(t, "the shards are claimed", func() bool {
				c, err := other.Claim(t.Context(), outbox.ClaimRequest{Subscription: "s", Instances: 1, Epoch: 2})
				fresh, _ = c.(*cursor)
				return err == nil
			})
			defer fresh.Close()
			// Its connections may have ended with the pooler; in the end it must get the refusal.
			eventually(t, "the deposed relay hears of it", func() bool {
				err := old.Advance(t.Context(), p.Mark, nil)
				if err == nil {
					t.Fatal("a deposed relay has stored a position")
				}
				return errors.Is(err, outbox.ErrFenced)
			})
			eventually(t, "the deposed relay reads no more", func() bool {
				_, err := w.claimed(old).Next(t.Context(), outbox.Limit{})
				return errors.Is(err, outbox.ErrFenced)
			})
			if got := drain(t, fresh); !slices.Equal(got, []string{"1", "2"}) {
				t.Errorf("the new one got %v", got)
			}
		})
	}
}

// claimed returns a cursor as it was when it was claimed: nothing read ahead and no connection error.
func (w *world) claimed(c *cursor) *cursor {
	again := &cursor{log: w.Log, claim: c.claim, Range: c.Range, server: c.server, newestFloor: c.floorOfWrites(), rows: slices.Clone(c.rows)}
	again.begin()
	w.t.Cleanup(again.Close)
	return again
}

// TestServerRestartsBehindPooler restarts the server behind a pooler, which keeps the relay's connections
// and gives them sessions of the new run. A cursor of the old run must be refused, and read again.
func TestServerRestartsBehindPooler(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := mustServer(t)
	_, err := Migrate(ctx, Config{URL: server.URL("postgres")}, Version)
	ok(t, err)
	pooler := pgtest.NewPgBouncer(t, server.URL("postgres"))
	w := openPooled(t, Config{URL: pooler.URL, MaxConns: 2}, mustPool(t, server.URL("postgres")))
	c := w.claim("s", 1)
	w.publish(text("a", "1"))
	p, err := c.Next(ctx, outbox.Limit{})
	ok(t, err)
	ok(t, server.Restart(pgtest.Immediate))
	eventually(t, "the log is there again", func() bool {
		_, err := w.Stats(ctx, "s")
		return err == nil
	})
	if err := c.Advance(ctx, p.Mark, nil); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("a cursor of another run: %v", err)
	}
	if err := c.Advance(ctx, p.Mark, []outbox.Outcome{{Row: p.Rows[0], Kind: outbox.Waiting}}); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("a cursor of another run, with outcomes: %v", err)
	}
	if _, err := c.Next(ctx, outbox.Limit{}); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("a cursor of another run reads: %v", err)
	}
	again := w.claimed(c)
	again.reader.polledAt = time.Now()
	if err := again.reader.readNext(); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("a flight of another run reads: %v", err)
	}
	if got := drain(t, w.claim("s", 1)); !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %v", got)
	}
}
