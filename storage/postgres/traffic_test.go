package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// A call that ends in the middle of a statement keeps its connection: the answer arrives, and no
// other connection is made.
func TestGivenUpCallKeepsItsConnection(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.store.Patient()
	c.worker.beat()
	middle := c.begin(t, c.in("select from %s.node where name = 'worker' for update"))
	made := c.store.Connections()
	ctx, cancel := context.WithCancel(context.Background())
	beat := later(func() (*storage.Reply, error) {
		return c.store.Heartbeat(ctx, storage.Heartbeat{Node: c.worker.id, Seq: 1000, TTL: time.Hour, EventsAfter: -1})
	})
	c.blocked(t, 1)
	cancel()
	select {
	case r := <-beat:
		t.Fatalf("the connection was dropped: %v", r.err)
	case <-time.After(100 * time.Millisecond): // give a wrong event time to happen
	}
	commit(t, middle)
	await(t, "the heartbeat", beat).get(t)
	c.worker.seq = 1000
	c.worker.beat()
	if n := c.store.Connections(); n != made {
		t.Errorf("%d connections were made meanwhile", n-made)
	}
}

// If the server's answer does not arrive within the grace either, the connection is dropped.
func TestSilentServerCostsTheConnection(t *testing.T) {
	t.Parallel()
	cfg := newStage(t).schema(t)
	proxy := pgtest.NewProxy(t, cfg.URL)
	cfg.URL, cfg.QueryTimeout = proxy.URL(), 10*time.Second
	store := open(t, cfg)
	a := join(t, store, "a")
	made := store.Connections()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	proxy.Stall(true)
	if _, err := store.Heartbeat(ctx, storage.Heartbeat{Node: a.id, Seq: 1000, TTL: time.Hour, EventsAfter: -1}); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("error %v, want %v", err, storage.ErrUnavailable)
	}
	proxy.Stall(false)
	a.seq = 1000
	a.beat()
	if n := store.Connections(); n != made+1 {
		t.Errorf("%d connections were made, want one more", n-made)
	}
}

// Only calls wait for late answers. The check whether an idle connection has broken does not.
// Otherwise a call that takes an idle connection would wait for the whole grace.
func TestIdleConnectionsAreTakenAtOnce(t *testing.T) {
	t.Parallel()
	store := open(t, newStage(t).schema(t))
	checked := later(func() (struct{}, error) { return struct{}{}, store.CheckIdle(context.Background()) })
	await(t, "a look at an idle connection", checked).get(t)
}

// blockReports makes n nodes report. That takes every connection that calls other than heartbeats
// may have, three of four. The reports wait for the transaction that is returned.
func (c *cluster) blockReports(t *testing.T, n int) (middle pgx.Tx, reports []<-chan result[[]storage.Outcome]) {
	t.Helper()
	var actors []*actor
	for range n {
		actors = append(actors, join(t, c.store, "a"))
	}
	middle = c.begin(t, c.in("select from %s.unit for update"))
	for _, a := range actors {
		reports = append(reports, later(func() ([]storage.Outcome, error) {
			return c.store.Report(context.Background(), storage.Report{Node: a.id, Seq: 1000, Units: []storage.UnitReport{
				{Unit: unit(0), Generation: 1, Step: daemon.Acknowledge},
			}})
		}))
	}
	c.blocked(t, 3)
	return middle, reports
}

// However many other calls are blocked, a heartbeat finds a connection. So does the call that reads what the answer of the
// first had no room for.
func TestOtherCallsLeaveRoomForHeartbeats(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(t, c.in(manyUnits))
	middle, reports := c.blockReports(t, 8)
	for range 20 {
		if n := len(c.worker.beat().Units); n != 401 {
			t.Fatalf("%d units, want 401", n)
		}
	}
	if n := c.waiting(t); n != 3 {
		t.Errorf("%d calls are blocked, want three of four connections", n)
	}
	commit(t, middle)
	for _, r := range reports {
		await(t, "a report", r).get(t)
	}
}

// If all connections are busy until a call's time is over, the error says so and what would help.
// When they are free again, the same call succeeds.
func TestAllConnectionsBusy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	middle, reports := c.blockReports(t, 3)
	report := storage.Report{Node: c.worker.id, Seq: 1000, Units: []storage.UnitReport{{Unit: unit(0), Generation: 1, Step: daemon.Acknowledge}}}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := c.store.Report(ctx, report)
	if !errors.Is(err, storage.ErrUnavailable) || !strings.Contains(err.Error(), "all 4 connections were busy: raise store.max_connections") {
		t.Errorf("error %v", err)
	}
	commit(t, middle)
	for _, r := range reports {
		await(t, "a report", r).get(t)
	}
	if _, err := c.store.Report(context.Background(), report); err != nil {
		t.Error(err)
	}
}

// A server that has no connection left for the store's role refuses calls, and the error says so.
// As soon as it has one, calls succeed.
func TestServerWithoutConnections(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	role := pgtest.Role(t, s.url)
	s.exec(t, "grant all on schema "+cfg.Schema+" to "+role+"; grant all on all tables in schema "+cfg.Schema+" to "+role)
	cfg.URL = pgtest.WithUser(s.url, role, "secret")
	store := open(t, cfg)
	s.exec(t, "alter role "+role+" connection limit 0")
	s.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", role)
	eventually(t, "the store is refused", func() bool {
		_, err := store.Snapshot(context.Background())
		if err == nil || !errors.Is(err, storage.ErrUnavailable) {
			t.Fatalf("error %v, want one that is %v", err, storage.ErrUnavailable)
		}
		return strings.Contains(err.Error(), "the server has no connection left: lower store.max_connections or raise the server's max_connections")
	})
	s.exec(t, "alter role "+role+" connection limit 1") // refused connections count until they have ended
	eventually(t, "the store answers", func() bool {
		_, err := store.Snapshot(context.Background())
		if err != nil && !errors.Is(err, storage.ErrUnavailable) {
			t.Fatalf("error %v, want one that is %v", err, storage.ErrUnavailable)
		}
		return err == nil
	})
}

// A call that has waited for nearly all of its time is not begun.
func TestHopelessCalls(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		left, total time.Duration
		want        bool
	}{
		{500 * time.Millisecond, 500 * time.Millisecond, false},
		{100 * time.Millisecond, 500 * time.Millisecond, false},
		{99 * time.Millisecond, 500 * time.Millisecond, true},
		{-time.Second, 5 * time.Second, true},
	} {
		if got := postgres.Hopeless(tt.left, tt.total); got != tt.want {
			t.Errorf("%v left of %v: %v", tt.left, tt.total, got)
		}
	}
}

// Stamps that are requested while a batch is in flight are sent together.
func TestStampsTravelTogether(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const many = 100
	middle, reports := c.blockReports(t, 3)
	stamped := []<-chan result[struct{}]{}
	call := func(ctx context.Context, f daemon.Fence) {
		stamped = append(stamped, later(func() (struct{}, error) { return struct{}{}, c.store.StampFence(ctx, f) }))
	}
	call(context.Background(), daemon.Fence{Unit: unit(0), Generation: 7})
	eventually(t, "the first is on its way", func() bool { return c.store.StampsWaiting() == 0 && c.store.StampsTravel() })
	for i := range many {
		call(context.Background(), daemon.Fence{Unit: unit(i + 1), Generation: 7})
	}
	gone, cancel := context.WithCancel(context.Background())
	call(gone, daemon.Fence{Unit: unit(many + 1), Generation: 7})
	eventually(t, "the others wait", func() bool { return c.store.StampsWaiting() == many+1 })
	cancel()
	if r := await(t, "who gives up", stamped[many+1]); !errors.Is(r.err, context.Canceled) {
		t.Errorf("error %v, want %v", r.err, context.Canceled)
	}
	commit(t, middle)
	for _, r := range reports {
		await(t, "a report", r).get(t)
	}
	for _, r := range stamped[:many+1] {
		await(t, "a stamp", r).get(t)
	}
	if n := value[int](t, c.stage, c.in("select count(*) from %s.fence where generation = 7")); n != many+1 {
		t.Errorf("%d fences are stamped, want %d: all but that of who gave up", n, many+1)
	}
	if n := value[int](t, c.stage, c.in("select count(distinct xmin::text) from %s.fence where generation = 7")); n != 2 {
		t.Errorf("%d transactions stamped, want two", n)
	}
}

// Of several stamps of one unit in a batch, the highest generation gets the fence. A stamp whose
// fence a transaction holds does not stop the others.
func TestStampsInOneBatchAreCheckedApart(t *testing.T) {
	t.Parallel()
	s, store := effects(t)
	ctx := context.Background()
	held := daemon.Fence{Unit: unit(1), Generation: 1}
	stamp(t, store, held)
	tx := s.begin(t)
	if err := store.Fence(ctx, tx, held); err != nil {
		t.Fatal(err)
	}
	got := store.StampBatch(
		daemon.Fence{Unit: unit(0), Generation: 5}, daemon.Fence{Unit: unit(0), Generation: 6},
		daemon.Fence{Unit: unit(1), Generation: 2}, daemon.Fence{Unit: unit(2), Generation: 3}, daemon.Fence{Unit: unit(1), Generation: 1},
	)
	if want := []int64{6, 6, 1, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("the fences hold %v, want %v", got, want)
	}
}

// Many heartbeats leave connections for the leader's, and for what the answer of the leader's had no room for.
func TestHeartbeatsLeaveRoomForTheLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *postgres.Config) { cfg.MaxConns = 8 })
	c.exec(t, c.in(manyEvents))
	middle := c.begin(t, c.in("select from %s.node where name <> 'leader' for update"))
	var beats []<-chan result[*storage.Reply]
	for range 10 {
		beats = append(beats, later(func() (*storage.Reply, error) {
			return c.store.Heartbeat(context.Background(), storage.Heartbeat{Node: c.worker.id, Seq: 1000, TTL: time.Hour, EventsAfter: -1})
		}))
	}
	c.blocked(t, 6) // of eight connections: one is for renewals, one for passes
	if r := c.leader.beat(renew(c.term), func(b *storage.Heartbeat) { b.EventsAfter = 5 }); r.Verdict != storage.Renew || len(r.Events) != 400 {
		t.Errorf("verdict %v and %d events, want a renewal and 400", r.Verdict, len(r.Events))
	}
	commit(t, middle)
	for _, b := range beats {
		if r := await(t, "a heartbeat", b); r.err != nil && !errors.Is(r.err, storage.ErrStaleSeq) {
			t.Error(r.err)
		}
	}
}

// Every call that a heartbeat makes has a rank. One that was forgotten would wait behind reports and commands, and the node
// would be taken for dead.
func TestCallsOfHeartbeatsHaveRanks(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(t, c.in(manyUnits))
	c.exec(t, c.in(manyEvents))
	var calls postgres.Operations
	calls.Listen(c.store)
	events := func(b *storage.Heartbeat) { b.EventsAfter = 5 }
	register := func(b *storage.Heartbeat) { b.Advert = &daemon.Advert{} }
	late := func(b *storage.Heartbeat) { b.Seq = 1 }
	for _, tt := range []struct {
		what string
		call func()
		want string
	}{
		{"a heartbeat", func() { c.worker.beat() }, "heartbeat, heartbeat rest"},
		{"a registration", func() { c.worker.beat(register) }, "register, register rest"},
		{"a registration that is repeated", func() {
			c.store.LoseAnswer(c.worker.id.Incarnation)
			c.worker.beat(register)
		}, "register again, register again rest"},
		{"a renewal", func() { c.leader.beat(renew(c.term), events) }, "renew, renew rest"},
		{"a candidacy", func() { c.worker.beat(stand) }, "stand"},
		{"a late heartbeat", func() { _, _ = c.worker.try(late) }, "heartbeat, standing"},
	} {
		tt.call()
		names := calls.Take()
		if got := strings.Join(names, ", "); got != tt.want {
			t.Errorf("%s calls %s, want %s", tt.what, got, tt.want)
		}
		if without := postgres.Unranked(names); len(without) > 0 {
			t.Errorf("%s: %q have no rank", tt.what, without)
		}
	}
	c.exec(t, c.in("update %[1]s.counter set head = head + 1000, rolled = head + 1000"))
	c.leader.beat(renew(c.term), events)
	c.store.ShareLists()
	c.leader.beat(func(b *storage.Heartbeat) { b.WantMembers = true })
	if names := calls.Take(); len(names) != 4 || len(postgres.Unranked(names)) > 0 {
		t.Errorf("calls %q, %q without a rank", names, postgres.Unranked(names))
	}
}
