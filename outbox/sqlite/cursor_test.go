package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/outbox"
)

// TestWindow checks that a range's messages behind a hundred thousand of other ranges are found, in calls
// of bounded duration that each make progress.
func TestWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	other, mine := "", ""
	for i := 0; other == "" || mine == ""; i++ {
		if key := fmt.Sprint("key", i); outbox.ShardOf(key) < 32 {
			other = key
		} else {
			mine = key
		}
	}
	_, err := w.db.Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO emitd_outbox (shard, created_at, dedup_id, key, topic) SELECT ?, 0, zeroblob(16), ?, 't' FROM n`,
		window+1000, outbox.ShardOf(other), other)
	ok(t, err)
	w.publish(t, text(mine, "mine"))
	c, err := w.Claim(t.Context(), outbox.ClaimRequest{Subscription: "s", Index: 1, Instances: 2, Epoch: 1})
	ok(t, err)
	p, err := c.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	if len(p.Rows) != 0 || !p.More || p.Mark == nil {
		t.Errorf("the first page has %d rows, more %v, mark %v; want none, and to go on", len(p.Rows), p.More, p.Mark)
	}
	ok(t, c.Advance(t.Context(), p.Mark, nil))
	if got := drain(t, c); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("messages %v", got)
	}
}

// TestReadingSkipsWhatWasRemoved checks that reading does not start at the first id ever drawn.
func TestReadingSkipsWhatWasRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.publish(t, text("k", "0"))
	_, err := w.db.Exec(`DELETE FROM emitd_outbox`)
	ok(t, err)
	early := w.claim(t, "early", 1)
	_, err = w.db.Exec(`UPDATE sqlite_sequence SET seq = 10000000 WHERE name = 'emitd_outbox'`)
	ok(t, err)
	w.publish(t, text("k", "1"))
	p, err := early.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	if len(p.Rows) == 0 {
		t.Errorf("the page is empty: reading walks over ids that are not there")
	}
}

// TestMistakenRelay checks that calls that only a faulty relay makes are refused and change nothing.
func TestMistakenRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.publish(t, text("a", "a1"), text("a", "a2"), text("b", "b1"))
	advance := func(fn func(p outbox.Page) outbox.Outcome) error {
		c := w.claim(t, "s", 1)
		p, err := c.Next(t.Context(), outbox.Limit{Rows: 2})
		ok(t, err)
		if len(p.Rows) == 0 {
			t.Fatal("what was refused has advanced")
		}
		return c.Advance(t.Context(), p.Mark, []outbox.Outcome{fn(p)})
	}
	for name, fn := range map[string]func(outbox.Page) outbox.Outcome{
		"no outcome":      func(p outbox.Page) outbox.Outcome { return outbox.Outcome{Row: p.Rows[0], Kind: "lost"} },
		"behind the mark": func(p outbox.Page) outbox.Outcome { return outbox.Outcome{Row: outbox.Row{Seq: 3}, Kind: outbox.Held} },
		"of no shard of these": func(p outbox.Page) outbox.Outcome {
			return outbox.Outcome{Row: outbox.Row{Seq: 1, Shard: 64}, Kind: outbox.Held}
		},
	} {
		if advance(fn) == nil {
			t.Errorf("%s: advanced", name)
		}
	}
	ok(t, advance(func(p outbox.Page) outbox.Outcome {
		return outbox.Outcome{Row: p.Rows[0], Kind: outbox.Waiting, Attempts: 1}
	}))
	c := w.claim(t, "s", 1)
	p, err := c.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	ok(t, c.Advance(t.Context(), p.Mark, []outbox.Outcome{{Row: p.Rows[0], Kind: outbox.Behind}}))
	if _, err := c.StoreParked(t.Context(), []outbox.Outcome{{Row: outbox.Row{Seq: 1}, Kind: "lost"}}); err == nil {
		t.Error("settled no outcome")
	}
	ok(t, func() error {
		_, err := w.claim(t, "s", 1).StoreParked(t.Context(), []outbox.Outcome{{Row: outbox.Row{Seq: 4711}, Kind: outbox.Delivered}})
		return err
	}())
	for _, bad := range []outbox.ClaimRequest{
		{Instances: 1, Epoch: 1},
		{Subscription: strings.Repeat("x", 256), Instances: 1, Epoch: 1},
		{Subscription: "s", Epoch: 1},
		{Subscription: "s", Instances: 65, Epoch: 1},
		{Subscription: "s", Instances: 1, Index: 1, Epoch: 1},
		{Subscription: "s", Instances: 1, Index: -1, Epoch: 1},
		{Subscription: "s", Instances: 1},
	} {
		if _, err := w.Claim(t.Context(), bad); err == nil {
			t.Errorf("claimed %+v", bad)
		}
	}
	if _, err := w.List(t.Context(), outbox.Filter{Kind: outbox.Delivered}); err == nil {
		t.Error("listed what is delivered")
	}
	if _, err := w.List(t.Context(), outbox.Filter{Limit: -1}); err == nil {
		t.Error("listed a negative number")
	}
	if _, _, err := w.Replay(t.Context(), outbox.ReplayRequest{Subscription: "s", After: -1}); err == nil {
		t.Error("replayed from a negative position")
	}
}

// TestRowsOfOthers checks rows that other programs wrote into the log: what can be decoded is delivered,
// and they do not stop the rows behind them.
func TestRowsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	for _, headers := range []string{``, `{"a": "b"}`, `{"a": 1, "b": null}`, `[1]`, `garbage`} {
		_, err := w.db.Exec(`INSERT INTO emitd_outbox (shard, created_at, dedup_id, topic, headers, payload) VALUES (3, 0, ?, 't', ?, 'text')`, make([]byte, 16), headers)
		ok(t, err)
	}
	w.publish(t, text("k", "behind"))
	if got := drain(t, w.claim(t, "s", 1)); len(got) != 6 || got[5] != "behind" {
		t.Errorf("messages %v", got)
	}
	for _, row := range []string{
		`(64, 0, zeroblob(16), 't')`, `(-1, 0, zeroblob(16), 't')`, `(0, 0, x'00', 't')`, `(0, 0, zeroblob(16), NULL)`,
	} {
		if _, err := w.db.Exec(`INSERT INTO emitd_outbox (shard, created_at, dedup_id, topic) VALUES ` + row); err == nil {
			t.Errorf("the table took %s", row)
		}
	}
	for text, want := range map[string]string{"": "map[]", `{"a": 1}`: "map[a:1]", "x": "map[]", `{"a":"b"}`: "map[a:b]"} {
		if got := fmt.Sprint(headersOf(text)); got != want {
			t.Errorf("headers %q are %s", text, got)
		}
	}
}

// TestMissingTables checks that tables that are dropped under a relay, or never existed, give a clear
// error.
func TestMissingTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	c := w.claim(t, "s", 1)
	_, err := w.db.Exec("DROP TABLE emitd_outbox")
	ok(t, err)
	_, err = c.Next(t.Context(), outbox.Limit{})
	if !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "Migrate") {
		t.Errorf("reading: %v", err)
	}
	err = w.pub.InTx(t.Context(), w.db, func(tx *Tx) error { return w.pub.Publish(t.Context(), tx, text("k", "x")) })
	if !errors.Is(err, outbox.ErrSchema) {
		t.Errorf("publishing: %v", err)
	}
	empty := filepath.Join(t.TempDir(), "empty.db")
	ok(t, os.WriteFile(empty, nil, 0o600))
	if _, err := Open(t.Context(), Config{Path: empty, NoMigrate: true}); !errors.Is(err, outbox.ErrSchema) {
		t.Errorf("opening: %v", err)
	}
	if _, err := Open(t.Context(), Config{Path: empty + "2", NoMigrate: true}); err == nil {
		t.Error("opened a file that is not there")
	}
	ok(t, os.WriteFile(empty, []byte(strings.Repeat("no database ", 1000)), 0o600))
	if _, err := Open(t.Context(), Config{Path: empty}); err == nil || !strings.Contains(err.Error(), "not a SQLite database") {
		t.Errorf("opening garbage: %v", err)
	}
}

// TestFileReplaced checks that a file that vanishes or is replaced under a running relay is noticed. The
// cursor becomes invalid, the next claim is made in the new file, and no file is created at the old path.
func TestFileReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.publish(t, text("k", "1"))
	c := w.claim(t, "s", 1)
	p, err := c.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	path := w.cfg.Path
	ok(t, w.db.Close())
	ok(t, os.Rename(path, path+".away"))
	if _, err := c.Next(t.Context(), outbox.Limit{}); err == nil {
		t.Error("read from a file that is gone")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file was made again")
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		_ = os.Remove(path + suffix)
	}
	mustOpen(t, Config{Path: path}).Close()
	if err := c.Advance(t.Context(), p.Mark, nil); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("advanced in another file: %v", err)
	}
	if _, err := c.Next(t.Context(), outbox.Limit{}); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("read on in another file: %v", err)
	}
	if got := drain(t, w.claim(t, "s", 1)); len(got) != 0 {
		t.Errorf("messages of the new file: %v", got)
	}
}

// replacing puts another file in the place of the log's as soon as a connection has been opened.
type replacing struct {
	sqlitefile.Connector
	by   string
	once sync.Once
	err  error
}

func (r *replacing) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := r.Connector.Connect(ctx)
	if err == nil {
		_, err = conn.(driver.ExecerContext).ExecContext(ctx, "SELECT count(*) FROM sqlite_master", nil) // opens the files beside it, too
	}
	r.once.Do(func() {
		for _, suffix := range []string{"-wal", "-shm"} {
			_ = os.Remove(r.Path + suffix)
		}
		r.err = os.Rename(r.by, r.Path)
	})
	return conn, err
}

// TestFileReplacedDuringTheOpening checks that a file is used that was put in the place of another one just when that one had been opened.
func TestFileReplacedDuringTheOpening(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, Config{}), newWorld(t, Config{})
	other.publish(t, text("k", "of the other file"))
	by := filepath.Join(t.TempDir(), "copy.db")
	_, err := other.db.Exec("VACUUM INTO ?", by)
	ok(t, err)
	l := mustOpen(t, Config{Path: w.cfg.Path})
	ok(t, l.db.Close())
	r := &replacing{Connector: sqlitefile.Connector{Path: w.cfg.Path}, by: by}
	l.db = sql.OpenDB(r)
	l.db.SetMaxIdleConns(-1) // as Open does
	got := drain(t, (&world{Log: l}).claim(t, "s", 1))
	ok(t, r.err)
	if len(got) != 1 {
		t.Errorf("messages of the file before: %v", got)
	}
}

// TestLogWentBack checks a log that went back, because an older copy was restored into the same file. It
// must not be read from the position in the newer one.
func TestLogWentBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.many(t, 10)
	c := w.claim(t, "s", 1)
	_, err := c.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	_, err = w.db.Exec("DELETE FROM emitd_outbox WHERE id > 4; UPDATE sqlite_sequence SET seq = 4 WHERE name = 'emitd_outbox'")
	ok(t, err)
	w.publish(t, text("k", "new"))
	if _, err := c.Next(t.Context(), outbox.Limit{}); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("read on: %v", err)
	}
	if got := drain(t, w.claim(t, "s", 1)); len(got) != 5 || got[4] != "new" {
		t.Errorf("messages %v", got)
	}
}

// TestClosed checks that calls of a closed log fail at once.
func TestClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	c := w.claim(t, "s", 1)
	w.WakeUps(t.Context())
	w.Close()
	w.Close()
	if _, err := c.Next(t.Context(), outbox.Limit{}); err == nil {
		t.Error("read from a closed log")
	}
	if _, err := w.Stats(t.Context(), ""); err == nil {
		t.Error("asked a closed log")
	}
}

// TestQueryTimeout checks that a call waits for another writer at most QueryTimeout and says what it
// waited for, and that readers do not wait.
func TestQueryTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.publish(t, text("k", "1"))
	hasty := mustOpen(t, Config{Path: w.cfg.Path, QueryTimeout: 500 * time.Millisecond})
	c := (&world{Log: hasty}).claim(t, "s", 1)
	tx, err := w.pub.begin(context.Background(), w.db)
	ok(t, err)
	p, err := c.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	if err := c.Advance(t.Context(), p.Mark, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("advanced beside another writer: %v", err)
	}
	ok(t, tx.Rollback())
	if got := drain(t, w.claim(t, "s", 1)); len(got) != 1 {
		t.Errorf("messages %v", got)
	}
}

// TestIDs checks that IDs given by the caller are kept, and missing ones are generated.
func TestIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	id := uuid.New()
	w.publish(t, outbox.Message{ID: id, Topic: "t"}, outbox.Message{Topic: "t"})
	p, err := w.claim(t, "s", 1).Next(t.Context(), outbox.Limit{})
	ok(t, err)
	if p.Rows[0].ID != id || p.Rows[1].ID.Version() != 7 {
		t.Errorf("IDs %v, %v", p.Rows[0].ID, p.Rows[1].ID)
	}
}
