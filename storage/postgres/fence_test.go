package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

func fence(generation int64) daemon.Fence {
	return daemon.Fence{Unit: unit(0), Generation: generation}
}

func stamp(t testing.TB, store *postgres.Store, f daemon.Fence) {
	t.Helper()
	if err := store.StampFence(context.Background(), f); err != nil {
		t.Fatal(err)
	}
}

// effects is a cluster with a table of the user's own.
func effects(t *testing.T, edits ...func(*postgres.Config)) (*stage, *postgres.Store) {
	t.Helper()
	s := newStage(t)
	store := open(t, s.schema(t, edits...))
	s.exec(t, "create table effect (generation bigint)")
	return s, store
}

// write is an effect of a run in a fenced transaction.
func (s *stage) write(store *postgres.Store, f daemon.Fence) error {
	return store.InTx(context.Background(), s.pool, f, func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), "insert into effect values ($1)", f.Generation)
		return err
	})
}

// A fence accepts only the generation that was stamped last. An earlier run was superseded, a later
// one has not stamped yet, and without any stamp no run owns the unit.
func TestFenceWantsTheStamp(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	refused := func(f daemon.Fence, holds int64) {
		t.Helper()
		var stale *daemon.StaleError
		if err := s.write(store, f); !errors.As(err, &stale) || stale.HeldGeneration != holds || stale.Fence != f {
			t.Errorf("error %v, want %v", err, &daemon.StaleError{Fence: f, HeldGeneration: holds})
		}
	}
	refused(fence(5), 0)
	stamp(t, store, fence(5))
	if err := s.write(store, fence(5)); err != nil {
		t.Error(err)
	}
	refused(fence(4), 5)
	refused(fence(6), 5)
	refused(daemon.Fence{Unit: unit(1), Generation: 5}, 0)
	stamp(t, store, fence(7))
	refused(fence(5), 7)
	if got := value[[]int64](t, s, "select array_agg(generation) from effect"); !slices.Equal(got, []int64{5}) {
		t.Errorf("effects %v, want [5]", got)
	}
}

// A stamp waits for a transaction that was accepted before; what that wrote is there when the next
// run begins. After a second, the wait is written as an event. Stamping the present generation does
// not wait.
func TestStampWaits(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	ctx := context.Background()
	stamp(t, store, fence(5))
	tx := s.begin(t)
	if err := store.Fence(ctx, tx, fence(5)); err != nil {
		t.Fatal(err)
	}
	stamp(t, store, fence(5))
	stamped := later(func() (struct{}, error) { return struct{}{}, store.StampFence(ctx, fence(6)) })
	eventually(t, "the wait is told", func() bool { return slices.Contains(kinds(t, store), daemon.FenceWaiting) })
	if _, err := tx.Exec(ctx, "insert into effect values (5)"); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-stamped:
		t.Fatalf("the stamp did not wait: %v", r.err)
	default:
	}
	commit(t, tx)
	await(t, "the stamp", stamped).get(t)
	if n := value[int](t, s, "select count(*) from effect"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
	all := kinds(t, store)
	if n := len(all) - len(slices.DeleteFunc(all, func(k daemon.EventKind) bool { return k == daemon.FenceWaiting })); n != 1 {
		t.Errorf("the wait is told %d times, want once", n)
	}
}

// A waiting stamp ends with its context and leaves the fence unchanged.
func TestStampGivesUp(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	stamp(t, store, fence(5))
	if err := store.Fence(context.Background(), s.begin(t), fence(5)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stamped := later(func() (struct{}, error) { return struct{}{}, store.StampFence(ctx, fence(6)) })
	s.blocked(t, 1)
	cancel()
	if r := await(t, "the stamp", stamped); !errors.Is(r.err, context.Canceled) {
		t.Errorf("error %v, want %v", r.err, context.Canceled)
	}
	eventually(t, "nobody waits", func() bool { return s.waiting(t) == 0 })
	if err := s.write(store, fence(5)); err != nil {
		t.Error(err)
	}
}

// However many stamps are blocked, a heartbeat finds a connection, and a stamp whose fence is free
// succeeds.
func TestStampsLeaveRoom(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	a := join(t, store, "a")
	tx := s.begin(t)
	var waits []<-chan result[struct{}]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range 12 {
		f := daemon.Fence{Unit: unit(i), Generation: 1}
		stamp(t, store, f)
		if err := store.Fence(context.Background(), tx, f); err != nil {
			t.Fatal(err)
		}
		waits = append(waits, later(func() (struct{}, error) {
			return struct{}{}, store.StampFence(ctx, daemon.Fence{Unit: f.Unit, Generation: 2})
		}))
	}
	eventually(t, "stamps wait", func() bool { return s.waiting(t) > 0 })
	for range 20 {
		a.beat()
	}
	stamp(t, store, daemon.Fence{Unit: unit(100), Generation: 1})
	cancel()
	for _, w := range waits {
		await(t, "a stamp's end", w)
	}
}

// A fenced transaction may idle only while its run's assignment is valid. Then the server ends it,
// and the next run continues.
func TestFencedTransactionMayNotIdle(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	stamp(t, store, fence(5))
	ctx := daemon.WithValidity(context.Background(), func() time.Duration { return 300 * time.Millisecond })
	tx := s.begin(t)
	if err := store.Fence(ctx, tx, fence(5)); err != nil {
		t.Fatal(err)
	}
	stamp(t, store, fence(6))
	if err := tx.Commit(context.Background()); err == nil {
		t.Error("the transaction of the earlier run committed after its successor's stamp")
	}
}

// The bound belongs to the transaction: a lower one that is set stays, and the session keeps its
// own setting.
func TestFenceBoundsIdling(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	stamp(t, store, fence(5))
	ctx := context.Background()
	for _, tt := range []struct{ session, want string }{{"0", "5s"}, {"1min", "5s"}, {"700ms", "700ms"}} {
		conn, err := pgx.Connect(ctx, s.url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "set idle_in_transaction_session_timeout = '"+tt.session+"'"); err != nil {
			t.Fatal(err)
		}
		show := func() (now string) {
			if err := conn.QueryRow(ctx, "show idle_in_transaction_session_timeout").Scan(&now); err != nil {
				t.Fatal(err)
			}
			return now
		}
		before := show()
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			err := store.Fence(ctx, tx, fence(5))
			if got := show(); got != tt.want {
				t.Errorf("a transaction in a session with %s may idle %s, want %s", tt.session, got, tt.want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := show(); got != before {
			t.Errorf("the session's setting is %s after the transaction, was %s", got, before)
		}
	}
}

// A fence refuses a run whose assignment is not valid any more.
func TestFenceWithoutTrust(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	stamp(t, store, fence(5))
	ctx := daemon.WithValidity(context.Background(), func() time.Duration { return 0 })
	err := store.InTx(ctx, s.pool, fence(5), func(pgx.Tx) error {
		t.Error("the transaction ran")
		return nil
	})
	if !errors.Is(err, daemon.ErrStale) {
		t.Errorf("error %v, want %v", err, daemon.ErrStale)
	}
}

// An error of the user's function rolls back and is returned unchanged; a panic rolls back too.
func TestInTxRollsBack(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	stamp(t, store, fence(5))
	ctx := context.Background()
	mine := errors.New("mine")
	fail := func(how func() error) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = p.(error)
			}
		}()
		return store.InTx(ctx, s.pool, fence(5), func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "insert into effect values (5)"); err != nil {
				t.Error(err)
			}
			return how()
		})
	}
	for name, how := range map[string]func() error{"error": func() error { return mine }, "panic": func() error { panic(mine) }} {
		if err := fail(how); err != mine { //nolint:errorlint // not wrapped
			t.Errorf("%s: got %v, want the user's own", name, err)
		}
	}
	if n := value[int](t, s, "select count(*) from effect"); n != 0 {
		t.Errorf("%d effects of transactions that failed", n)
	}
	stamp(t, store, fence(6)) // no transaction holds the fence
}

// Runs overlap in time, and each stamps before it writes. The effects that are accepted come in the
// order of generations, and each run sees everything that earlier runs wrote.
func TestEffectsComeInOrder(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	s.exec(t, "create table claim (generation bigint, seen bigint)")
	ctx := context.Background()
	done := make(chan error)
	const runs = 12
	for g := int64(1); g <= runs; g++ {
		go func() {
			done <- func() error {
				if err := store.StampFence(ctx, fence(g)); err != nil {
					return err
				}
				if _, err := s.pool.Exec(ctx, "insert into claim select $1, count(*) from effect where generation < $1", g); err != nil {
					return err
				}
				for range 20 {
					if err := s.write(store, fence(g)); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range runs {
		if err := <-done; err != nil && !errors.Is(err, daemon.ErrStale) {
			t.Error(err)
		}
	}
	const late = "select count(*) from claim c where c.seen <> (select count(*) from effect e where e.generation < c.generation)"
	if n := value[int](t, s, late); n != 0 {
		t.Errorf("%d runs were overtaken by writes of earlier ones", n)
	}
	if n := value[int](t, s, "select count(*) from effect"); n < 20 {
		t.Errorf("%d effects got through, want the last run's 20 at least", n)
	}
}

// A commit whose reply is lost is reported as unknown. A transaction that reads afterwards shows
// the outcome.
func TestInTxUnknownOutcome(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	stamp(t, store, fence(5))
	pool, proxy := s.through(t)
	ctx := context.Background()
	err := store.InTx(ctx, pool, fence(5), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into effect values (5)")
		proxy.LoseReplies(1)
		return err
	})
	if !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("error %v, want one that is %v", err, storage.ErrUnavailable)
	}
	if n := value[int](t, s, "select count(*) from effect"); n != 1 {
		t.Errorf("%d effects: this one was committed", n)
	}
}

func ExampleStore_InTx() {
	var ( // from the agent's Run
		ctx   context.Context
		store *postgres.Store
		pool  postgres.Beginner // a *pgxpool.Pool of the agent's own
		a     *daemon.Assignment
	)
	if a == nil {
		return
	}
	err := store.InTx(ctx, pool, a.Fence(), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "update account set balance = balance - 1 where id = 7")
		return err
	})
	if errors.Is(err, daemon.ErrStale) {
		fmt.Println("another run owns the unit by now; nothing was written")
	}
}
