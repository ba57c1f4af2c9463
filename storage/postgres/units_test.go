package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// sameAsWhole compares a snapshot of a process that knows the units with one that reads everything.
func (c *cluster) sameAsWhole(t *testing.T) *daemon.Snapshot {
	t.Helper()
	got := mustSnapshot(t, c.store)
	if whole := mustSnapshot(t, open(t, c.cfg)); fmt.Sprint(got.Units) != fmt.Sprint(whole.Units) {
		t.Errorf("units\n%v, want\n%v", got.Units, whole.Units)
	}
	return got
}

// Each kind of change reaches the next snapshot of a process that has read the units before.
func TestSnapshotsSeeEveryChange(t *testing.T) {
	t.Parallel()
	const insert = `insert into %[1]s.unit (daemon, index, state, name, node_id, incarnation, generation, term, since,
		acknowledge_timeout, drain_timeout, failures, forced, retired, reason, error)
		select 'acme:more', i, 'unassigned', '', '', '', 0, 0, now(), 0, 0, 0, false, false, '', '' from generate_series(0, 9) i;`
	for name, change := range map[string]string{
		"nothing":              "select from %[1]s.unit",
		"a unit":               "update %[1]s.unit set reason = 'other' where index = 0",
		"a new unit":           insert,
		"a unit is gone":       "delete from %[1]s.unit where daemon = 'acme:reports'",
		"one gone and one new": insert + "delete from %[1]s.unit where daemon = 'acme:reports'",
		"all units are gone":   "truncate %[1]s.unit",
		"all are new":          "create table %[1]s.old as select * from %[1]s.unit; truncate %[1]s.unit;" + insert,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.exec(t, c.in(copyUnits+"index"+restOfUnit+" from %[1]s.unit"))
			before := c.sameAsWhole(t)
			c.exec(t, c.in(change))
			if after := c.sameAsWhole(t); fmt.Sprint(after.Units) == fmt.Sprint(before.Units) != (name == "nothing") {
				t.Errorf("units before\n%v, after\n%v", before.Units, after.Units)
			}
			c.exec(t, c.in("update %[1]s.unit set reason = 'again'"))
			c.sameAsWhole(t)
		})
	}
}

// A row that was written so long ago that its transaction's number looks like a later one says nothing about the transaction
// that will have this number.
func TestNumbersOfLaterTransactionsAreNotSeen(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	got := value[string](t, s, `with numbers as (select pg_current_xact_id()::text::bigint as now)
		select replace(`+postgres.SeenTransactions()+`, now::text, 'now')
		from numbers, lateral (values (now::text::xid), ((now + 1000)::text::xid), ((now + 2147483000)::text::xid)) as u (xmin) group by now`)
	if got != "{now}" {
		t.Errorf("seen are %s", got)
	}
}

// A transaction that began before a snapshot and ends after it reaches the next one, although later transactions ended
// before.
func TestSnapshotsSeeLateTransactions(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(t, c.in(copyUnits+"index"+restOfUnit+" from %[1]s.unit"))
	mustSnapshot(t, c.store)
	late := c.begin(t, c.in("create table %[1]s.late ()")) // has a number, and changes nothing yet
	c.exec(t, c.in("update %[1]s.unit set reason = 'early' where daemon = 'acme:first'"))
	c.sameAsWhole(t)
	c.exec(t, c.in("update %[1]s.unit set reason = 'early, again' where daemon = 'acme:first'"))
	c.sameAsWhole(t)
	if _, err := late.Exec(context.Background(), c.in("update %[1]s.unit set reason = 'late' where daemon = 'acme:reports'")); err != nil {
		t.Fatal(err)
	}
	commit(t, late)
	if s := c.sameAsWhole(t); s.Units[len(s.Units)-1].Reason != "late" {
		t.Errorf("units %+v", s.Units)
	}
}

// While a process reads the units in pages, others write. The snapshot is whole nevertheless.
func TestUnitsChangeWhileTheyAreLoaded(t *testing.T) {
	t.Parallel()
	const insert = `insert into %[1]s.unit (daemon, index, state, name, node_id, incarnation, generation, term, since,
		acknowledge_timeout, drain_timeout, failures, forced, retired, reason, error)
		select '`
	const values = `', i, 'unassigned', '', '', '', 0, 0, now(), 0, 0, 0, false, false, '', '' from generate_series(0, 9) i;`
	for name, change := range map[string]string{
		"nothing":                   "select from %[1]s.unit",
		"a unit of the first page":  "update %[1]s.unit set reason = 'other' where daemon = 'acme:b' and index = 1",
		"a unit of a later page":    "update %[1]s.unit set reason = 'other' where daemon = 'acme:b' and index = 8",
		"new before the first page": insert + "acme:a" + values,
		"new behind the last page":  insert + "acme:z" + values,
		"one of the first is gone":  "delete from %[1]s.unit where daemon = 'acme:b' and index = 1",
		"one gone and one new":      insert + "acme:a" + values + "delete from %[1]s.unit where daemon = 'acme:b' and index < 3",
		"all are gone":              "truncate %[1]s.unit",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.exec(t, c.in(insert+"acme:b"+values))
			store := open(t, c.cfg)
			if store.LoadPage(3) {
				t.Fatal("the first page is the last one")
			}
			c.exec(t, c.in(change))
			store.LoadPage(3)
			c.exec(t, c.in("update %[1]s.unit set reason = 'again' where daemon = 'acme:b' and index = 2"))
			want := value[string](t, c.stage, c.in("select coalesce(string_agg(daemon || '/' || index || ' ' || reason, ',' order by daemon, index), '') from %[1]s.unit"))
			for range 2 {
				var got []string
				for _, r := range mustSnapshot(t, store).Units {
					got = append(got, r.Unit.String()+" "+r.Reason)
				}
				if strings.Join(got, ",") != want {
					t.Errorf("units\n%v, want\n%v", strings.Join(got, ","), want)
				}
			}
		})
	}
}

// More changes than one call may read are read in pages, also while another transaction runs for a long time.
func TestManyChangesAreLoadedInPages(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	running := c.begin(t, c.in("create table %[1]s.late ()")) // has a number, older than what follows
	defer func() { commit(t, running) }()
	if s := mustSnapshot(t, c.store); len(s.Units) != 1 {
		t.Fatalf("%d units", len(s.Units))
	}
	c.exec(t, c.in(copyUnits+"i"+restOfUnit+` from %[1]s.unit u, generate_series(1, 12000) i`))
	if s := mustSnapshot(t, c.store); len(s.Units) != 12001 {
		t.Errorf("%d units after a change of 12,000, want 12,001", len(s.Units))
	}
	c.exec(t, c.in("update %[1]s.unit set reason = 'other' where index %% 2 = 0"))
	other := 0
	for _, r := range mustSnapshot(t, c.store).Units {
		if r.Reason == "other" {
			other++
		}
	}
	if other != 6001 {
		t.Errorf("%d units have changed, want 6,001", other)
	}
	c.exec(t, c.in("update %[1]s.unit set reason = 'one' where daemon = 'acme:first' and index = 7"))
	if n := c.store.UnitsRead(); n != 1 {
		t.Errorf("a snapshot after one change reads %d units while a transaction runs that is older than all of them", n)
	}
}

// A call that has too little time for all units leaves what it has read to the next one.
func TestLoadingGoesOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(t, c.in(copyUnits+"i"+restOfUnit+` from %[1]s.unit u, generate_series(1, 999) i`))
	store := open(t, c.cfg)
	for range 9 {
		store.LoadPage(100)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	if s, err := store.Snapshot(ctx); err != nil || len(s.Units) != 1000 {
		t.Errorf("%v, %v", s, err)
	}
	over, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	store.ForgetUnits()
	if _, err := store.Snapshot(over); !errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a snapshot without time: %v", err)
	}
	if s, err := store.Snapshot(ctx); err != nil || len(s.Units) != 1000 {
		t.Errorf("the next snapshot: %v, %v", s, err)
	}
}

// A snapshot after a change reads only the units that have changed. The server is this test's own: a transaction that runs
// in another database makes a snapshot read more.
func TestSnapshotsReadOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c := &cluster{stage: &stage{url: server.URL("postgres"), pool: pool}}
	c.cfg = postgres.Config{URL: c.url, Schema: "s", QueryTimeout: waitTimeout, AutoMigrate: true}
	c.store = open(t, c.cfg)
	c.leader = join(t, c.store, "leader")
	c.term = c.leader.lead()
	c.run = c.leader.assign(c.term, unit(0), c.leader)
	c.exec(t, c.in(copyUnits+"i"+restOfUnit+` from %[1]s.unit u, generate_series(1, 999) i`))
	if s := mustSnapshot(t, c.store); len(s.Units) != 1000 {
		t.Fatalf("%d units", len(s.Units))
	}
	c.exec(t, c.in("update %[1]s.unit set reason = 'other' where index < 5 and daemon = 'acme:first'"))
	if n := c.store.UnitsRead(); n != 4 {
		t.Errorf("a snapshot after four changes reads %d units", n)
	}
	if n := c.store.UnitsRead(); n != 0 {
		t.Errorf("a snapshot after no change reads %d units", n)
	}
	c.mustCommit(t, storage.Change{Unit: unit(0), Step: daemon.Revoke, Generation: c.run.Generation, State: daemon.Active})
	if n := c.store.UnitsRead(); n != 1 {
		t.Errorf("a snapshot after a commit of one change reads %d units", n)
	}
	// A crash of one process makes the server recover. It may have lost the newest transactions, whose numbers it gives again.
	const resets = "select pg_stat_get_bgwriter_stat_reset_time()::text"
	before, victim := value[string](t, c.stage, resets), value[int](t, c.stage, "select pg_backend_pid()")
	if p, err := os.FindProcess(victim); err != nil || p.Kill() != nil {
		t.Fatalf("the server's process %d does not end: %v", victim, err)
	}
	eventually(t, "the server has recovered", func() bool {
		var now string
		pool.Reset()
		return pool.QueryRow(t.Context(), resets).Scan(&now) == nil && now != before
	})
	c.store.Patient()
	c.exec(t, c.in("update %[1]s.unit set reason = 'after the recovery' where index = 0"))
	if n := c.store.UnitsRead(); n != 1000 {
		t.Errorf("a snapshot after the server's recovery reads %d units", n)
	}
}

// copyUnits begins a statement that copies units under another name.
const copyUnits = "insert into %[1]s.unit (daemon, index" + restOfUnit + ") select 'acme:first', "

// restOfUnit are the columns of the table unit after its key.
const restOfUnit = `, state, name, node_id, incarnation, generation, term, since, assigned_at, revoked_at, acknowledge_timeout,
	drain_timeout, failures, forced, retired, reason, error, embargoes, failing_since, retry_at`

// BenchmarkSnapshot reads a hundred thousand units: all of them, and again after nothing or one unit has changed.
func BenchmarkSnapshot(b *testing.B) {
	s := newStage(b)
	cfg := s.schema(b)
	c := &cluster{stage: s, cfg: cfg}
	s.exec(b, c.in(`insert into %[1]s.unit (daemon, index`+restOfUnit+`) select 'acme:many', i, 'active', 'node-' || i %% 1000, gen_random_uuid(),
		gen_random_uuid(), 1, 1, now(), now(), null, 30e9, 30e9, 0, false, false, 'least loaded', '', null, null, null
		from generate_series(1, 100000) i`))
	store := open(b, cfg)
	for _, bb := range []struct {
		name   string
		before func()
	}{
		{"whole", func() { store = open(b, cfg) }},
		{"unchanged", func() {}},
		{"one changed", func() { s.exec(b, c.in("update %[1]s.unit set reason = 'x' where index = 5")) }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				bb.before()
				b.StartTimer()
				mustSnapshot(b, store)
			}
		})
	}
}
