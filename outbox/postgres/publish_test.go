package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/outbox"
)

// TestWaysToPublish checks that every way to publish stores the same, in order, with locks and without.
func TestWaysToPublish(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx := context.Background()
	db, err := sql.Open("pgx", w.cfg.URL)
	ok(t, err)
	defer db.Close()
	simple, err := pgx.Connect(ctx, w.cfg.URL+"&default_query_exec_mode=simple_protocol")
	ok(t, err)
	defer simple.Close(ctx)
	c := w.claim("s", 1)
	for _, pub := range []*Publisher{w.pub, w.pub.Ordered(false)} {
		for name, publish := range map[string]func(all []outbox.Message) error{
			"Publish": func(all []outbox.Message) error {
				return pgx.BeginFunc(ctx, w.app, func(tx pgx.Tx) error { return pub.Publish(ctx, tx, all...) })
			},
			"Publish by the simple protocol": func(all []outbox.Message) error {
				return pgx.BeginFunc(ctx, simple, func(tx pgx.Tx) error { return pub.Publish(ctx, tx, all...) })
			},
			"PublishTx": func(all []outbox.Message) error {
				tx, err := db.Begin()
				ok(t, err)
				defer tx.Rollback()
				return errors.Join(pub.PublishTx(ctx, tx, all...), tx.Commit())
			},
			"Queue": func(all []outbox.Message) error {
				batch := &pgx.Batch{}
				ok(t, pub.Queue(ctx, batch, all...))
				return pgx.BeginFunc(ctx, w.app, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
			},
		} {
			for _, n := range []int{1, 2, 70, 1200} {
				all := make([]outbox.Message, n)
				for i := range all {
					all[i] = outbox.Message{
						ID: uuid.New(), Topic: "t", Key: fmt.Sprint("k", i%100), Payload: fmt.Append(nil, i), Type: "type",
						Headers: map[string]string{"x-quote": "a\"b'c\\"}, TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", TraceState: "a=1",
					}
					if n == 70 && i%2 == 1 {
						all[i].NotBefore = time.Now().Add(-time.Hour) // a time in the past has no effect
					}
				}
				ok(t, publish(all))
				sameMessages(t, fmt.Sprint(name, " of ", n), c, all)
			}
		}
	}
}

// sameMessages compares the delivered messages with the published ones.
func sameMessages(t *testing.T, what string, c outbox.Cursor, want []outbox.Message) {
	t.Helper()
	var got []outbox.Row
	for {
		p, err := c.Next(t.Context(), outbox.Limit{})
		ok(t, err)
		if p.Mark != nil {
			ok(t, c.Advance(t.Context(), p.Mark, nil))
		}
		if got = append(got, p.Rows...); len(p.Rows) == 0 && !p.More {
			break
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d messages, want %d", what, len(got), len(want))
	}
	for i, r := range got {
		m := want[i]
		m.NotBefore = time.Time{}
		if fmt.Sprint(r.Message) != fmt.Sprint(m) {
			t.Fatalf("%s: message %d is %v, want %v", what, i, r.Message, m)
		}
	}
}

// TestPublishInSQL checks the SQL function with which programs in other languages publish: it computes
// the same shard and takes the same lock.
func TestPublishInSQL(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx := context.Background()
	c := w.claim("s", 1)
	keys := []string{"", "a", "customer-7", "日本語"}
	for _, key := range keys {
		w.exec("select ~outbox_publish('t', 'x', $1, 'type', '{\"a\": \"b\"}')", key)
	}
	w.exec("select ~outbox_publish('t', 'later', not_before => now() + interval '1 hour')")
	p, err := c.Next(ctx, outbox.Limit{})
	ok(t, err)
	for i, r := range p.Rows {
		if r.Key != keys[i] || r.Key != "" && r.Shard != outbox.ShardOf(r.Key) || r.Type != "type" || r.Headers["a"] != "b" || r.ID == uuid.Nil {
			t.Errorf("got %+v", r)
		}
	}
	if len(p.Rows) != len(keys) {
		t.Errorf("%d messages", len(p.Rows))
	}
	tx := w.begin()
	_, err = tx.Exec(ctx, w.names.q("select ~outbox_publish('t', 'x', 'customer-7')"))
	ok(t, err)
	w.waits(t, "customer-7", true)
	for _, bad := range []string{"''", "null", "repeat('t', 256)"} {
		if _, err := w.app.Exec(ctx, w.names.q("select ~outbox_publish("+bad+", 'x')")); err == nil {
			t.Errorf("topic %s was taken", bad)
		}
	}
}

// waits asserts whether publishing for a key has to wait.
func (w *world) waits(t *testing.T, key string, want bool) {
	t.Helper()
	ctx := context.Background()
	tx := w.begin()
	_, err := tx.Exec(ctx, "set local lock_timeout = '30ms'")
	ok(t, err)
	err = w.pub.Publish(ctx, tx, text(key, "x"))
	if (pgerror.Code(err) == "55P03") != want || err != nil && !want {
		t.Errorf("publishing for key %q: %v, want to wait: %v", key, err, want)
	}
	ok(t, tx.Rollback(ctx))
}

// TestOrdered checks that Publish waits only for transactions that published for the same key. For many
// keys it locks their shards, which excludes publishers that lock one of these keys.
func TestOrdered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx := context.Background()
	other := ""
	for i := 0; other == "" || outbox.ShardOf(other) != outbox.ShardOf("a"); i++ {
		other = fmt.Sprint("other", i)
	}
	one := w.begin()
	ok(t, w.pub.Publish(ctx, one, text("a", "1"), text("", "2")))
	w.waits(t, "a", true)
	w.waits(t, other, false)
	w.waits(t, "", false)
	ok(t, one.Rollback(ctx))
	w.waits(t, "a", false)

	unlocked := w.begin()
	ok(t, w.pub.Ordered(false).Publish(ctx, unlocked, text("a", "1")))
	w.waits(t, "a", false)
	ok(t, unlocked.Rollback(ctx))

	many := make([]outbox.Message, 5000)
	for i := range many {
		many[i] = text(fmt.Sprint("k", i), "x")
	}
	bulk := w.begin()
	ok(t, w.pub.Publish(ctx, bulk, many...))
	if n := value[int](w, "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"); n > outbox.Shards {
		t.Errorf("5,000 keys took %d locks", n)
	}
	w.waits(t, "k77", true)
	ok(t, bulk.Rollback(ctx))
	single := w.begin()
	ok(t, w.pub.Publish(ctx, single, text("k77", "x")))
	second := w.begin()
	_, err := second.Exec(ctx, "set local lock_timeout = '30ms'")
	ok(t, err)
	if err := w.pub.Publish(ctx, second, many...); pgerror.Code(err) != "55P03" {
		t.Errorf("a bulk beside one of its keys: %v", err)
	}
}

// TestIDsAreDrawnUnderTheLock checks that a message that waits for its key has no id meanwhile, because
// relays deliver in the order of ids. This includes the single statement that locks and inserts.
func TestIDsAreDrawnUnderTheLock(t *testing.T) {
	t.Parallel()
	for name, publish := range map[string]func(w *world, tx pgx.Tx, m ...outbox.Message) error{
		"Publish": func(w *world, tx pgx.Tx, m ...outbox.Message) error {
			return w.pub.Publish(context.Background(), tx, m...)
		},
		"Queue": func(w *world, tx pgx.Tx, m ...outbox.Message) error {
			var batch pgx.Batch
			if err := w.pub.Queue(context.Background(), &batch, m...); err != nil {
				return err
			}
			return tx.SendBatch(context.Background(), &batch).Close()
		},
	} {
		for n := 1; n <= 2; n++ {
			t.Run(fmt.Sprint(name, " of ", n), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, Config{})
				ctx := context.Background()
				first, second := w.begin(), w.begin()
				ok(t, publish(w, first, text("a", "first")))
				locked := make(chan error, 1)
				go func() { locked <- publish(w, second, slices.Repeat([]outbox.Message{text("a", "second")}, n)...) }()
				eventually(t, "the second waits", func() bool {
					return value[int](w, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == 1
				})
				w.publish(text("b", "other"))
				ok(t, publish(w, first, text("a", "first again")))
				ok(t, first.Commit(ctx))
				ok(t, <-locked)
				ok(t, second.Commit(ctx))
				want := "first,other,first again" + strings.Repeat(",second", n)
				if got := value[string](w, "select string_agg(convert_from(payload, 'UTF8'), ',' order by id) from ~outbox"); got != want {
					t.Errorf("ids are in the order %s, want %s", got, want)
				}
			})
		}
	}
}

// TestOnPublished checks that the hook is called only after the commit, and without messages of undone
// savepoints. It may be slow or panic.
func TestOnPublished(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var reported []string
	w := newWorld(t, Config{Logger: slog.New(slog.DiscardHandler), OnPublished: func(m []outbox.Message) {
		mu.Lock()
		defer mu.Unlock()
		names := ""
		for _, x := range m {
			names += string(x.Payload)
		}
		reported = append(reported, names)
		if len(reported) == 1 {
			panic("hook")
		}
	}})
	ctx := context.Background()
	w.publish(text("k", "a"), text("k", "b"))
	_ = w.pub.InTx(ctx, w.app, func(tx *Tx) error {
		ok(t, w.pub.Publish(ctx, tx, text("k", "undone")))
		return errors.New("undo")
	})
	w.publish()
	ok(t, w.pub.InTx(ctx, w.app, func(tx *Tx) error {
		ok(t, w.pub.Publish(ctx, tx, text("k", "c")))
		_ = w.pub.InTx(ctx, tx, func(inner *Tx) error {
			ok(t, w.pub.Publish(ctx, inner, text("k", "undone")))
			return errors.New("undo")
		})
		return w.pub.InTx(ctx, tx, func(inner *Tx) error { return w.pub.Publish(ctx, inner, text("k", "d")) })
	}))
	wrapped := w.pub.Wrap(w.begin())
	ok(t, w.pub.Publish(ctx, wrapped, text("k", "e")))
	ok(t, wrapped.Commit(ctx))
	if err := wrapped.Commit(ctx); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a second commit: %v", err)
	}
	// A failed commit is not reported.
	err := w.pub.InTx(ctx, w.app, func(tx *Tx) error {
		_, err := tx.Exec(ctx, "create temp table u (n int unique deferrable initially deferred) on commit drop; insert into u values (1), (1)")
		return errors.Join(err, w.pub.Publish(ctx, tx, text("k", "undone")))
	})
	if pgerror.Code(err) != "23505" {
		t.Errorf("a commit that fails: %v", err)
	}
	ok(t, w.pub.Close(ctx)) // reports the remaining commits
	if want := []string{"ab", "cd", "e"}; !slices.Equal(reported, want) {
		t.Errorf("the hook was told of %v, want %v", reported, want)
	}
	if got := drain(t, w.claim("s", 1)); !slices.Equal(got, []string{"a", "b", "c", "d", "e"}) {
		t.Errorf("delivered: %v", got)
	}
}

// TestWake checks that a commit wakes relays of other processes; a rollback, or publishing before the
// commit, does not.
func TestWake(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	wake := w.WakeUps(ctx)
	<-wake // it listens now
	_ = w.pub.InTx(ctx, w.app, func(tx *Tx) error {
		return errors.Join(w.pub.Publish(ctx, tx, text("k", "undone")), errors.New("undo"))
	})
	tx := w.pub.Wrap(w.begin())
	ok(t, w.pub.Publish(ctx, tx, text("k", "1")))
	if n := value[int](w, "select count(*) from pg_stat_activity where datname = current_database() and query like '%pg_notify%' and query not like '%count%'"); n != 0 {
		t.Errorf("%d sessions notified before a commit", n)
	}
	ok(t, tx.Commit(ctx))
	select {
	case <-wake:
	case <-ctx.Done():
		t.Fatal("a commit did not wake")
	}
}

// TestBadConfig checks that bad input is refused before anything is sent, and that every mistake is
// named.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	_, err := New(nil, Config{Schema: "x; drop", Prefix: strings.Repeat("p", 60), Notify: "no", OnLag: "panic", MaxConns: 1, QueryTimeout: 1, MaxRetained: -1})
	for _, want := range []string{"schema", "notify", "on_lag", "outbox.max_connections is 1", "query_timeout", "max_retained"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if _, err := New(nil, Config{Prefix: strings.Repeat("p", 60)}); err == nil || !strings.Contains(err.Error(), "63") {
		t.Errorf("a long prefix: %v", err)
	}
	if _, err := Open(context.Background(), Config{}); err == nil || !strings.Contains(err.Error(), "outbox.url") {
		t.Errorf("no url: %v", err)
	}
}

// TestRowsOfOthers checks rows that other programs wrote into the log: what can be decoded is delivered,
// and they do not stop the rows behind them.
func TestRowsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	for _, headers := range []string{`{"a": "b"}`, `{"a": 1, "b": null}`, `[1]`, `7`} {
		w.exec(`insert into ~outbox (shard, topic, headers, payload, created_at) values (3, 't', $1, 'text', 'infinity')`, headers)
	}
	w.publish(text("k", "behind"))
	if got := drain(t, w.claim("s", 1)); len(got) != 5 || got[4] != "behind" {
		t.Errorf("got %v", got)
	}
}

// TestPublishTxLocksInOneOrder checks that calls with many messages for the same keys in different orders
// wait for each other and do not deadlock.
func TestPublishTxLocksInOneOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	for name, keys := range map[string][]string{"of keys": {"a", "b", "c"}, "of shards": nil} {
		t.Run(name, func(t *testing.T) {
			var first, second []outbox.Message
			for i := range 3 * together {
				key := fmt.Sprint("k", i) // too many for separate locks
				if keys != nil {
					key = keys[i/together]
				}
				first, second = append(first, text(key, "x")), append(second, text(key, "x"))
			}
			slices.Reverse(second)
			// All locks come first, in one order, whatever the order of the messages.
			one, two := w.pub.txStatements(first), w.pub.txStatements(second)
			n := 0
			for n < len(one) && strings.Contains(one[n].text, "pg_advisory") {
				if a, b := fmt.Sprint(one[n]), fmt.Sprint(two[n]); a != b {
					t.Errorf("statement %d locks in two orders:\n%.200s\n%.200s", n, a, b)
				}
				n++
			}
			for i, s := range one[n:] {
				if strings.Contains(s.text, "pg_advisory") {
					t.Errorf("statement %d locks behind an insert", n+i)
				}
			}
			if n == 0 || len(one)-n != 3 {
				t.Errorf("%d statements lock, %d insert", n, len(one)-n)
			}
		})
	}
}

// TestTransactionKeepsNoPayloads checks that a transaction does not hold what was published in it if there is no hook that
// would get it.
func TestTransactionKeepsNoPayloads(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t, Config{}), context.Background()
	ok(t, w.pub.InTx(ctx, w.app, func(tx *Tx) error {
		ok(t, w.pub.Publish(ctx, tx, text("k", "1")))
		ok(t, w.pub.InTx(ctx, tx, func(tx *Tx) error { return w.pub.Publish(ctx, tx, text("k", "2")) }))
		if len(tx.published) > 0 || !tx.wrote {
			t.Errorf("%d messages are kept, and that there are any: %v", len(tx.published), tx.wrote)
		}
		return nil
	}))
}
