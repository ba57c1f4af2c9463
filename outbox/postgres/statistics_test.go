package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
)

// TestStatisticsHaveOneEntryPerKind checks that pg_stat_statements has one entry for each kind of a
// publisher's statements, however many messages are published together. Otherwise batches would evict the
// user's entries.
func TestStatisticsHaveOneEntryPerKind(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(pgtest.Config{Settings: map[string]string{
		"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.max": "5000",
	}})
	if err != nil {
		t.Fatalf("%v\npg_stat_statements comes with the server: make deps, or apt-get install postgresql", err)
	}
	t.Cleanup(func() { _ = server.Close() })
	w := openWorld(t, Config{URL: server.URL("postgres"), AutoMigrate: true})
	w.exec("create extension pg_stat_statements")
	db, err := sql.Open("pgx", w.cfg.URL)
	ok(t, err)
	defer db.Close()
	ctx := context.Background()
	publish := func(messages []outbox.Message) {
		t.Helper()
		tx, err := db.Begin()
		ok(t, err)
		defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
		ok(t, w.pub.PublishTx(ctx, tx, messages...))
		ok(t, tx.Commit())
		ok(t, pgx.BeginFunc(ctx, w.app, func(tx pgx.Tx) error { return w.pub.Publish(ctx, tx, messages...) }))
	}
	kinds := func(n int) {
		t.Helper()
		same, keys, delayed := make([]outbox.Message, n), make([]outbox.Message, n), make([]outbox.Message, n)
		for i := range n {
			same[i], keys[i] = text("k", "x"), text(fmt.Sprint("k", i), "x")
			delayed[i] = keys[i]
			delayed[i].NotBefore = time.Now().Add(time.Hour)
		}
		publish(same)
		publish(keys)
		publish(delayed)
	}
	for _, n := range []int{1, 2, 65} { // beyond 64 keys, shards are locked
		kinds(n)
	}
	before := w.entries(t)
	for n := range 20 {
		kinds(3 + 7*n)
	}
	after := w.entries(t)
	for query, calls := range after {
		if _, known := before[query]; !known {
			t.Errorf("a new entry, called %d times: %.300s", calls, query)
		}
	}
	t.Logf("%d entries", len(after))
}

// entries returns the statistics of this database: calls by the ID and text of a statement.
func (w *world) entries(t *testing.T) map[string]int64 {
	t.Helper()
	rows, err := w.app.Query(context.Background(), `select queryid::text || ' ' || query, calls from pg_stat_statements
		where dbid = (select oid from pg_database where datname = current_database()) and query not like '%pg_stat_statements%'`)
	ok(t, err)
	out := map[string]int64{}
	var entry string
	var calls int64
	_, err = pgx.ForEachRow(rows, []any{&entry, &calls}, func() error {
		out[entry] = calls
		return nil
	})
	ok(t, err)
	return out
}

// TestPublishTxStoresOddValues checks that empty and missing values and those that need quotes are stored
// unchanged, also by statements for many messages without arrays.
func TestPublishTxStoresOddValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	db, err := sql.Open("pgx", w.cfg.URL)
	ok(t, err)
	defer db.Close()
	ctx := context.Background()
	odd := []string{"", `"`, `\`, `\"`, "{,}", "NULL", "null", " ", "'", "日本語", "a\nb", "$1", "}"}
	var all []outbox.Message
	for _, s := range odd {
		all = append(all,
			outbox.Message{ID: uuid.New(), Topic: "t" + s, Key: s, Type: s, Payload: []byte(s)},
			outbox.Message{ID: uuid.New(), Topic: "t", Key: s, Headers: map[string]string{"h": "x" + s + "x"}},
			outbox.Message{ID: uuid.New(), Topic: "t", Key: s, Payload: []byte{0, 0xff, 0x5c, 0x22}})
	}
	for i, m := range all {
		if m.Validate() != nil {
			all[i].Topic, all[i].Type, all[i].Headers = "t", "", nil
		}
	}
	c := w.claim("s", 1)
	tx, err := db.Begin()
	ok(t, err)
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	ok(t, w.pub.PublishTx(ctx, tx, all...))
	ok(t, tx.Commit())
	sameMessages(t, "odd values", c, all)
	none, empty := value[int](w, "select count(*) from ~outbox where payload is null"), value[int](w, "select count(*) from ~outbox where payload = ''")
	if none != len(odd) || empty != 1 {
		t.Errorf("%d messages without a payload, %d with an empty one, want %d and 1", none, empty, len(odd))
	}
	later := []outbox.Message{text("a", "year"), text("a", "far"), text("b", "past")}
	later[2].ID = uuid.New()
	few := []outbox.Message{{ID: uuid.New(), Topic: "t", Payload: []byte{}}, {ID: uuid.New(), Topic: "t"}}
	later[0].NotBefore, later[1].NotBefore, later[2].NotBefore = time.Now().Add(8760*time.Hour), time.Date(250_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-50, 1, 1, 0, 0, 0, 0, time.UTC)
	tx, err = db.Begin()
	ok(t, err)
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	ok(t, w.pub.PublishTx(ctx, tx, later...))
	ok(t, tx.Commit())
	held, forever := value[int](w, "select count(*) from ~outbox_delayed"), value[int](w, "select count(*) from ~outbox_delayed where not_before = 'infinity'")
	if held != 2 || forever != 1 {
		t.Errorf("%d messages are held back, %d for ever", held, forever)
	}
	sameMessages(t, "a time long ago", c, later[2:])

	tx, err = db.Begin()
	ok(t, err)
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	ok(t, w.pub.PublishTx(ctx, tx, few...))
	ok(t, tx.Commit())
	if n := value[int](w, "select count(*) from ~outbox where payload = ''"); n != 2 {
		t.Errorf("%d messages with an empty payload, want 2", n)
	}
}
