package drill

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage"
)

// unowned is how long a key may run nowhere: what a kill takes with the profile fast (7.5 s), and what the other nodes need
// to start hundreds of units.
const unowned = 10 * time.Second

// startsWithin is how many keys that were added at once must run within the bound. More of them have more time.
const startsWithin = 10_000

// TestDrillKeys runs a keyed daemon on many processes while keys come and go, and kills or stops a process now and then. No
// effect may pass the fence out of order, and no key may run nowhere for longer than the bound.
func TestDrillKeys(t *testing.T) {
	ParallelUnlessMeasured(t)
	d := &keyDrill{nodes: 4, keys: 200, change: 4, every: time.Second, lasts: 20 * time.Second, harmEvery: 7 * time.Second, pause: time.Second}
	if Full() { // 10 % of the keys are replaced each minute
		d = &keyDrill{nodes: 20, keys: 10_000, change: 50, every: 3 * time.Second, lasts: 10 * time.Minute, harmEvery: 20 * time.Second, pause: time.Minute}
	}
	d.begin(t)
	d.drill()
	d.check()
}

// TestDrillManyKeys measures what a change of a key costs where there are very many, and no process is harmed.
func TestDrillManyKeys(t *testing.T) {
	ParallelUnlessMeasured(t)
	d := &keyDrill{nodes: 3, keys: 1000, change: 5, every: time.Second, lasts: 5 * time.Second, pause: time.Hour}
	if Full() { // 1,000 changes a minute
		d = &keyDrill{nodes: 20, keys: 100_000, change: 25, every: 3 * time.Second, lasts: time.Minute, pause: time.Hour}
	}
	d.begin(t)
	idle := d.spend(func() { d.Pass(d.lasts) })
	busy := d.spend(d.drill)
	d.check()
	changes := float64(d.made + d.gone - d.keys)
	for _, f := range []struct {
		what       string
		idle, busy float64
		unit       string
	}{
		{"CPU of the server", idle.server, busy.server, "ms"},
		{"CPU of the processes", idle.processes, busy.processes, "ms"},
		{"transactions", idle.transactions, busy.transactions, ""},
	} {
		per := (f.busy - f.idle) * busy.seconds / changes
		Amount(t, d.what()+", "+f.what+" beyond those of the idle cluster", per, strings.TrimSpace(f.unit+" a change"), 0)
	}
}

// begin starts the processes, and waits until all keys run.
func (d *keyDrill) begin(t *testing.T) {
	t.Helper()
	server, err := pgtest.Start(pgtest.Config{Settings: map[string]string{"max_connections": "300"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	d.Cluster, d.server = onServer(t, server), server
	execute(t, d.URL, keepingTable)
	for range d.nodes {
		d.join()
	}
	d.replace(d.keys, 0)
	d.allRun()
	d.ready = Boot()
}

// spent is what a time has cost, a second.
type spent struct{ server, processes, transactions, seconds float64 }

// spend returns what the cluster spends while f runs.
func (d *keyDrill) spend(f func()) spent {
	d.T.Helper()
	t := d.T.(*testing.T)
	read := func() (s spent) {
		s.server = 1000 * serverCPU(t, d.server).Seconds()
		for _, n := range d.Cluster.nodes {
			s.processes += 1000 * processCPU(t, n).Seconds()
		}
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, d.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if err := conn.QueryRow(ctx, `SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()`).Scan(&s.transactions); err != nil {
			t.Fatal(err)
		}
		return s
	}
	began, before := time.Now(), read()
	f()
	after, took := read(), time.Since(began).Seconds()
	return spent{(after.server - before.server) / took, (after.processes - before.processes) / took, (after.transactions - before.transactions) / took, took}
}

// keyDrill is a cluster of keepers.
type keyDrill struct {
	*Cluster
	server           *pgtest.Server
	nodes            int
	keys, change     int           // keys at a time; how many are added and removed in each step
	every, harmEvery time.Duration // pauses between steps, and between harms
	lasts, pause     time.Duration // of the drill; between two effects of a unit

	ready               int64            // on the boot clock: when all of the first keys ran
	started, made, gone int              // nodes and keys so far, keys that were removed
	added, removed      map[string]int64 // by key: when, on the boot clock
	harms               []harm
	halted              *Node
}

// harm is the end of a process, or its stop for long.
type harm struct {
	node string
	at   int64 // on the boot clock
}

// join starts the next keeper.
func (d *keyDrill) join() {
	d.T.Helper()
	d.started++
	d.StartKeeper(fmt.Sprintf("n%d", d.started), d.pause)
}

// replace adds so many new keys and removes the oldest ones. A key never comes back, so each has one beginning and one end.
func (d *keyDrill) replace(add, remove int) {
	d.T.Helper()
	name := func(i int) string { return fmt.Sprintf("key %06d", i) }
	if d.added == nil {
		d.added, d.removed = map[string]int64{}, map[string]int64{}
	}
	for add+remove > 0 {
		c := storage.KeyChange{Daemon: kept, Actor: "drill"}
		for ; add > 0 && len(c.Add) < storage.MaxKeyChanges; add-- {
			c.Add = append(c.Add, name(d.made))
			d.made++
		}
		for ; remove > 0 && len(c.Add)+len(c.Remove) < storage.MaxKeyChanges; remove-- {
			c.Remove = append(c.Remove, name(d.gone))
			d.gone++
		}
		now := Boot()
		d.Until(time.Minute, "keys are changed", func() bool { // a store that is busy with thousands of starts may answer too late
			_, err := d.Store.(storage.KeyStore).ChangeKeys(context.Background(), c)
			if err != nil {
				d.T.Logf("to be repeated: %v", err)
			}
			return err == nil
		})
		for _, key := range c.Add {
			d.added[key] = now
		}
		for _, key := range c.Remove {
			d.removed[key] = now
		}
	}
}

// allRun waits until every key runs on a process that lives.
func (d *keyDrill) allRun() {
	d.T.Helper()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for began := time.Now(); ; {
		<-pause.C
		n, reads := 0, time.Now()
		if s, err := d.Snapshot(); err == nil {
			live := d.Others(nil)
			for i := range s.Units {
				if r := &s.Units[i]; r.State == daemon.Active && !r.Retired && slices.Contains(live, r.Holder.Name) {
					n++
				}
			}
		}
		if n == d.made-d.gone {
			return
		}
		if time.Since(began) > 3*time.Minute+time.Duration(d.keys)*5*time.Millisecond {
			d.T.Fatalf("%d of %d keys run", n, d.made-d.gone)
		}
		pause.Reset(max(500*time.Millisecond, 10*time.Since(reads))) // reading the store costs the nodes time as well
	}
}

// drill replaces keys, and harms processes.
func (d *keyDrill) drill() {
	d.T.Helper()
	began := time.Now()
	for next := began.Add(d.harmEvery); time.Since(began) < d.lasts; {
		d.Pass(d.every)
		d.replace(d.change, d.change)
		if d.harmEvery > 0 && time.Now().After(next) {
			next = next.Add(d.harmEvery)
			d.harm()
		}
	}
	if d.halted != nil {
		d.halted.Signal(syscall.SIGCONT)
	}
	d.allRun()
}

// harm kills a process and starts another, stops one, or continues it, by turns.
func (d *keyDrill) harm() {
	d.T.Helper()
	if d.halted != nil {
		d.halted.Signal(syscall.SIGCONT)
		d.halted = nil
		return
	}
	i := slices.IndexFunc(d.Cluster.nodes, (*Node).Alive) // the oldest, often the leader
	victim := d.Cluster.nodes[i]
	d.harms = append(d.harms, harm{victim.Name, Boot()})
	if len(d.harms)%2 == 0 {
		victim.Signal(syscall.SIGSTOP)
		d.halted = victim
		return
	}
	victim.Kill()
	d.join()
}

func (d *keyDrill) what() string {
	what := fmt.Sprintf("postgres: %d keys on %d processes, fast, %.0f keys replaced a minute", d.keys, d.nodes, float64(d.change)*60/d.every.Seconds())
	if d.harmEvery > 0 {
		what += fmt.Sprintf(", a process killed or stopped every %v", 3*d.harmEvery/2)
	}
	return what
}

// check compares what was written through the fence, and the history, with the promises.
func (d *keyDrill) check() {
	d.T.Helper()
	events, err := d.Events(0)
	if err != nil {
		d.T.Fatal(err)
	}
	for _, bad := range CheckEvents(events, d.Timing()) {
		d.T.Error(bad)
	}
	rows := d.kept()
	disorder := outOfOrder(rows)
	for _, bad := range disorder[:min(len(disorder), 10)] {
		d.T.Error(bad)
	}
	refused := 0
	for _, n := range d.Cluster.nodes {
		refused += strings.Count(n.Output(), "refused ")
	}
	d.T.Logf("%d effects, %d refused by the fence, %d harms, %d events", len(rows), refused, len(d.harms), len(events))
	Never(d.T, d.what()+", effects accepted out of order", len(disorder))
	if len(rows) < d.made {
		d.T.Errorf("%d effects of %d keys: some have never run", len(rows), d.made)
	}
	var first, later []time.Duration
	gaps := d.gaps(events, d.boot())
	for _, g := range gaps {
		if g.from+int64(g.lasted) <= d.ready {
			first = append(first, g.lasted)
		} else {
			later = append(later, g.lasted)
		}
	}
	bound := Bound{Max: unowned, Other: "a kill with profile fast, and the starts"}
	atOnce := bound
	atOnce.Max *= time.Duration(max(1, d.keys/startsWithin))
	Measure(d.T, d.what()+", a key of the first ones runs nowhere, until all run", atOnce, first)
	Measure(d.T, d.what()+", a key runs nowhere", bound, later)
	if d.T.Failed() {
		d.explain(events, gaps)
	}
}

// explain prints the longest gaps, with what happened to their keys and what the drill did.
func (d *keyDrill) explain(events []daemon.Event, gaps []keyGap) {
	d.T.Helper()
	slices.SortFunc(gaps, func(a, b keyGap) int { return cmp.Compare(b.lasted, a.lasted) })
	boot := d.boot()
	for _, g := range gaps[:min(len(gaps), 5)] {
		var all []moment
		for _, h := range d.harms {
			all = append(all, moment{h.at, "the drill harmed " + h.node})
		}
		for i := range events {
			e := &events[i]
			if e.Unit.Key == g.key || e.Unit.Daemon == "" { // the key's own, or one of the cluster
				all = append(all, moment{boot(e.At), line(e)})
			}
		}
		all = slices.DeleteFunc(all, func(m moment) bool { return m.at > g.from+int64(g.lasted+before) })
		d.T.Logf("%s ran nowhere for %v:\n%s", g.key, g.lasted, account(all, g.from))
	}
}

// keptRow is a row of the table: a key's effect, and the run that wrote it.
type keptRow struct {
	Key        string
	Generation int64
	Node       string
}

// kept returns what keepers have written.
func (c *Cluster) kept() []keptRow {
	c.T.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, c.URL)
	if err != nil {
		c.T.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT key, generation, node FROM keeping ORDER BY seq`)
	if err != nil {
		c.T.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[keptRow])
	if err != nil {
		c.T.Fatal(err)
	}
	return all
}

// outOfOrder returns the effects that came after one of a later run, and those of one run on two nodes.
func outOfOrder(rows []keptRow) (bad []string) {
	last := map[string]keptRow{}
	for _, r := range rows {
		before, known := last[r.Key]
		if known && (r.Generation < before.Generation || r.Generation == before.Generation && r.Node != before.Node) {
			bad = append(bad, fmt.Sprintf("%s: an effect of generation %d on %s after one of %d on %s", r.Key, r.Generation, r.Node, before.Generation, before.Node))
		}
		last[r.Key] = r
	}
	return bad
}

// keyLife is where a key runs while the history is read.
type keyLife struct {
	node  string // empty: nowhere
	since int64  // since when nowhere
}

// keyGap is a time for which a key ran nowhere.
type keyGap struct {
	key    string
	from   int64 // on the boot clock
	lasted time.Duration
}

// gaps returns for how long each key ran nowhere between its addition and its removal: after it was added, and after its run
// ended or its process was harmed.
func (d *keyDrill) gaps(events []daemon.Event, boot func(time.Time) int64) (gaps []keyGap) {
	lives := map[string]*keyLife{}
	for key, at := range d.added {
		lives[key] = &keyLife{since: at}
	}
	end := func(key string, l *keyLife, at int64) {
		if gone, ok := d.removed[key]; ok {
			at = min(at, gone)
		}
		if at > l.since {
			gaps = append(gaps, keyGap{key, l.since, time.Duration(at - l.since)})
		}
	}
	harms := slices.SortedFunc(slices.Values(d.harms), func(a, b harm) int { return cmp.Compare(a.at, b.at) })
	var now int64
	for _, e := range events {
		now = boot(e.At)
		for len(harms) > 0 && harms[0].at <= now {
			for _, l := range lives {
				if l.node == harms[0].node {
					*l = keyLife{since: harms[0].at}
				}
			}
			harms = harms[1:]
		}
		l := lives[e.Unit.Key]
		if l == nil {
			continue
		}
		switch e.Kind {
		case daemon.AssignmentActive, daemon.AssignmentResumed:
			if l.node == "" {
				end(e.Unit.Key, l, now)
			}
			l.node = e.Node
		case daemon.AssignmentDeleted, daemon.AssignmentForced, daemon.AssignmentFailed, daemon.AssignmentAbandoned:
			if l.node != "" {
				*l = keyLife{since: now}
			}
		}
	}
	for key, l := range lives {
		if l.node == "" {
			end(key, l, now)
		}
	}
	return gaps
}

// TestKeyGaps: the drill sees each kind of gap, and an effect that is out of order.
func TestKeyGaps(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	e := func(s int, kind daemon.EventKind, key, node string) daemon.Event {
		return daemon.Event{At: at(s), Kind: kind, Unit: daemon.Unit{Daemon: kept, Key: key}, Node: node}
	}
	second := int64(time.Second)
	d := &keyDrill{
		added:   map[string]int64{"a": 0, "b": 0, "c": 0},
		removed: map[string]int64{"b": 20 * second},
		harms:   []harm{{"n1", 10 * second}},
	}
	gaps := d.gaps([]daemon.Event{
		e(1, daemon.AssignmentActive, "a", "n1"), e(2, daemon.AssignmentActive, "b", "n2"),
		e(13, daemon.AssignmentForced, "a", "n1"), e(15, daemon.AssignmentActive, "a", "n2"),
		e(21, daemon.AssignmentDeleted, "b", "n2"), e(30, daemon.NodeRemoved, "", "n1"),
	}, func(t time.Time) int64 { return t.UnixNano() })
	var got []time.Duration
	for _, g := range gaps {
		got = append(got, g.lasted)
	}
	slices.Sort(got)
	if want := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 30 * time.Second}; !slices.Equal(got, want) {
		t.Errorf("gaps %v, want %v: a after 1 s and for 5 s, b after 2 s, c never", got, want)
	}
	bad := outOfOrder([]keptRow{{"a", 1, "n1"}, {"b", 5, "n1"}, {"a", 1, "n1"}, {"a", 3, "n2"}, {"a", 1, "n1"}, {"b", 5, "n2"}})
	if len(bad) != 2 {
		t.Errorf("out of order: %v, want two", bad)
	}
}
