package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// A heartbeat is one round trip, whatever it does.
func TestOneRoundTrip(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	proxy := pgtest.NewProxy(t, cfg.URL)
	cfg.URL = proxy.URL()
	store := open(t, cfg)
	a := join(t, store, "a") // makes the connection and, once in a store's life, records the server
	trips := func(what string, call func()) {
		t.Helper()
		before := proxy.Queries()
		call()
		if n := proxy.Queries() - before; n != 1 {
			t.Errorf("%s: %d round trips, want 1", what, n)
		}
	}
	trips("a follower's heartbeat", func() { a.beat() })
	var term node.Term
	trips("an election", func() { term = a.beat(stand).Term })
	trips("a renewal", func() { a.beat(renew(term)) })
	trips("a registration", func() { join(t, store, "b") })
	trips("a heartbeat that reads everything", func() {
		r := a.beat(func(b *storage.Heartbeat) { b.EventsAfter, b.WantMembers = 0, true })
		if len(r.Events) != 2 || len(r.Members) != 2 {
			t.Errorf("%d events and %d members, want 2 and 2", len(r.Events), len(r.Members))
		}
	})
	trips("a commit", func() {
		if _, err := store.Commit(context.Background(), storage.Commit{Term: term.Ref(), Changes: []storage.Change{{Unit: unit(0)}}}); err != nil {
			t.Error(err)
		}
	})
	mustSnapshot(t, store)
	trips("a snapshot of texts that are known", func() { mustSnapshot(t, store) })
}

func mustSnapshot(t testing.TB, store *postgres.Store) *daemon.Snapshot {
	t.Helper()
	snap, err := store.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// A node that is far behind gets the oldest events that it missed, in order, and the rest with the
// next heartbeats. No event comes twice, and none is missing.
func TestCatchingUp(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	store := open(t, cfg)
	a := join(t, store, "a")
	s.exec(t, `insert into `+cfg.Schema+`.event (seq, at, kind, node, node_id, incarnation, daemon, term, term_ordinal, generation, reason)
		select g, now(), case when g % 3 = 0 then 'node.late' else 'fence.waiting' end, '', '', '', '', 0, 0, 0, '' from generate_series(2, 4000) g`)
	s.exec(t, "update "+cfg.Schema+".counter set head = 4000, rolled = 3999")
	var got []int64
	after := int64(0)
	for range 20 {
		r := a.beat(func(b *storage.Heartbeat) { b.EventsAfter = after })
		if len(r.Events) > 500 {
			t.Fatalf("%d events in one reply", len(r.Events))
		}
		for _, e := range r.Events {
			got = append(got, e.Seq)
		}
		if len(r.Events) < 500 {
			after = r.Head
			break
		}
		after = r.Events[len(r.Events)-1].Seq
	}
	want := []int64{1}
	for seq := int64(3); seq <= 4000; seq += 3 {
		want = append(want, seq)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || after != 4000 {
		t.Errorf("got %d events up to %d, want %d up to 4000", len(got), after, len(want))
	}
}

// However many events about units there are, a node that knows all members needs one round trip. If the events about members
// cannot be read, its heartbeat counts all the same, and the next one brings them.
func TestCatchingUpDelaysNoHeartbeat(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	store := open(t, cfg)
	a := join(t, store, "a")
	s.exec(t, "update "+cfg.Schema+".counter set head = 4000")
	mend := store.Break("roll_rest")
	if r := a.beat(func(b *storage.Heartbeat) { b.EventsAfter = 1 }); r.Head != 4000 || len(r.Events) > 0 {
		t.Errorf("%d events up to %d, want none up to 4000", len(r.Events), r.Head)
	}
	s.exec(t, `insert into `+cfg.Schema+`.event (seq, at, kind, node, node_id, incarnation, daemon, term, term_ordinal, generation, reason)
		values (8000, now(), 'node.late', '', '', '', '', 0, 0, 0, '')`)
	s.exec(t, "update "+cfg.Schema+".counter set head = 8000, rolled = 8000")
	if r := a.beat(func(b *storage.Heartbeat) { b.EventsAfter = 1 }); r.Head != 4000 || len(r.Events) > 0 || r.EventsMissing {
		t.Errorf("%d events up to %d, missing %v, want none up to 4000 and none missing", len(r.Events), r.Head, r.EventsMissing)
	}
	mend()
	if r := a.beat(func(b *storage.Heartbeat) { b.EventsAfter = 1 }); r.Head != 8000 || len(r.Events) != 1 {
		t.Errorf("%d events up to %d, want one up to 8000", len(r.Events), r.Head)
	}
}

// What is read in a further round trip counts only if the same server has answered. Another one, such as a standby that
// lags behind, may lack events and units.
func TestFurtherReadingsAreOfTheSameServer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(t, c.in(`insert into %[1]s.event (seq, at, kind, node, node_id, incarnation, daemon, term, term_ordinal, generation, reason)
		values (4000, now(), 'node.late', '', '', '', '', 0, 0, 0, '');
		update %[1]s.counter set head = 4000, rolled = 4000`))
	c.store.ReadElsewhere()
	if r := c.worker.beat(func(b *storage.Heartbeat) { b.EventsAfter = 5 }); r.Head != 5 || len(r.Events) > 0 || r.EventsMissing {
		t.Errorf("%d events up to %d, missing %v, want none up to 5 and none missing", len(r.Events), r.Head, r.EventsMissing)
	}
	c.store.ShareLists()
	if r := c.worker.beat(func(b *storage.Heartbeat) { b.WantMembers = true }); len(r.Members) > 0 {
		t.Errorf("%d members", len(r.Members))
	}
	c.exec(t, c.in(manyUnits))
	if r, err := c.worker.try(); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("%d units, error %v, want %v", len(unitsOf(r)), err, storage.ErrUnavailable)
	}
}

// Sessions of one server are those of one server, whatever their time zones are.
func TestFurtherReadingsInAnotherTimeZone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(t, c.in(manyUnits))
	c.store.ReadInZone("Asia/Kolkata")
	if r, err := c.worker.try(); err != nil || len(r.Units) != 401 {
		t.Errorf("%d units, error %v, want 401", len(unitsOf(r)), err)
	}
	c.store.ShareLists()
	if r := c.worker.beat(func(b *storage.Heartbeat) { b.WantMembers = true }); len(r.Members) != 2 {
		t.Errorf("%d members, want 2", len(r.Members))
	}
}

// own is a server with settings that make its log readable: no full-page images and no background
// writers.
func own(t *testing.T) (cfg postgres.Config, conn *pgx.Conn) {
	t.Helper()
	server, err := pgtest.Start(pgtest.Config{Settings: map[string]string{"full_page_writes": "off", "autovacuum": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	ctx := context.Background()
	if conn, err = pgx.Connect(ctx, server.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(ctx) })
	return postgres.Config{URL: server.URL("postgres"), AutoMigrate: true}, conn
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string) (v T) {
	t.Helper()
	if err := conn.QueryRow(context.Background(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// A follower's heartbeat updates its own row on its page (HOT), touches no other row, and writes a
// short record to the log. A renewal adds as little.
func TestHeartbeatIsCheap(t *testing.T) {
	t.Parallel()
	cfg, conn := own(t)
	store := open(t, cfg)
	leader := join(t, store, "leader")
	term := leader.lead()
	var followers []*actor
	for i := range 8 {
		followers = append(followers, join(t, store, fmt.Sprint("follower-", i)))
	}
	const rows = `select string_agg(concat_ws('/', x.ctid, x.xmin, x.xmax), ' ') from (
		select ctid, xmin, xmax from emitd.term union all select ctid, xmin, xmax from emitd.lease
		union all select ctid, xmin, xmax from emitd.counter union all select ctid, xmin, xmax from emitd.node where name = 'leader') x`
	position := func() int64 {
		return query[int64](t, conn, "select (pg_current_wal_insert_lsn() - '0/0')::bigint")
	}
	beats := func(n int, beat func(i int)) (bytes int64) {
		before := position()
		for i := range n {
			beat(i)
		}
		return (position() - before) / int64(n)
	}

	untouched := query[string](t, conn, rows)
	if n := beats(800, func(i int) { followers[i%len(followers)].beat() }); n > 200 {
		t.Errorf("a follower's heartbeat writes %d bytes of log, want 200 at most", n)
	} else {
		t.Logf("a follower's heartbeat writes %d bytes of log", n)
	}
	if now := query[string](t, conn, rows); now != untouched {
		t.Errorf("a follower's heartbeat touched another row:\n%s\n%s", untouched, now)
	}
	n := beats(400, func(int) { leader.beat(renew(term)) })
	t.Logf("a renewal writes %d bytes of log", n)
	if n > 350 {
		t.Errorf("a renewal writes %d bytes of log, want 350 at most", n)
	}

	store.Close() // sessions report their statistics when they end
	for table, least := range map[string]int64{"node": 1200, "lease": 400} {
		count := func(column string) int64 {
			return query[int64](t, conn, fmt.Sprintf("select coalesce(sum(%s), 0)::bigint from pg_stat_user_tables where relname = '%s'", column, table))
		}
		eventually(t, table+" is accounted for", func() bool { return count("n_tup_upd") >= least })
		updates, hot := count("n_tup_upd"), count("n_tup_hot_upd")
		t.Logf("%s: %d of %d updates stayed on their page", table, hot, updates)
		if hot*100 < updates*99 {
			t.Errorf("%s: only %d of %d updates stayed on their page", table, hot, updates)
		}
	}
}

// What a thousand replicas of one program advertise is stored and sent once.
func TestAdvertsAreShared(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	store := open(t, cfg)
	for i := range 20 {
		join(t, store, fmt.Sprint("n", i))
	}
	other := join(t, store, "other", func(b *storage.Heartbeat) { b.Advert = &daemon.Advert{Kinds: []daemon.Kind{"acme:other"}} })
	snap := mustSnapshot(t, store)
	if len(snap.Nodes) != 21 || len(snap.Adverts) != 2 {
		t.Fatalf("%d nodes with %d adverts, want 21 with 2", len(snap.Nodes), len(snap.Adverts))
	}
	if n := value[int](t, s, "select count(*) from "+cfg.Schema+".advert"); n != 2 {
		t.Errorf("%d texts are stored, want 2", n)
	}
	for _, m := range snap.Nodes {
		want := daemon.Kind("acme:reports")
		if m.Incarnation == other.id.Incarnation {
			want = "acme:other"
		}
		if !snap.Advert(m).RunsKind(want) {
			t.Errorf("%s does not run %s", m.Name, want)
		}
	}
	again := mustSnapshot(t, store)
	for hash, advert := range snap.Adverts {
		if again.Adverts[hash] != advert {
			t.Errorf("advert %s was parsed again", hash)
		}
	}
}

// The store's statements mean the same, whatever the settings of database, role or session are.
func TestSettingsOfOthers(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			settingsOfOthers(t, isolation)
		})
	}
}

func settingsOfOthers(t *testing.T, isolation string) {
	s := newStage(t)
	cfg := s.schema(t)
	database := value[string](t, s, "select current_database()::text")
	for _, setting := range []string{
		"DateStyle = 'German, DMY'", "TimeZone = 'Asia/Kolkata'", "IntervalStyle = 'sql_standard'", "search_path = ''",
		"default_transaction_isolation = '" + isolation + "'", "statement_timeout = '1h'", "extra_float_digits = 0",
		"bytea_output = 'escape'", "backslash_quote = 'on'", "escape_string_warning = 'off'",
	} {
		s.exec(t, "alter database "+database+" set "+setting)
	}
	store := open(t, cfg)
	a := join(t, store, `o'neil\'; drop table x; --`)
	term := a.lead()
	a.assign(term, unit(0), a)
	snap, reply := mustSnapshot(t, store), a.beat()
	if len(reply.Units) != 1 || snap.Nodes[0].Name != a.id.Name || reply.Units[0].Holder.Name != a.id.Name || reply.Term.Leader.Name != a.id.Name {
		t.Fatalf("the name came back as %q, with %+v of %+v", snap.Nodes[0].Name, reply.Units, reply.Term)
	}
	for what, at := range map[string]time.Time{
		"election": snap.Term.ElectedAt, "heartbeat": snap.Nodes[0].LastHeartbeatAt, "assignment": snap.Units[0].AssignedAt,
		"reply": reply.Now, "election in the reply": reply.Term.ElectedAt, "assignment in the reply": reply.Units[0].AssignedAt,
	} {
		if d := time.Since(at).Abs(); d > time.Minute || at.Location() != time.UTC {
			t.Errorf("the time of the %s is %v, %v away", what, at, d)
		}
	}
}
