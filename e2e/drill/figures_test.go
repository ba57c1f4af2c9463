package drill

import (
	"context"
	"fmt"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage/postgres"
)

// TestDrillHandOver stops leaders cleanly, again and again, and then kills leaders: first when the membership has settled,
// then so fast that most nodes have just joined. That is a burst, for which a unit may wait a settle window more.
func TestDrillHandOver(t *testing.T) {
	ParallelUnlessMeasured(t)
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			ParallelUnlessMeasured(t)
			handOver(t, name, open(t))
		})
	}
}

func handOver(t *testing.T, store string, c *Cluster) {
	next := 0
	start := func() {
		next++
		c.Start(fmt.Sprintf("n%d", next))
	}
	for range 3 {
		start()
	}
	x := c.Timing()
	var stopLead, stopRun, killLead, killRun, burstLead, burstRun []time.Duration
	for range Times(20) {
		c.Settled(c.Others(nil)...)
		c.Known(x.SettleWindow)
		l, term := c.Leading()
		began := time.Now()
		l.Signal(syscall.SIGTERM)
		lead := c.Until(time.Minute, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
		run := lead + c.Until(time.Minute, "its units run elsewhere", func() bool { return c.Running(c.Others(l)...) })
		stopLead, stopRun = append(stopLead, lead), append(stopRun, run)
		l.Ended(began)
		start()
	}
	kill := func(known time.Duration) (lead, run time.Duration) {
		c.Settled(c.Others(nil)...)
		c.Known(known)
		l, term := c.Leading()
		l.Kill()
		lead = c.Until(time.Minute, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
		run = lead + c.Until(time.Minute, "its units run elsewhere", func() bool { return c.Running(c.Others(l)...) })
		start()
		return lead, run
	}
	for range Times(20) {
		lead, run := kill(x.SettleWindow)
		killLead, killRun = append(killLead, lead), append(killRun, run)
	}
	for range Times(20) {
		lead, run := kill(0)
		burstLead, burstRun = append(burstLead, lead), append(burstRun, run)
	}
	cleanLead, cleanRun := Bound{P99: time.Second}, Bound{P99: time.Second}
	if store == "postgres" {
		cleanLead = Bound{P50: 50 * time.Millisecond, P99: 250 * time.Millisecond}
		cleanRun = Bound{P99: 500 * time.Millisecond}
	}
	Measure(t, store+": clean stop, new leader", cleanLead, stopLead)
	Measure(t, store+": clean stop, its units run elsewhere", cleanRun, stopRun)
	Measure(t, store+": kill -9, fast, new leader", Bound{Max: 2 * time.Second}, killLead)
	Measure(t, store+": kill -9, fast, its units run elsewhere", Bound{Max: 2 * time.Second}, killRun)
	Measure(t, store+": kill -9 again and again, fast, new leader", Bound{Max: 2 * time.Second}, burstLead)
	Measure(t, store+": kill -9 again and again, fast, its units run elsewhere", Bound{Max: 2*time.Second + x.SettleWindow}, burstRun)
	c.Check()
}

// TestDrillPartition cuts off all nodes for less than a lease, and measures how soon the lease is renewed
// once the network is back.
func TestDrillPartition(t *testing.T) {
	t.Parallel()
	c := onPostgres(t)
	proxy, through := behindProxy(t, c.URL)
	for _, name := range []string{"a", "b", "c"} {
		c.StartOn(name, through)
	}
	var healed []time.Duration
	for range Times(20) {
		c.Settled("a", "b", "c")
		term := c.Term()
		proxy.DropAnswers(true)
		c.Until(time.Minute, "answers are swallowed", func() bool { return c.sinceRenewal() > 2500*time.Millisecond })
		renewals := c.renewals()
		proxy.Cut()
		proxy.DropAnswers(false)
		healed = append(healed, c.Until(time.Minute, "the lease is renewed", func() bool { return c.renewals() > renewals || c.Term() > term }))
	}
	Measure(t, "postgres: partition healed, lease renewed", Bound{Max: time.Second}, healed)
	c.Check()
}

// elections returns how many terms began after a term.
func (c *Cluster) elections(term int64) (n int) {
	c.T.Helper()
	events, err := c.Events(0)
	if err != nil {
		c.T.Fatal(err)
	}
	for _, e := range events {
		if e.Kind == daemon.LeaderElected && e.Term > term {
			n++
		}
	}
	return n
}

func (c *Cluster) renewals() int64 {
	s, err := c.Snapshot()
	if err != nil {
		return 0
	}
	return s.Lease.Renewals
}

// sinceRenewal returns for how long no answer has reached the cluster's nodes. When answers are dropped,
// clients give up and connections end, so in the end renewals stop as well.
func (c *Cluster) sinceRenewal() time.Duration {
	s, err := c.Snapshot()
	if err != nil {
		return 0
	}
	return s.Now.Sub(s.Lease.ExpiresAt.Add(-c.Timing().LeaseDuration))
}

func behindProxy(t *testing.T, direct string) (*Proxy, string) {
	t.Helper()
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	proxy := NewProxy(t, u.Host)
	u.Host = proxy.Address()
	return proxy, u.String()
}

// TestDrillDatabaseClock steps the database's clock: +3 s every half second for 30 s, once an hour
// forward, once an hour back. No leader may lose its term. A leader that dies afterwards must be replaced
// within the bound. No fenced write may be lost, even if a writer dies meanwhile.
func TestDrillDatabaseClock(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(pgtest.Config{FakeTime: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	c := onServer(t, server)
	c.steps = true
	for _, name := range []string{"a", "b", "c"} {
		c.Start(name)
	}
	execute(t, c.URL, `CREATE DATABASE writers`)
	w := writersOn(t, server.URL("writers"), true, "w", "x", "y")
	c.Settled("a", "b", "c")
	w.newEffects(5)
	_, term := c.Leading()
	offset := time.Duration(0)
	step := func(d, wait time.Duration) {
		offset += d
		if err := server.StepClock(offset); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c.Until(time.Minute, "time passes", func() bool { return time.Since(began) >= wait })
	}
	steps := Times(60)
	for i := range steps {
		if i == steps/2 {
			w.writing().Kill()
		}
		step(3*time.Second, 500*time.Millisecond)
	}
	w.newEffects(5)
	x := c.Timing()
	step(time.Hour, x.LeaseDuration+2*time.Second)
	step(-time.Hour, x.LeaseDuration+2*time.Second)
	w.writing().Kill()
	w.newEffects(5)
	l, _ := c.Leading()
	Never(t, "postgres: leader changes under steps of the database's clock", c.elections(term))
	l.Kill()
	took := c.Until(time.Minute, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
	Measure(t, "postgres: kill -9 after the clock stepped back, new leader", Bound{Max: x.LeaseDuration + x.HeartbeatInterval + 500*time.Millisecond}, []time.Duration{took})
	c.Until(time.Minute, "its units run elsewhere", func() bool { return c.Running(c.Others(l)...) })
	w.stop()
	w.verdict().report(t, "postgres: steps of the database's clock, writers killed 2 times")
	c.Check()
}

// TestDrillFailover promotes an asynchronous standby that lost the newest rows, under a running cluster.
// No number may repeat, and no unit may have two runs at once.
func TestDrillFailover(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	primary, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { primary.Close() })
	c := onServer(t, primary)
	proxy, through := behindProxy(t, c.URL)
	standby, err := primary.Standby(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Close() })
	for _, name := range []string{"a", "b", "c"} {
		c.StartOn(name, through)
	}
	c.Settled("a", "b", "c")
	// The standby stops replicating here. What follows is missing on it: another term and other generations.
	execute(t, standby.URL("postgres"), `ALTER SYSTEM SET primary_conninfo = ''`)
	execute(t, standby.URL("postgres"), `SELECT pg_reload_conf()`)
	c.Until(time.Minute, "the stream has ended", func() bool { return !streaming(t, standby.URL("postgres")) })
	l, term := c.Leading()
	l.Kill()
	c.Until(time.Minute, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
	c.Until(time.Minute, "its units run elsewhere", func() bool { return c.Running(c.Others(l)...) })
	lost := c.Term()
	before, err := c.Events(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := primary.Stop(pgtest.Kill); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	after, err := postgres.Open(ctx, standby.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(after.Close)
	c.Store = after
	if got := c.Term(); got >= lost {
		t.Fatalf("the standby has term %d: nothing was lost, this proves nothing", got)
	}
	proxy.Switch(fmt.Sprintf("127.0.0.1:%d", standby.Port))
	proxy.Cut()
	c.StartOn("d", through) // a node that has not seen the old store
	c.Until(2*time.Minute, "a new term", func() bool { return c.Term() > lost && c.Leader() != nil })
	c.Until(2*time.Minute, "all units run", func() bool { return c.Running(c.Others(nil)...) })
	now, err := c.Events(0)
	if err != nil {
		t.Fatal(err)
	}
	bad := CheckFailover(before, now)
	for _, b := range bad {
		t.Log(b)
	}
	Never(t, "postgres: asynchronous failover that loses the newest rows, numbers of terms and generations that repeat", len(bad))
	c.Check()
}

func streaming(t *testing.T, url string) (on bool) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, `SELECT exists (SELECT FROM pg_stat_wal_receiver)`).Scan(&on); err != nil {
		t.Fatal(err)
	}
	return on
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
