package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/logtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// ok ends the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stage is a database in which each log of a test has its own schema.
type stage struct {
	url       string // of the owner
	user      string // of the role of relays, with the rights of GrantSQL
	role      string
	publisher string // role of publishers, likewise
	pool      *pgxpool.Pool
	n         atomic.Int64
}

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{url: pgtest.Database(t)}
	s.role, s.publisher = pgtest.Role(t, s.url), pgtest.Role(t, s.url)
	s.user = pgtest.WithUser(s.url, s.role, "secret")
	s.pool = mustPool(t, s.url)
	return s
}

func mustPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	ok(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func (s *stage) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// config returns the configuration of a new migrated schema, for the role that programs run as.
func (s *stage) config(t testing.TB, cfg Config) Config {
	t.Helper()
	cfg.URL, cfg.Schema = s.url, fmt.Sprintf("s%d", s.n.Add(1))
	if cfg.QueryTimeout == 0 {
		cfg.QueryTimeout = 30 * time.Second
	}
	_, err := Migrate(context.Background(), cfg, Version)
	ok(t, err)
	grants, err := GrantSQL(cfg, Roles{Relay: s.role, Publisher: s.publisher})
	ok(t, err)
	s.exec(t, grants)
	cfg.URL = s.user
	return cfg
}

// world is a log with a caller beside it.
type world struct {
	*Log
	t     testing.TB
	app   *pgxpool.Pool // publishes
	owner *pgxpool.Pool // owner of the tables
	pub   *Publisher
}

func (s *stage) world(t testing.TB, cfg Config) *world {
	t.Helper()
	return s.open(t, s.config(t, cfg))
}

func newWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	return newStage(t).world(t, cfg)
}

// open opens a log. Its messages come from the publisher's role, and the test reads its rows as the
// owner.
func (s *stage) open(t testing.TB, cfg Config) *world {
	t.Helper()
	return openAs(t, cfg, mustPool(t, pgtest.WithUser(s.url, s.publisher, "secret")), s.pool)
}

// openWorld opens a log as the owner of its tables, who also publishes.
func openWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	pool := mustPool(t, cfg.URL)
	return openAs(t, cfg, pool, pool)
}

// openAs opens a log that is closed with the test.
func openAs(t testing.TB, cfg Config, app, owner *pgxpool.Pool) *world {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l, err := Open(context.Background(), cfg)
	ok(t, err)
	t.Cleanup(l.Close)
	w := &world{Log: l, t: t, app: app, owner: owner}
	w.pub, err = New(w.app, cfg)
	ok(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		ok(t, w.pub.Close(ctx))
	})
	return w
}

// exec runs a statement as the owner; ~outbox is the table.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.owner.Exec(context.Background(), w.names.q(sql), args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// value reads one value as the owner.
func value[T any](w *world, sql string, args ...any) (v T) {
	w.t.Helper()
	if err := w.owner.QueryRow(context.Background(), w.names.q(sql), args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// publish commits messages.
func (w *world) publish(messages ...outbox.Message) {
	w.t.Helper()
	ok(w.t, w.pub.InTx(context.Background(), w.app, func(tx *Tx) error {
		return w.pub.Publish(context.Background(), tx, messages...)
	}))
}

// begin begins a transaction of the publisher.
func (w *world) begin() pgx.Tx { return beginAs(w.t, w.app) }

// beginAs begins a transaction that ends with the test.
func beginAs(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(context.Background())
	ok(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// claim claims unit 0 of 1 of a subscription.
func (w *world) claim(subscription string, epoch int64) *cursor {
	w.t.Helper()
	c, err := w.Claim(context.Background(), outbox.ClaimRequest{Subscription: subscription, Instances: 1, Epoch: epoch})
	ok(w.t, err)
	w.t.Cleanup(c.Close)
	return c.(*cursor)
}

// drain reads and advances until nothing is left.
func drain(t testing.TB, c outbox.Cursor) (texts []string) {
	t.Helper()
	for {
		p, err := c.Next(context.Background(), outbox.Limit{})
		ok(t, err)
		if p.Mark != nil {
			ok(t, c.Advance(context.Background(), p.Mark, nil))
		}
		for _, r := range p.Rows {
			texts = append(texts, string(r.Payload))
		}
		if len(p.Rows) == 0 && !p.More {
			return texts
		}
	}
}

// text returns a message.
func text(key, payload string) outbox.Message {
	return outbox.Message{Topic: "t", Key: key, Payload: []byte(payload)}
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// tx is a transaction of the conformance suite.
type tx struct {
	*Tx
	p *Publisher
}

func (x tx) Publish(ctx context.Context, messages ...outbox.Message) error {
	return x.p.Publish(ctx, x.Tx, messages...)
}

// backend returns the log for the conformance suite.
func (s *stage) backend(t testing.TB) logtest.Backend {
	w := s.world(t, Config{})
	return logtest.Backend{
		Log: w.Log, Operator: w.Log, Wakes: true, Concurrent: true,
		Begin: func(ctx context.Context) (logtest.Tx, error) {
			plain, err := w.app.Begin(ctx)
			if err != nil {
				return nil, err
			}
			return tx{w.pub.Wrap(plain), w.pub}, nil
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	logtest.Run(t, s.backend)
}
