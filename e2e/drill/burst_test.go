package drill

import (
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/testproc"
)

// TestDrillBurst gives one node many commands at once, on one core that two other programs keep busy for
// a while. A minute after those have ended every command must run, and none may have been withheld from
// the node or abandoned.
func TestDrillBurst(t *testing.T) {
	counts := map[string][]int{"sqlite": {40}, "postgres": {40}}
	busy := 3 * time.Second
	if Full() {
		counts = map[string][]int{"sqlite": {200, 500, 1000}, "postgres": {200}}
		busy = 30 * time.Second
	} else {
		t.Parallel()
	}
	for name, open := range stores {
		for _, n := range counts[name] {
			t.Run(fmt.Sprintf("%s %d", name, n), func(t *testing.T) { burst(t, name, open(t), n, busy) })
		}
	}
}

func burst(t *testing.T, store string, c *Cluster, units int, busy time.Duration) {
	c.Instances = 0
	c.Config = fmt.Sprintf("daemons:\n  exec:\n    - id: drill:sleep\n      command: [sleep, \"100000\"]\n      instances: %d\n", units)
	var burners []*testproc.Process
	onOneCore(t, func() {
		for range 2 {
			p, err := testproc.Start(exec.Command("sh", "-c", "while :; do :; done"))
			if err != nil {
				t.Fatal(err)
			}
			burners = append(burners, p)
		}
		c.Start("a")
	})
	end := func() {
		for _, p := range burners {
			_ = p.Cmd.Process.Kill()
			<-p.Done
		}
	}
	t.Cleanup(end)
	snapshot := time.NewTicker(250 * time.Millisecond) // reading the store costs the node time as well
	defer snapshot.Stop()
	began := time.Now()
	c.Until(busy+time.Minute, "the others have had their time", func() bool { <-snapshot.C; return time.Since(began) >= busy })
	end()
	took := c.Until(10*time.Minute, "every command runs", func() bool {
		<-snapshot.C
		s, err := c.Snapshot()
		return err == nil && countUnits(s, func(u daemon.Record) bool { return u.State == daemon.Active }) == units
	})
	s, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.Events(0)
	if err != nil {
		t.Fatal(err)
	}
	abandoned := 0
	for _, e := range events {
		if e.Kind == daemon.AssignmentAbandoned {
			abandoned++
		}
	}
	what := fmt.Sprintf("%s: %d commands on one core with two burners, fast", store, units)
	count := func(what string, n int) { Count(t, what, n, "0 with the full counts") }
	if Full() {
		count = func(what string, n int) { Never(t, what, n) }
	}
	count(what+", embargoed", countUnits(s, func(u daemon.Record) bool { return len(u.Embargoes) > 0 }))
	count(what+", abandoned", abandoned)
	Measure(t, what+", all active after the burners end", Bound{Max: time.Minute}, []time.Duration{took})
	c.Check()
}

// countUnits counts the units of the drill's commands for which is returns true.
func countUnits(s *daemon.Snapshot, is func(daemon.Record) bool) (n int) {
	for _, u := range s.Units {
		if strings.HasPrefix(string(u.Unit.Daemon), "drill:") && is(u) {
			n++
		}
	}
	return n
}

// onOneCore makes everything that f starts, and its descendants, run on the first core that this process
// may use.
func onOneCore(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	cores := slices.Collect(func(yield func(int) bool) {
		for i := range len(all) * 64 {
			if all.IsSet(i) && !yield(i) {
				return
			}
		}
	})
	one.Set(cores[0])
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.SchedSetaffinity(0, &all); err != nil {
			t.Error(err)
		}
	}()
	f()
}
