package drill

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/plan"
)

// light is a ticker that only writes its start and its end, so hundreds of them cost a machine nothing. The time is that
// of /proc/uptime, in hundredths of a second, and the start counts as late as it may have been.
const light = `line() { read up idle < /proc/uptime; echo "$1 $EMITD_UNIT $EMITD_GENERATION $EMITD_NODE $((${up%.*}${up#*.}0000000 + $2))" >> "$DRILL_LOG"; }
trap 'line end 0; exit 0' TERM
line start 9999999
while :; do sleep 3600 & wait; done`

// lightTickers makes the nodes run so many light tickers instead of tickers.
func (c *Cluster) lightTickers(n int) {
	c.T.Helper()
	script := filepath.Join(c.dir, "light.sh")
	if err := os.WriteFile(script, []byte(light), 0o600); err != nil {
		c.T.Fatal(err)
	}
	c.Instances = 0
	c.Config = fmt.Sprintf("daemons:\n  exec:\n    - id: drill:ticker\n      command: [sh, %q]\n      env: {DRILL_LOG: %q}\n      instances: %d\n", script, c.log, n)
}

// TestDrillRolling replaces five processes with 50 commands each, one after another: once each new process joins before
// an old one leaves, and once after it. No unit may move more often than that needs, and none may run twice at once.
func TestDrillRolling(t *testing.T) {
	ParallelUnlessMeasured(t)
	units := 15
	if Full() {
		units = 250
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			ParallelUnlessMeasured(t)
			c := open(t)
			c.lightTickers(units)
			r := &rolling{Cluster: c, units: units}
			for range 5 {
				r.join()
			}
			r.even()
			for _, surge := range []bool{true, false} {
				r.roll(name, surge)
			}
			c.Check()
		})
	}
}

type rolling struct {
	*Cluster
	units int
	n     int // nodes started so far
}

// join starts the next node and waits until it is a member.
func (r *rolling) join() *Node {
	r.T.Helper()
	r.n++
	n := r.Start(fmt.Sprintf("n%d", r.n))
	r.Until(time.Minute, n.Name+" has joined", func() bool { m, ok := n.Member(); return ok && m.Present() })
	return n
}

// loads returns how many units each live node runs, if all of them run.
func (r *rolling) loads() (loads map[string]int, all bool) {
	s, err := r.Snapshot()
	if err != nil {
		return nil, false
	}
	loads, running := map[string]int{}, 0
	for _, name := range r.Others(nil) {
		loads[name] = 0
	}
	for _, u := range s.Units {
		if u.State != daemon.Active {
			continue
		}
		if _, live := loads[u.Holder.Name]; live { // the sweeper is a unit, too
			loads[u.Holder.Name]++
			running++
		}
	}
	return loads, running == len(s.Units) && running > r.units
}

// even waits until all units run and the loads differ by one at most.
func (r *rolling) even() {
	r.T.Helper()
	var loads map[string]int
	tick := time.NewTicker(200 * time.Millisecond) // reading the store costs the nodes time as well
	defer tick.Stop()
	began := time.Now()
	for {
		<-tick.C
		var all bool
		if loads, all = r.loads(); all {
			values := make([]int, 0, len(loads))
			for _, n := range loads {
				values = append(values, n)
			}
			if slices.Max(values)-slices.Min(values) <= 1 {
				return
			}
		}
		if time.Since(began) > 3*time.Minute {
			r.T.Fatalf("the loads are not even: %v", loads)
		}
	}
}

// roll replaces all nodes, and measures.
func (r *rolling) roll(store string, surge bool) {
	r.T.Helper()
	s, err := r.Snapshot()
	if err != nil {
		r.T.Fatal(err)
	}
	began := Boot()
	for _, old := range slices.Clone(r.nodes) {
		if !old.Alive() {
			continue
		}
		if surge {
			r.join()
		}
		old.Stop()
		if !surge {
			r.join()
		}
	}
	r.even()
	events, err := r.Events(s.Head)
	if err != nil {
		r.T.Fatal(err)
	}
	moves, rebalanced, rounds := 0, 0, 0
	var last time.Time
	for _, e := range events {
		switch {
		case e.Daemon != "drill:ticker":
		case e.Kind == daemon.AssignmentAssigned:
			moves++
		case e.Kind == daemon.AssignmentRevoking && strings.HasPrefix(e.Reason, "rebalancing"):
			if rebalanced++; e.At.Sub(last) > time.Second { // a round is one commit
				rounds++
			}
			last = e.At
		}
	}
	// If each new node joins first, every unit moves once. Otherwise one round of rebalancing fills the last new node as well.
	order, most, mostRounds := "remove first", 1+float64(min(plan.DefaultMaxMoves, r.units))/float64(r.units), 1
	if surge {
		order, most, mostRounds = "surge", 1.0, 0
	}
	what := fmt.Sprintf("%s: 5 processes with %d commands replaced one after another, %s", store, r.units, order)
	Amount(r.T, what+", moves", float64(moves)/float64(r.units), "a unit", most)
	Count(r.T, what+", of these in rounds of rebalancing", rebalanced, fmt.Sprintf("≤ %d", mostRounds*plan.DefaultMaxMoves))
	Count(r.T, what+", rounds of rebalancing", rounds, fmt.Sprintf("≤ %d", mostRounds))
	if Full() && (rounds > mostRounds || rebalanced > mostRounds*plan.DefaultMaxMoves) { // a busy machine makes pauses in which membership settles
		r.T.Errorf("%s: %d units moved in %d rounds of rebalancing, and not at most %d rounds of %d", what, rebalanced, rounds, mostRounds, plan.DefaultMaxMoves)
	}
	runs, err := ReadRuns(r.log)
	if err != nil {
		r.T.Fatal(err)
	}
	Measure(r.T, what+", a unit runs nowhere", Bound{Other: "reported"}, gaps(runs, began))
}

// gaps returns how long each unit ran nowhere between two runs, for runs that began after a time.
func gaps(runs []Run, after int64) (out []time.Duration) {
	runs = slices.Clone(runs)
	slices.SortFunc(runs, func(a, b Run) int { return cmp.Or(cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Start, b.Start)) })
	for i := 1; i < len(runs); i++ {
		if a, b := runs[i-1], runs[i]; a.Unit == b.Unit && b.Start > after {
			out = append(out, time.Duration(b.Start-a.End))
		}
	}
	return out
}
