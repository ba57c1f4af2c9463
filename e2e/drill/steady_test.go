package drill

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/testproc"
)

// TestDrillSteady runs clusters with the profile instant while other programs use four fifths of every core. Nothing
// is broken, so no leader may lose its term and no node may be removed. EMITD_TEST_STEADY is how long, such as 1h.
func TestDrillSteady(t *testing.T) {
	busy, exact := 5*time.Second, Full()
	if Full() {
		busy = time.Minute
	}
	if text := os.Getenv("EMITD_TEST_STEADY"); text != "" {
		var err error
		exact = true
		if busy, err = time.ParseDuration(text); err != nil {
			t.Fatalf("EMITD_TEST_STEADY: %v", err)
		}
	}
	ParallelUnlessMeasured(t)
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			c.Profile = "instant"
			steady(t, c, name, busy, exact)
		})
	}
}

func steady(t *testing.T, c *Cluster, store string, busy time.Duration, exact bool) {
	for _, name := range []string{"a", "b", "c"} {
		c.Start(name)
	}
	c.Settled("a", "b", "c")
	_, term := c.Leading()
	for range runtime.NumCPU() {
		p, err := testproc.Start(exec.Command("sh", "-c", "while :; do timeout 0.08 sh -c 'while :; do :; done'; sleep 0.02; done"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Cmd.Process.Kill(); <-p.Done })
	}
	c.Pass(busy)
	events, err := c.Events(0)
	if err != nil {
		t.Fatal(err)
	}
	lost, removed := 0, 0
	for _, e := range events {
		switch {
		case e.Kind == daemon.LeaderElected && e.Term > term:
			lost++
		case e.Kind == daemon.NodeRemoved:
			removed++
		}
	}
	what := fmt.Sprintf("%s: instant, %v beside programs that use 80 %% of each core", store, busy)
	count := func(what string, n int) { Count(t, what, n, "0 on a machine of its own") }
	if exact {
		count = func(what string, n int) { Never(t, what, n) }
	}
	count(what+", terms lost", lost)
	count(what+", nodes removed", removed)
	c.Check()
}
