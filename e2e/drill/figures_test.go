package drill

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage/postgres"
)

// TestDrillHandOver stops leaders cleanly, again and again, and then kills them.
func TestDrillHandOver(t *testing.T) {
	Aside(t)
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			Aside(t)
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
	var stopLead, stopRun, killLead, killRun []time.Duration
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
	for range Times(20) {
		c.Settled(c.Others(nil)...)
		l, term := c.Leading()
		l.Kill()
		lead := c.Until(time.Minute, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
		run := lead + c.Until(time.Minute, "its units run elsewhere", func() bool { return c.Running(c.Others(l)...) })
		killLead, killRun = append(killLead, lead), append(killRun, run)
		start()
	}
	clean := map[string]string{"sqlite": "p99 ≤ 1 s", "postgres": "p50 ≤ 50 ms, p99 ≤ 250 ms"}[store]
	Measure(t, store+": clean stop, new leader", clean, stopLead)
	Measure(t, store+": clean stop, its units run elsewhere", map[string]string{"sqlite": "p99 ≤ 1 s", "postgres": "p99 ≤ 500 ms"}[store], stopRun)
	Measure(t, store+": kill -9, fast, new leader", fmt.Sprintf("≤ %v", x.LeaseDuration+500*time.Millisecond), killLead)
	Measure(t, store+": kill -9, fast, its units run elsewhere", fmt.Sprintf("≤ %v", x.NodeRegistrationTTL+1500*time.Millisecond), killRun)
	c.Judge()
}

// TestDrillPartition cuts all nodes off for a while shorter than a lease, and measures how soon
// the lease is renewed once the network is back.
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
		proxy.Swallow(true)
		c.Until(time.Minute, "answers are swallowed", func() bool { return c.sinceRenewal() > 2500*time.Millisecond })
		renewals := c.renewals()
		proxy.Cut()
		proxy.Swallow(false)
		healed = append(healed, c.Until(time.Minute, "the lease is renewed", func() bool { return c.renewals() > renewals || c.Term() > term }))
	}
	Measure(t, "postgres: partition healed, lease renewed", "≤ 1 s", healed)
	c.Judge()
}

func (c *Cluster) renewals() int64 {
	s, err := c.Snapshot()
	if err != nil {
		return 0
	}
	return s.Lease.Renewals
}

// sinceRenewal returns for how long nothing of the cluster reached its nodes: swallowed answers
// make clients give up and connections end, so in the end renewals stop as well.
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

// TestDrillDatabaseClock steps the database's clock: +3 s every half second for 30 s, once by an
// hour forward, once by an hour back. Nobody may lose the lead, and a leader that dies afterwards
// is replaced within the bound.
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
	for _, name := range []string{"a", "b", "c"} {
		c.Start(name)
	}
	c.Settled("a", "b", "c")
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
	for range Times(60) {
		step(3*time.Second, 500*time.Millisecond)
	}
	x := c.Timing()
	step(time.Hour, x.LeaseDuration+2*time.Second)
	step(-time.Hour, x.LeaseDuration+2*time.Second)
	changes := 0
	l, now := c.Leading()
	if now != term {
		changes++
		t.Errorf("the leader changed: term %d became %d", term, now)
	}
	Count(t, "postgres: leader changes under steps of the database's clock", changes, "0")
	l.Kill()
	took := c.Until(time.Minute, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
	Measure(t, "postgres: kill -9 after the clock stepped back, new leader", fmt.Sprintf("≤ %v", x.LeaseDuration+x.HeartbeatInterval+500*time.Millisecond), []time.Duration{took})
	c.Until(time.Minute, "its units run elsewhere", func() bool { return c.Running(c.Others(l)...) })
	c.Judge()
}

// TestDrillFailover promotes an asynchronous standby that lost the newest rows under a living
// cluster: no number repeats, no two runs of a unit at once.
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
	// The standby's stream ends here. What it will not have: another term, other generations.
	execute(t, standby.URL("postgres"), `ALTER SYSTEM SET primary_conninfo = ''`)
	execute(t, standby.URL("postgres"), `SELECT pg_reload_conf()`)
	c.Until(time.Minute, "the stream has ended", func() bool { return !streaming(t, standby.URL("postgres")) })
	l, term := c.Leading()
	l.Kill()
	c.Until(time.Minute, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
	c.Until(time.Minute, "its units run elsewhere", func() bool { return c.Running(c.Others(l)...) })
	lost := c.Term()
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
	c.StartOn("d", through) // one that knows nothing of the store before
	c.Until(2*time.Minute, "a new term", func() bool { return c.Term() > lost && c.Leader() != nil })
	c.Until(2*time.Minute, "all units run", func() bool { return c.Running(c.Others(nil)...) })
	c.Judge()
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

// TestDrillPausedWriter stops the process that holds a unit beyond its lease with SIGSTOP, in the
// middle of its work, and lets it go on when another has taken over: no effect of its is accepted
// out of order, and nothing acknowledged is lost.
func TestDrillPausedWriter(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	ctx := context.Background()
	if _, err := postgres.Migrate(ctx, postgres.Config{URL: url}, postgres.Version); err != nil {
		t.Fatal(err)
	}
	execute(t, url, `CREATE TABLE effect (seq bigserial PRIMARY KEY, n bigint NOT NULL, generation bigint NOT NULL)`)
	store, err := postgres.Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	c := New(t, url, store)
	for _, name := range []string{"a", "b"} {
		c.startWriter(name)
	}
	for range Times(50) {
		holder := c.writing()
		c.newEffects(5)
		holder.Signal(syscall.SIGSTOP)
		c.Until(time.Minute, "another takes over", func() bool { h := c.holder(); return h != "" && h != holder.Name })
		c.newEffects(5)
		holder.Signal(syscall.SIGCONT)
		c.Until(time.Minute, "it is a member again", func() bool { m, ok := holder.Member(); return ok && m.Present() })
	}
	for _, n := range c.nodes {
		n.Stop()
	}
	c.judgeEffects(url)
}

// startWriter starts the test binary as a writer.
func (c *Cluster) startWriter(name string) {
	c.T.Helper()
	self, err := os.Executable()
	if err != nil {
		c.T.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), writerEnv+"="+c.URL, writerNameEnv+"="+name)
	c.launch(name, cmd)
}

// holder returns the name of the node whose run of the writer is active.
func (c *Cluster) holder() string {
	s, err := c.Snapshot()
	if err != nil {
		return ""
	}
	for _, u := range s.Units {
		if u.Unit.Daemon == "drill:writer" && u.State == "active" {
			return u.Holder.Name
		}
	}
	return ""
}

// writing waits until a living node holds the unit and returns it.
func (c *Cluster) writing() (holder *Node) {
	c.Until(time.Minute, "somebody writes", func() bool {
		name := c.holder()
		for _, n := range c.nodes {
			if n.Name == name && n.Alive() {
				holder = n
				return true
			}
		}
		return false
	})
	return holder
}

// newEffects waits for so many more effects.
func (c *Cluster) newEffects(n int) {
	before := c.effects()
	c.Until(time.Minute, "effects come in", func() bool { return c.effects() >= before+n })
}

func (c *Cluster) effects() (n int) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, c.URL)
	if err != nil {
		c.T.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM effect`).Scan(&n); err != nil {
		c.T.Fatal(err)
	}
	return n
}

// judgeEffects compares what is in the table with what writers were told.
func (c *Cluster) judgeEffects(url string) {
	c.T.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		c.T.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT n, generation FROM effect ORDER BY seq`)
	if err != nil {
		c.T.Fatal(err)
	}
	type effect struct{ N, Generation int64 }
	effects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[effect])
	if err != nil {
		c.T.Fatal(err)
	}
	kept, disorder := map[effect]bool{}, 0
	for i, e := range effects {
		kept[e] = true
		if i > 0 && (e.Generation < effects[i-1].Generation || e.N != effects[i-1].N+1) {
			disorder++
			c.T.Errorf("effect %+v came after %+v", e, effects[i-1])
		}
	}
	told, lost, refused := 0, 0, 0
	for _, n := range c.nodes {
		for _, line := range strings.Split(n.Output(), "\n") {
			var e effect
			if _, err := fmt.Sscanf(line, "acknowledged %d %d", &e.N, &e.Generation); err == nil {
				told++
				if !kept[e] {
					lost++
					c.T.Errorf("effect %+v was acknowledged and is gone", e)
				}
			}
			if strings.HasPrefix(line, "refused ") {
				refused++
			}
		}
	}
	c.T.Logf("%d effects, %d acknowledged, %d runs refused by the fence", len(effects), told, refused)
	Count(c.T, "postgres: SIGSTOP beyond the lease (1.4 s), effects accepted out of order", disorder, "0")
	Count(c.T, "postgres: SIGSTOP beyond the lease (1.4 s), acknowledged effects lost", lost, "0")
}
