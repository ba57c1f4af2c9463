package drill

import (
	"fmt"
	"testing"
	"time"
)

// TestDrillLostHost stops the leader's process with SIGSTOP for good. To the other nodes this looks like
// the loss of its host: nothing proves that the process has ended, so its lease and then its registration
// have to expire.
func TestDrillLostHost(t *testing.T) {
	ParallelUnlessMeasured(t)
	// The units' bound covers a round of placing: the runs of a node that is only late end first.
	elsewhere := map[string]time.Duration{"fast": 7500 * time.Millisecond, "instant": 2 * time.Second}
	for name, open := range stores {
		for profile, bound := range elsewhere {
			t.Run(name+" "+profile, func(t *testing.T) {
				ParallelUnlessMeasured(t)
				c := open(t)
				c.Profile = profile
				lostHost(t, c, fmt.Sprintf("%s: host lost, %s", name, profile), Times(5), c.Timing().LeaseDuration+500*time.Millisecond, bound)
			})
		}
	}
}

// TestDrillKilledInstant kills the leader's process with profile instant. The other nodes of its host witness that it has
// ended, and wait neither for its lease nor for its registration.
func TestDrillKilledInstant(t *testing.T) {
	ParallelUnlessMeasured(t)
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			ParallelUnlessMeasured(t)
			c := open(t)
			c.Profile = "instant"
			killed(t, c, name+": kill -9, instant")
		})
	}
}

func killed(t *testing.T, c *Cluster, what string) {
	next := 0
	start := func() {
		next++
		c.Start(fmt.Sprintf("n%d", next))
	}
	for range 3 {
		start()
	}
	leader, elsewhere := Bound{Max: 500 * time.Millisecond}, Bound{Max: 2 * time.Second}
	var lead, run []time.Duration
	for range Times(20) {
		c.Settled(c.Others(nil)...)
		c.Known(c.Timing().SettleWindow)
		l, term := c.Leading()
		l.Kill()
		began := Boot()
		took := c.Until(time.Minute, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
		lead = append(lead, took)
		took += c.Until(time.Minute, "its units run elsewhere", func() bool { return c.Running(c.Others(l)...) })
		run = append(run, took)
		if lead[len(lead)-1] > leader.Max || took > elsewhere.Max {
			t.Logf("%s, number %d: %v until its units ran elsewhere, from its end on:\n%s", what, len(run), took, c.since(began))
		}
		start()
	}
	Measure(t, what+", new leader", leader, lead)
	Measure(t, what+", its units run elsewhere", elsewhere, run)
	c.Check()
}

// TestDrillDefaultProfile does the same with the timings of profile default, with wake-ups and without.
// It takes minutes and runs with the full counts only.
func TestDrillDefaultProfile(t *testing.T) {
	if !Full() {
		t.Log("the default profile takes minutes: make drills measures it")
		return
	}
	t.Parallel()
	for name, d := range map[string]struct {
		config string
		run    time.Duration
	}{
		"with wake-ups":    {"", 93 * time.Second},
		"without wake-ups": {"store: {notify: poll}", 115 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := onPostgres(t)
			c.Profile, c.Config = "default", d.config
			lostHost(t, c, "postgres: host lost, default, "+name, 1, 62*time.Second, d.run)
		})
	}
}

func lostHost(t *testing.T, c *Cluster, what string, times int, leader, elsewhere time.Duration) {
	next := 0
	start := func() {
		next++
		c.Start(fmt.Sprintf("n%d", next))
	}
	for range 3 {
		start()
	}
	var lead, run []time.Duration
	for range times {
		c.Settled(c.Others(nil)...)
		c.Known(c.Timing().HeartbeatInterval)
		l, term := c.Leading()
		l.Freeze()
		began := Boot()
		took := c.Until(2*leader, "a new leader", func() bool { return c.Term() > term && c.Leader() != l })
		lead = append(lead, took)
		took += c.Until(2*elsewhere, "its units run elsewhere", func() bool { return c.Running(c.Others(l)...) })
		run = append(run, took)
		if lead[len(lead)-1] > leader || took > elsewhere {
			t.Logf("%s, number %d: %v until its units ran elsewhere, from its stop on:\n%s", what, len(run), took, c.since(began))
		}
		l.Kill()
		start()
	}
	Measure(t, what+", new leader", Bound{Max: leader}, lead)
	Measure(t, what+", its units run elsewhere", Bound{Max: elsewhere}, run)
	c.Check()
}
