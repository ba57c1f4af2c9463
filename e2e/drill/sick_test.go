package drill

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
)

// TestDrillSick runs a hundred daemons, of which one crashes everywhere, on nodes of which one makes everything crash.
// Within a minute the one daemon must be quarantined, the one node must count as sick, and all others must run elsewhere.
// Then the two must cost hardly any starts, and emitd must say why they are where they are.
func TestDrillSick(t *testing.T) {
	t.Parallel()
	daemons, nodes, calm := 24, 4, 5*time.Second // six daemons on each: more than make a node sick
	if Full() {
		daemons, nodes, calm = 100, 10, 2*time.Minute
	}
	c := onSQLite(t)
	c.Instances = 0
	starts := filepath.Join(c.dir, "starts")
	var config strings.Builder
	config.WriteString("daemons:\n  exec:\n")
	for i := range daemons {
		script := `echo $EMITD_UNIT $EMITD_NODE >> ` + starts + `; [ $EMITD_NODE = bad ] || exec sleep 86400; exit 1`
		if i == 0 {
			script = `echo $EMITD_UNIT $EMITD_NODE >> ` + starts + `; exit 1`
		}
		fmt.Fprintf(&config, "    - {id: \"acme:d%02d\", command: [sh, -c, %q]}\n", i, script)
	}
	c.Config = config.String()
	for i := range nodes - 1 {
		c.Start(fmt.Sprintf("n%d", i))
	}
	c.Start("bad")
	c.Until(time.Minute, "all nodes are live", func() bool { s, err := c.Snapshot(); return err == nil && len(present(s)) == nodes })
	tick := time.NewTicker(250 * time.Millisecond) // reading the store costs the nodes time as well
	defer tick.Stop()
	began := time.Now()
	c.Until(3*time.Minute, "both are known, and all others run", func() bool {
		<-tick.C
		return c.healthy() == daemons-1 && c.happened(0, daemon.LedgerQuarantined) > 0 && c.happened(0, daemon.LedgerSick) > 0
	})
	took := time.Since(began)
	before := lines(t, starts)
	passed := time.Since(c.Pass(calm))
	what := fmt.Sprintf("sqlite: %d daemons, of which one crashes everywhere, on %d nodes, of which one makes all crash", daemons, nodes)
	Measure(t, what+", known, and the others run", Bound{Max: time.Minute}, []time.Duration{took})
	Count(t, what+", starts until then", before, "counted")
	Amount(t, what+", starts afterwards", float64(lines(t, starts)-before)/passed.Minutes(), "a minute", 12)
	c.Until(time.Minute, "the others run still", func() bool { <-tick.C; return c.healthy() == daemons-1 })
	for command, want := range map[string]string{
		"status":                  "acme:d00 is quarantined",
		"daemon explain acme:d00": "quarantined",
		"daemon explain acme:d01": "bad", // where it has failed, or which is sick
		"node ls -o wide":         "sick",
	} {
		c.Until(time.Minute, fmt.Sprintf("emitd %s says %q", command, want), func() bool {
			<-tick.C
			out, err := exec.Command(Binary(t), append(strings.Fields(command), "--store", c.URL)...).CombinedOutput()
			return err == nil && strings.Contains(string(out), want)
		})
	}
}

// healthy returns how many daemons run on other nodes than the bad one.
func (c *Cluster) healthy() (n int) {
	s, err := c.Snapshot()
	if err != nil {
		return 0
	}
	for _, u := range s.Units {
		if strings.HasPrefix(string(u.Unit.Daemon), "acme:") && u.State == daemon.Active && u.Holder.Name != "bad" {
			n++
		}
	}
	return n
}

func lines(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}
