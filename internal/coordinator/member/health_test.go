package member_test

import (
	"errors"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// The store knows a unit whose run fails again and again: how often, since when, why, and when it is tried next.
// Reports go with heartbeats, a single failure is not reported, and a run that lives long enough counts as well
// again.
func TestCrashLoopIsReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, advert("acme:work", 1))
	c.until(10*time.Second, "the unit runs", func() bool { return c.total() == 1 })
	p, u := c.nodes[0], daemon.Unit{Daemon: "acme:work"}
	fail := func(n int, pause time.Duration) {
		c.deliver(p, member.RunFailed{Fence: daemon.Fence{Unit: u, Generation: p.running[u]}, Err: errors.New("exit status 1"), Failures: n, RetryIn: pause})
	}
	row := func() daemon.Record {
		snap, err := c.store.Snapshot(t.Context())
		if err != nil || len(snap.Units) != 1 {
			t.Fatalf("%v, %+v", err, snap)
		}
		return snap.Units[0]
	}
	c.run(3 * time.Second)
	fail(1, 100*time.Millisecond)
	c.run(3 * time.Second)
	if r := row(); r.Failures != 0 {
		t.Errorf("one failure was reported: %+v", r)
	}
	p.calls = nil
	for n := 2; n <= 40; n++ { // within two heartbeats
		fail(n, 20*time.Second)
		c.run(50 * time.Millisecond)
	}
	c.run(1500 * time.Millisecond)
	r, reports := row(), 0
	for _, call := range p.calls {
		if call.Report != nil {
			reports++
		}
	}
	if r.Failures != 40 || r.Error != "exit status 1" || r.FailingSince.IsZero() || !r.RetryAt.After(r.FailingSince.Add(15*time.Second)) || r.State != daemon.Active {
		t.Errorf("the row is %+v", r)
	}
	if reports > 5 {
		t.Errorf("%d reports of 39 failures, want one a heartbeat", reports)
	}
	c.run(70 * time.Second) // it was started again after 20 s
	if row().Failures != 40 {
		t.Errorf("the failures were forgotten before the run had lived %v", daemon.FailuresResetAfter)
	}
	c.run(15 * time.Second)
	if r := row(); r.Failures != 0 || !r.FailingSince.IsZero() {
		t.Errorf("a run that lives is not well: %+v", r)
	}
}

// A run that fails after it has lasted is not in a crash loop: the failures before it count no more, and its own is the
// first. That goes for an agent that hangs as well.
func TestARunThatLastedHasRecovered(t *testing.T) {
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		work := advert("acme:work", 1)
		work.Specs[0].StallTimeout = time.Hour
		c := newCluster(t, 1, work)
		c.until(10*time.Second, "the unit runs", func() bool { return c.total() == 1 })
		p, u := c.nodes[0], daemon.Unit{Daemon: "acme:work"}
		fail := func(in member.RunFailed) {
			in.Fence, in.Err = daemon.Fence{Unit: u, Generation: p.running[u]}, errors.New("exit status 1")
			c.deliver(p, in)
			c.run(3 * time.Second)
		}
		failures := func(want int) {
			t.Helper()
			snap, err := c.store.Snapshot(t.Context())
			if err != nil || len(snap.Units) != 1 || snap.Units[0].Failures != want {
				t.Errorf("hangs %v: want %d failures: %+v, %v", hangs, want, snap, err)
			}
		}
		for range 3 {
			fail(member.RunFailed{RetryIn: time.Second})
		}
		failures(3)
		c.run(10 * time.Minute)
		failures(3)
		fail(member.RunFailed{RetryIn: time.Second, Hangs: hangs, Lasted: true})
		failures(0)
		if hangs {
			fail(member.RunFailed{RetryIn: time.Second, Lasted: true}) // it has returned
			failures(0)
		}
		fail(member.RunFailed{RetryIn: time.Second})
		failures(2)
	}
}

// A run that is not ready yet has not worked, however long each of its attempts takes to fail.
func TestARunThatNeverGetsReadyHasNotRecovered(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, advert("acme:work", 1))
	c.nodes[0].never = "acme:work"
	c.until(10*time.Second, "the unit runs", func() bool { return c.total() == 1 })
	p, u := c.nodes[0], daemon.Unit{Daemon: "acme:work"}
	for range 3 {
		c.deliver(p, member.RunFailed{Fence: daemon.Fence{Unit: u, Generation: p.running[u]}, Err: errors.New("never got ready"), Lasted: true})
		c.run(100 * time.Millisecond)
	}
	c.run(3 * time.Second)
	snap, err := c.store.Snapshot(t.Context())
	if err != nil || len(snap.Units) != 1 || !snap.Units[0].Crashing() {
		t.Errorf("it looks well: %+v, %v", snap, err)
	}
}

// Failures belong to the unit: a node that gives it up passes the count on.
func TestFailuresOutliveTheRun(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, advert("acme:work", 1))
	for _, p := range c.nodes {
		p.fails = true
	}
	c.run(90 * time.Second)
	snap, err := c.store.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := snap.Units[0]
	if r.Failures < 15 || r.FailingSince.IsZero() || snap.Now.Sub(r.FailingSince) < time.Minute {
		t.Errorf("after 90 s of giving up after 5 failures each: %+v", r)
	}
}
