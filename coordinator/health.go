package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/coordinator/plan"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Status is what this node thinks of itself, without asking the store.
type Status struct {
	Cluster string
	Node    node.Identity
	// Term is the one this node holds, or the newest it has heard of.
	Term    node.Term
	Leading bool
	// Trust is how long it may go on leading without another renewal; 0 while it does not lead.
	Trust time.Duration
	// Registered says that a heartbeat was answered at least once, Heard how long ago the newest
	// answered one began.
	Registered bool
	Heard      time.Duration
	Stopping   bool
	StoreID    string
	// PassesFailed counts failures in a row of the leader's pass.
	PassesFailed int
	Runs         []Run // sorted by unit
}

// Run is one run of a unit on this node.
type Run struct {
	Fence daemon.Fence
	Phase string // "starting", "running", "draining", "cancelled" or "abandoned"
	// Trust is how long it may go on without another answered heartbeat.
	Trust time.Duration
}

// Status returns what this node thinks of itself. It is never older than [Timing].Watch while the
// loop is alive.
func (c *Coordinator) Status() Status {
	view, now := c.published.Load(), c.clock()
	term, _, leading := c.lead.current()
	if !leading {
		term = view.Term
	}
	s := Status{
		Cluster: c.cfg.Cluster, Node: c.cfg.Node, Term: term, Leading: leading,
		Registered: view.Registered, Stopping: c.phase.Load() >= phaseStopping,
		StoreID: view.StoreID, PassesFailed: view.PassesFailed,
	}
	if view.Registered {
		s.Heard = now.Sub(view.LastAnswered)
	}
	if leading {
		s.Trust = remaining(view.LeaderTrust, now)
	}
	for _, r := range view.Runs {
		s.Runs = append(s.Runs, Run{Fence: r.Fence, Phase: r.Phase, Trust: remaining(r.Trust, now)})
	}
	return s
}

func remaining(until, now lease.Instant) time.Duration {
	if until == lease.Never {
		return 0
	}
	return max(until.Sub(now), 0)
}

// Live tells by check whether the process makes progress; nil is passed. The store has no part
// in it: restarting a process does not mend a store.
func (c *Coordinator) Live() map[string]error {
	loop := error(nil)
	limit := max(20*c.timing.Watch, 5*time.Second)
	switch c.phase.Load() {
	case phaseOver:
		loop = errors.New("the coordinator has stopped")
	case phaseNew: // whether it has started is not asked here
	default:
		if idle := c.clock().Sub(lease.Instant(c.progress.Load())); c.progress.Load() != 0 && idle > limit {
			loop = fmt.Errorf("the loop has not gone round for %v, at most %v is fine", idle.Round(time.Millisecond), limit)
		}
	}
	return map[string]error{"loop": loop}
}

// Started tells by check whether the node has joined: schema fine and first heartbeat written. A node that
// waits for room in the store has started too: a rolling deploy stops an old one only when it says so.
func (c *Coordinator) Started() map[string]error {
	var err error
	if view := c.published.Load(); !view.Registered && view.NoRoom == nil {
		err = errors.New("no heartbeat has been written yet")
	}
	return map[string]error{"heartbeat": err}
}

// Ready tells by check whether the node can take work: the store answers within 2·QueryTimeout,
// and the node is not on its way out. Leadership has no part in it.
func (c *Coordinator) Ready(ctx context.Context) map[string]error {
	checks := c.Started()
	checks["stopping"], checks["store"] = nil, c.reachable(ctx)
	if c.phase.Load() >= phaseStopping {
		checks["stopping"] = errors.New("the node is draining")
	}
	return checks
}

// Degraded tells by check what somebody should look at although this node is ready: that it waits for room in
// the store, or that the store is too slow; and on the leader, the units (shards of queues too) that no node can
// take, since when and why. Other nodes make no plans and have no such check.
func (c *Coordinator) Degraded() map[string]error {
	view, checks := c.published.Load(), map[string]error{}
	switch {
	case view.NoRoom != nil:
		checks["room"] = fmt.Errorf("this node waits for another one to leave: %w", view.NoRoom)
	case view.ChangeTime > 0:
		checks["room"] = view.TooSlow
	}
	if !view.Leading {
		return checks
	}
	var err error
	if worst := plan.Oldest(view.Unplaced); worst != nil {
		err = fmt.Errorf("no node can take %d; longest %s, since %s: %s",
			len(view.Unplaced), worst.Unit, worst.Since.UTC().Format(time.RFC3339), worst)
	}
	checks["units"] = err
	return checks
}

// ping is a question to the store that many may wait for.
type ping struct {
	done chan struct{}
	err  error
}

// reachable reports whether the store has answered within the last 2·QueryTimeout, and if
// nobody asked it, asks. However many ask, the store is asked once at a time.
func (c *Coordinator) reachable(ctx context.Context) error {
	limit := 2 * c.timing.QueryTimeout
	if at := c.answered.Load(); at != 0 && c.clock().Sub(lease.Instant(at)) < limit {
		return nil
	}
	c.mu.Lock()
	p := c.ping
	if p == nil {
		p = &ping{done: make(chan struct{})}
		c.ping = p
		go c.ask(p)
	}
	c.mu.Unlock()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-p.done:
		return p.err
	case <-late.C:
		return fmt.Errorf("the store has not answered within %v", limit)
	case <-ctx.Done():
		return fmt.Errorf("the store has not answered yet: %w", context.Cause(ctx))
	}
}

// ask reads the end of the history: nothing, cheaply.
func (c *Coordinator) ask(p *ping) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*c.timing.QueryTimeout)
	defer cancel()
	_, p.err = c.store.Events(ctx, math.MaxInt64, 1)
	if p.err == nil {
		c.answered.Store(int64(c.clock()))
	}
	c.mu.Lock()
	c.ping = nil
	c.mu.Unlock()
	close(p.done)
}

// reading is what the store's clock said at a moment of this process, in the middle of a call.
type reading struct{ store, here time.Time }

// StoreTime estimates what the store's clock says now: what it said in the newest answer, and the
// time that has passed since by this process's monotonic clock. ok is false before the first
// answer. It stamps what agents keep elsewhere; it decides nothing about leases and assignments.
func (c *Coordinator) StoreTime() (t time.Time, ok bool) {
	r := c.storeClock.Load()
	if r == nil {
		return t, false
	}
	return r.store.Add(time.Since(r.here)), true
}
