package sink_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/postgres"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// conflicts counts deadlocks and serialization failures of a pool's transactions.
type conflicts struct{ atomic.Int64 }

// watched opens a sink whose conflicts are counted.
func (d *database) watched(t *testing.T, cfg postgres.Config, n *conflicts) *postgres.Sink {
	t.Helper()
	pc, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		t.Fatal(err)
	}
	pc.MaxConns = 8
	pc.ConnConfig.OnPgError = func(_ *pgconn.PgConn, e *pgconn.PgError) bool {
		if strings.HasPrefix(e.Code, "40") {
			n.Add(1)
		}
		return e.Severity != "FATAL"
	}
	if cfg.Pool, err = pgxpool.NewWithConfig(t.Context(), pc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cfg.Pool.Close)
	s, err := postgres.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// set changes a setting for all later connections.
func (d *database) set(t *testing.T, setting string) {
	t.Helper()
	d.exec(t, fmt.Sprintf("do $$ begin execute format('alter database %%I set %s', current_database()); end $$", setting))
}

// TestPostgresDeliveriesRaise checks that deliveries of a relay that has not called Fence raise the epoch at the
// same time without a deadlock. All of them have compared epochs when the first one raises.
func TestPostgresDeliveriesRaise(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, `create function together() returns trigger language plpgsql as $$ begin
		perform pg_advisory_xact_lock_shared(4711); return null; end $$;
		create trigger together before insert on emitd_sink.fence for each statement execute function together()`)
	var n conflicts
	s := d.watched(t, postgres.Config{}, &n)
	const workers = 6
	for epoch := int64(5); epoch < 8; epoch++ { // no rows of the fence at first, then rows with a lower epoch
		holder, err := d.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := holder.Exec(t.Context(), "select pg_advisory_xact_lock(4711)"); err != nil {
			t.Fatal(err)
		}
		results := make(chan []error, workers)
		for range workers {
			go func() { results <- deliver(t, s, "0-63", epoch, sinktest.Rows("orders", 50, 20)) }()
		}
		d.waiting(t, workers)
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range workers {
			all(t, <-results, nil)
		}
	}
	if n.Load() > 0 {
		t.Errorf("%d deadlocks of deliveries that raise the fence", n.Load())
	}
}

// TestPostgresConflictsDoNotRecur lets the workers of two subscriptions update the same rows in any order. Their
// first transactions are in conflict. All deliveries succeed, and later ones are in no conflict.
func TestPostgresConflictsDoNotRecur(t *testing.T) {
	t.Parallel()
	for name, setting := range map[string]string{
		"deadlocks":              "deadlock_timeout = ''20ms''",
		"serialization failures": "default_transaction_isolation = ''repeatable read''",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			d.set(t, setting)
			d.exec(t, "create table tally (key text primary key, n int not null); insert into tally select 'key-' || i, 0 from generate_series(0, 19) i")
			cfg := postgres.Config{Statement: "update tally set n = n + 1 where key = @key and @id::uuid is not null"}
			const workers, deliveries, size = 3, 20, 40
			var n conflicts
			var working sync.WaitGroup
			for _, subscription := range []string{"billing", "mail"} {
				s := d.watched(t, cfg, &n)
				if err := s.Fence(t.Context(), subscription, "0-63", 5); err != nil {
					t.Fatal(err)
				}
				for w := range workers {
					working.Go(func() {
						for range deliveries {
							rows := sinktest.Rows("orders", size, 20)
							rows = append(rows[w*7:], rows[:w*7]...) // another order than the other workers
							errs := s.Deliver(t.Context(), outbox.Delivery{Subscription: subscription, Range: "0-63", Epoch: 5, Rows: rows})
							if err := errors.Join(errs...); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			working.Wait()
			if got := n.Load(); got == 0 || got > 2*workers {
				t.Errorf("%d conflicts, want some, and none of a worker after its first", got)
			}
			var sum int
			if err := d.pool.QueryRow(t.Context(), "select sum(n) from tally").Scan(&sum); err != nil {
				t.Fatal(err)
			}
			if want := 2 * workers * deliveries * size * 9 / 10; sum != want { // each tenth row has no key
				t.Errorf("%d updates, want %d", sum, want)
			}
		})
	}
}

// TestPostgresConflictsWithOthers checks that a transaction is repeated for as long as it is in conflict with
// writers that the sink does not know, within its timeout, and that no other delivery that hangs prevents this.
func TestPostgresConflictsWithOthers(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, `create sequence tries; create function contended(till bigint) returns void language plpgsql as $$ begin
		if nextval('tries') < till then raise exception 'could not serialize access' using errcode = '40001'; end if; end $$`)
	hanging, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hanging.Rollback(t.Context()) }()
	if _, err := hanging.Exec(t.Context(), "lock table emitd_sink.fence in row share mode"); err != nil {
		t.Fatal(err)
	}
	var n conflicts
	s := d.watched(t, postgres.Config{Statement: "select contended(4) where @id::uuid is not null"}, &n)
	all(t, deliver(t, s, "0-63", 5, sinktest.Rows("orders", 1, 1)), nil)
	if n.Load() != 3 {
		t.Errorf("%d conflicts, want 3", n.Load())
	}
	if err := hanging.Rollback(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		t.Fatal(err)
	}

	s = d.watched(t, postgres.Config{Statement: "select contended(1000000) where @id::uuid is not null", Timeout: 2 * time.Second}, &n)
	for _, err := range deliver(t, s, "0-63", 5, sinktest.Rows("orders", 2, 2)) {
		if err == nil || errors.Is(err, outbox.ErrPermanent) || errors.Is(err, outbox.ErrSinkDown) || !strings.Contains(err.Error(), "40001") {
			t.Errorf("%v, want another attempt", err)
		}
	}
}
