package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
)

// mustServer starts a server of its own.
func mustServer(t testing.TB) *pgtest.Server {
	t.Helper()
	s, err := pgtest.Start(pgtest.Config{})
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

// burnTransactions draws n transaction IDs.
func (w *world) burnTransactions(n int) {
	w.t.Helper()
	for range n {
		w.exec("select pg_current_xact_id()")
	}
}

// needs skips a test if the chosen Postgres lacks a program.
func needs(t testing.TB, programs ...string) {
	t.Helper()
	bin, err := pgtest.Binaries()
	ok(t, err)
	for _, name := range programs {
		_, err := os.Stat(filepath.Join(bin, name))
		if err != nil && os.Getenv("EMITD_TEST_PG_BIN") != "" {
			t.Skipf("needs %s, which is not among the programs of this Postgres", name)
		}
		ok(t, err)
	}
}

// dump copies a database into one on another server, with pg_dump.
func dump(t testing.TB, from, to string) {
	t.Helper()
	bin, err := pgtest.Binaries()
	ok(t, err)
	out, err := exec.Command(filepath.Join(bin, "pg_dump"), from).Output()
	ok(t, err)
	psql := exec.Command(filepath.Join(bin, "psql"), "-q", "-v", "ON_ERROR_STOP=1", to)
	psql.Stdin = bytes.NewReader(out)
	if text, err := psql.CombinedOutput(); err != nil {
		t.Fatalf("restore: %v\n%s", err, text)
	}
}

// TestRestore restores a dump into a new server with lower transaction IDs than those in the log.
// Undelivered messages must be delivered, delivered ones must not (except those of an unfinished tick).
// Messages that are published there before the first relay and long after must be delivered once.
func TestRestore(t *testing.T) {
	t.Parallel()
	needs(t, "pg_dump", "psql")
	for _, mid := range []bool{false, true} {
		t.Run(fmt.Sprint("mid-tick=", mid), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			old, fresh := mustServer(t), mustServer(t)
			w := openWorld(t, Config{URL: old.URL("postgres"), AutoMigrate: true})
			w.burnTransactions(3000)
			c := w.claim("s", 7)
			w.publish(text("a", "a1"), text("a", "a2"))
			if got := drain(t, c); len(got) != 2 {
				t.Fatalf("got %v", got)
			}
			w.publish(text("a", "a3"), text("a", "a4"), text("b", "b1"))
			if mid {
				p, err := c.Next(ctx, outbox.Limit{Rows: 1})
				ok(t, err)
				ok(t, c.Advance(ctx, p.Mark, nil))
			}
			dump(t, old.URL("postgres"), fresh.URL("postgres"))

			r := openWorld(t, Config{URL: fresh.URL("postgres"), AutoMigrate: true})
			if now := value[int64](r, "select pg_current_xact_id()::text::bigint"); now > 2500 {
				t.Fatalf("the new cluster is at transaction %d already", now)
			}
			r.publish(text("a", "a5"))
			c = r.claim("s", 8)
			want := []string{"a3", "a4", "b1", "a5"}
			if mid {
				want = want[1:]
			}
			if got := drain(t, c); !slices.Equal(got, want) {
				t.Errorf("after the restore came %v, want %v", got, want)
			}
			r.publish(text("a", "a6"))
			if got := drain(t, c); !slices.Equal(got, []string{"a6"}) {
				t.Errorf("then came %v", got)
			}
			if got := drain(t, r.claim("new", 1)); len(got) != 7 {
				t.Errorf("a new subscription got %v", got)
			}
			r.burnTransactions(3500) // the old transaction IDs are used again
			r.publish(text("a", "a7"))
			if got := drain(t, c); !slices.Equal(got, []string{"a7"}) {
				t.Errorf("when the old numbers came again came %v", got)
			}
			_, counts, err := r.Replay(ctx, outbox.ReplayRequest{Subscription: "s", Key: "b"})
			ok(t, err)
			lanes, err := r.claim("s", 9).Due(ctx, 10)
			ok(t, err)
			if len(lanes) != 1 || string(lanes[0][0].Payload) != "b1" || counts[outbox.Delivered] != 1 {
				t.Errorf("a replay of a key brought %v, counted %v", lanes, counts)
			}
			used, _, err := r.Replay(ctx, outbox.ReplayRequest{Subscription: "s"})
			ok(t, err)
			if got := drain(t, r.claim("s", 10)); len(got) != 8 || used != 0 {
				t.Errorf("a replay after %d brought %v", used, got)
			}
		})
	}
}

// TestPromotion promotes an asynchronous standby that lacks the last writes, under a running relay. Its
// messages must be delivered. What was delivered since its last write comes again. What is published
// afterwards must be delivered, although the cursor in memory was ahead of the new server.
func TestPromotion(t *testing.T) {
	t.Parallel()
	needs(t, "pg_basebackup")
	ctx := context.Background()
	primary := mustServer(t)
	standby, err := primary.Standby(pgtest.Config{})
	ok(t, err)
	t.Cleanup(func() { ok(t, standby.Close()) })
	w := openWorld(t, Config{URL: primary.URL("postgres"), AutoMigrate: true})
	c := w.claim("s", 1)
	w.publish(text("a", "1"), text("a", "2"))
	drain(t, c)
	end := value[string](w, "select pg_current_wal_flush_lsn()::text")
	hot := mustPool(t, standby.URL("postgres"))
	eventually(t, "the standby is up to date", func() bool {
		var there bool
		err := hot.QueryRow(ctx, "select pg_last_wal_replay_lsn() >= $1::pg_lsn", end).Scan(&there)
		return err == nil && there
	})

	// A relay that connects to the standby by mistake is refused, because a standby's snapshots do not show
	// open transactions.
	wrong, err := Open(ctx, Config{URL: standby.URL("postgres"), Logger: slog.New(slog.DiscardHandler)})
	ok(t, err)
	t.Cleanup(wrong.Close)
	if _, err := wrong.Claim(ctx, outbox.ClaimRequest{Subscription: "s", Instances: 1, Epoch: 2}); err == nil || !strings.Contains(err.Error(), "primary") {
		t.Errorf("a claim on a standby: %v", err)
	}
	misled := c.movedTo(t, wrong)
	if _, err := misled.Next(ctx, outbox.Limit{}); !errors.Is(err, errStandby) {
		t.Errorf("reading on a standby: %v", err)
	}

	pooler := pgtest.NewPgBouncer(t, standby.URL("postgres"))
	if _, err := Open(ctx, Config{URL: pooler.URL, Logger: slog.New(slog.DiscardHandler)}); !errors.Is(err, errStandby) {
		t.Errorf("a pooler before a standby: %v", err)
	}

	// From here the standby receives no more.
	hot.Close()
	wrong.Close()
	ok(t, standby.Stop(pgtest.Fast))
	w.burnTransactions(20)
	w.publish(text("a", "lost"))
	if got := drain(t, c); !slices.Equal(got, []string{"lost"}) {
		t.Fatalf("got %v", got)
	}
	ok(t, primary.Stop(pgtest.Immediate))
	ok(t, standby.Start())
	ok(t, standby.Promote(ctx))

	p := openWorld(t, Config{URL: standby.URL("postgres")})
	p.publish(text("a", "3"), text("a", "4"))
	// If its connection moved unnoticed, the cursor in memory would be ahead of what is stored.
	ahead := c.movedTo(t, p.Log)
	if err := ahead.Advance(ctx, mark{ahead, []position{ahead.rows[0].position}}, nil); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("a cursor that is ahead of the server: %v", err)
	}
	if got := drain(t, p.claim("s", 1)); !slices.Equal(got, []string{"3", "4"}) {
		t.Errorf("after the promotion came %v", got)
	}
}

// movedTo returns a cursor whose connections lead to another server, unnoticed.
func (c *cursor) movedTo(t testing.TB, l *Log) *cursor {
	t.Helper()
	conn, err := l.acquire(context.Background())
	ok(t, err)
	defer conn.Release()
	moved := &cursor{log: l, claim: c.claim, Range: c.Range, server: serverBehind(conn), newestFloor: c.floorOfWrites(), rows: slices.Clone(c.rows)}
	moved.begin()
	t.Cleanup(moved.Close)
	return moved
}

// TestRestartOfTheServer checks that a cursor claimed in one run of the server is refused in the next,
// and is read again.
func TestRestartOfTheServer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := mustServer(t)
	w := openWorld(t, Config{URL: s.URL("postgres"), AutoMigrate: true})
	c := w.claim("s", 1)
	w.publish(text("a", "1"))
	p, err := c.Next(ctx, outbox.Limit{})
	ok(t, err)
	ok(t, s.Restart(pgtest.Immediate))
	eventually(t, "the log is there again", func() bool {
		_, err := w.Stats(ctx, "s")
		return err == nil
	})
	if err := c.Advance(ctx, p.Mark, nil); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("a cursor of another run: %v", err)
	}
	if _, err := c.Next(ctx, outbox.Limit{}); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("a cursor of another run reads: %v", err)
	}
	if got := drain(t, w.claim("s", 1)); !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %v", got)
	}
}

// TestMissingTables checks that missing tables are named, and that existing ones are not harmed.
func TestMissingTables(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newStage(t)
	cfg := Config{URL: s.url, Schema: "nowhere"}
	if _, err := Open(ctx, cfg); !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "migrate") {
		t.Errorf("a log without tables: %v", err)
	}
	pub, err := New(s.pool, cfg)
	ok(t, err)
	err = pub.InTx(ctx, s.pool, func(tx *Tx) error { return pub.Publish(ctx, tx, text("k", "x")) })
	if !errors.Is(err, outbox.ErrSchema) {
		t.Errorf("publishing without tables: %v", err)
	}
	w := s.world(t, Config{})
	w.publish(text("a", "1"))
	c := w.claim("s", 1)
	s.exec(t, "drop table "+w.names.table("outbox")+" cascade")
	if _, err := c.Next(ctx, outbox.Limit{}); !errors.Is(err, outbox.ErrSchema) {
		t.Errorf("reading a table that is gone: %v", err)
	}
	if _, err := w.Claim(ctx, outbox.ClaimRequest{Subscription: "s", Instances: 1, Epoch: 2}); err != nil {
		t.Logf("a claim: %v", err)
	}
	if _, err := Open(ctx, w.cfg); !errors.Is(err, outbox.ErrSchema) {
		t.Errorf("opening without the log: %v", err)
	}
	w = s.world(t, Config{})
	s.exec(t, "alter sequence "+w.names.table("outbox_id")+" cache 20")
	if _, err := Open(ctx, w.cfg); !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "cache 1") {
		t.Errorf("a sequence with a cache: %v", err)
	}
}

// TestNoSecrets checks that no error and no log contains secrets of the connection string.
func TestNoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "hunter2!"
	cfg := Config{URL: "postgres://app:hunter2%21@127.0.0.1:1/app?connect_timeout=1"}
	_, err := Open(context.Background(), cfg)
	for _, text := range []string{fmt.Sprint(err), fmt.Sprintf("%v %+v %#v", cfg, cfg, cfg), cfg.LogValue().String()} {
		if strings.Contains(text, secret) || strings.Contains(text, "hunter2%21") {
			t.Errorf("the password is in %q", text)
		}
	}
	if err == nil {
		t.Error("connected to nobody")
	}
	if _, err := Open(context.Background(), Config{URL: "postgres://app:hunter2!@:::/x"}); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a bad connection string: %v", err)
	}
}
