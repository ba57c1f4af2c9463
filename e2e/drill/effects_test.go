package drill

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage/postgres"
)

// TestDrillPausedWriter stops the process that holds a unit with SIGSTOP, beyond its lease and in the
// middle of its work, and continues it after another process has taken over. None of its effects may be
// accepted out of order, and nothing acknowledged may be lost.
func TestDrillPausedWriter(t *testing.T) {
	t.Parallel()
	c := writersOn(t, pgtest.Database(t), true, "a", "b")
	cycles := Times(50)
	for range cycles {
		c.pauseWriter()
	}
	c.stop()
	v := c.verdict()
	v.report(t, fmt.Sprintf("postgres: SIGSTOP beyond the lease (1.4 s), %d times", cycles))
	if Full() && v.refused == 0 {
		t.Error("the fence refused nobody: the drill drilled nothing")
	}
}

// TestDrillPausedWriterUnfenced does the same without the fence: then the check must soon find a
// violation.
func TestDrillPausedWriterUnfenced(t *testing.T) {
	t.Parallel()
	c := writersOn(t, pgtest.Database(t), false, "a", "b")
	for cycle := range 20 {
		c.pauseWriter()
		if v := c.verdict(); len(v.bad) > 0 {
			t.Logf("found at pause %d: %s", cycle+1, strings.Join(v.bad, "; "))
			return
		}
	}
	t.Error("20 pauses of a writer without a fence, and nothing is wrong: the drill drills nothing")
}

// writers is a cluster of programs that embed a coordinator and append to a table.
type writers struct {
	*Cluster
	fenced  bool
	profile string // of the next writer; "" = the timings of Short
}

// writersOn creates the table in a database and starts writers on it, with or without a fence.
func writersOn(t *testing.T, url string, fenced bool, names ...string) *writers {
	t.Helper()
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
	w := &writers{Cluster: New(t, url, store), fenced: fenced}
	for _, name := range names {
		w.start(name)
	}
	return w
}

// start starts a writer.
func (w *writers) start(name string) *Node {
	w.T.Helper()
	self, err := os.Executable()
	if err != nil {
		w.T.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), writerEnv+"="+w.URL, writerNameEnv+"="+name, writerProfileEnv+"="+w.profile)
	if !w.fenced {
		cmd.Env = append(cmd.Env, writerFenceEnv+"=no")
	}
	return w.launch(name, cmd)
}

// pauseWriter stops the writer that holds the unit until another has written.
func (w *writers) pauseWriter() {
	w.T.Helper()
	holder := w.writing()
	w.newEffects(5)
	holder.Signal(syscall.SIGSTOP)
	w.Until(time.Minute, "another takes over", func() bool { h := w.holder(); return h != "" && h != holder.Name })
	w.newEffects(5)
	holder.Signal(syscall.SIGCONT)
	w.Until(time.Minute, "it is a member again", func() bool { m, ok := holder.Member(); return ok && m.Present() })
}

// stop stops the live writers.
func (w *writers) stop() {
	w.T.Helper()
	for _, n := range w.nodes {
		if n.Alive() {
			n.Stop()
		}
	}
}

// holder returns the name of the node whose run of the writer is active.
func (w *writers) holder() string {
	s, err := w.Snapshot()
	if err != nil {
		return ""
	}
	for _, u := range s.Units {
		if u.Unit.Daemon == "drill:writer" && u.State == daemon.Active {
			return u.Holder.Name
		}
	}
	return ""
}

// writing waits until a live node holds the unit and returns the node.
func (w *writers) writing() (holder *Node) {
	w.T.Helper()
	w.Until(time.Minute, "somebody writes", func() bool {
		name := w.holder()
		for _, n := range w.nodes {
			if n.Name == name && n.Alive() {
				holder = n
				return true
			}
		}
		return false
	})
	return holder
}

// newEffects waits for n more effects.
func (w *writers) newEffects(n int) {
	w.T.Helper()
	before := len(w.effects())
	w.Until(time.Minute, "effects come in", func() bool { return len(w.effects()) >= before+n })
}

// effect is a row of the table: the n-th effect, and the run that wrote it.
type effect struct{ N, Generation int64 }

// effects returns the rows of the table, in the order in which they were written.
func (w *writers) effects() []effect {
	w.T.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.URL)
	if err != nil {
		w.T.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT n, generation FROM effect ORDER BY seq`)
	if err != nil {
		w.T.Fatal(err)
	}
	effects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[effect])
	if err != nil {
		w.T.Fatal(err)
	}
	return effects
}

// verdict is the result of comparing a table with what its writers were told.
type verdict struct {
	effects, acknowledged int
	disorder, lost        int
	refused               int // runs that the fence rejected
	bad                   []string
}

// verdict compares the table with what writers were told. Writers may continue meanwhile.
func (w *writers) verdict() verdict {
	w.T.Helper()
	var acknowledged []effect
	refused := 0
	for _, n := range w.nodes {
		for line := range strings.Lines(n.Output()) {
			var e effect
			if _, err := fmt.Sscanf(line, "acknowledged %d %d\n", &e.N, &e.Generation); err == nil {
				acknowledged = append(acknowledged, e)
			}
			if strings.HasPrefix(line, "refused ") {
				refused++
			}
		}
	}
	v := checkEffects(w.effects(), acknowledged) // read last, so that it has everything that was acknowledged
	v.refused = refused
	return v
}

func checkEffects(effects, acknowledged []effect) verdict {
	v := verdict{effects: len(effects), acknowledged: len(acknowledged)}
	kept := map[effect]bool{}
	for i, e := range effects {
		kept[e] = true
		if i > 0 && (e.Generation < effects[i-1].Generation || e.N != effects[i-1].N+1) {
			v.disorder++
			v.bad = append(v.bad, fmt.Sprintf("effect %+v came after %+v", e, effects[i-1]))
		}
	}
	for _, e := range acknowledged {
		if !kept[e] {
			v.lost++
			v.bad = append(v.bad, fmt.Sprintf("effect %+v was acknowledged and is gone", e))
		}
	}
	return v
}

// report checks the verdict against the promises, and records the figures for the document.
func (v verdict) report(t *testing.T, what string) {
	t.Helper()
	for _, bad := range v.bad {
		t.Error(bad)
	}
	t.Logf("%s: %d effects, %d acknowledged, %d runs refused by the fence", what, v.effects, v.acknowledged, v.refused)
	if v.acknowledged == 0 {
		t.Errorf("%s: nothing was acknowledged", what)
	}
	Never(t, what+", fenced effects accepted out of order", v.disorder)
	Never(t, what+", acknowledged effects lost", v.lost)
}

// TestCheckEffects checks that checkEffects finds each kind of violation.
func TestCheckEffects(t *testing.T) {
	t.Parallel()
	table := []effect{{1, 7}, {2, 7}, {3, 9}, {4, 9}}
	for name, c := range map[string]struct {
		effects, acknowledged []effect
		disorder, lost        int
	}{
		"all is well":          {table, table, 0, 0},
		"not all were told":    {table, table[:2], 0, 0},
		"an older run's later": {append(slices.Clone(table), effect{5, 7}), table, 1, 0},
		"a number again":       {append(slices.Clone(table), effect{4, 11}), table, 1, 0},
		"a number left out":    {append(slices.Clone(table), effect{6, 9}), table, 1, 0},
		"gone":                 {table[:3], table, 0, 1},
		"another run's":        {table, []effect{{3, 7}}, 0, 1},
	} {
		if v := checkEffects(c.effects, c.acknowledged); v.disorder != c.disorder || v.lost != c.lost || len(v.bad) != c.disorder+c.lost {
			t.Errorf("%s: %+v, want %d out of order and %d lost", name, v, c.disorder, c.lost)
		}
	}
}
