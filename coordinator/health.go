package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// Status is this node's own view of itself, without asking the store.
type Status struct {
	Cluster string
	Node    node.Identity
	// Term is the term this node holds, or the newest it has seen.
	Term    node.Term
	Leading bool
	// Trust is how long this node may go on leading without another renewal; 0 while it does not lead.
	Trust time.Duration
	// Registered is set once a heartbeat was answered. SinceAnswer is how long ago the newest answered
	// heartbeat was sent.
	Registered  bool
	SinceAnswer time.Duration
	Stopping    bool
	StoreID     string
	// PassesFailed is how many of the leader's passes failed in a row.
	PassesFailed int
	Runs         []Run // sorted by unit
}

// Run is one run of a unit on this node.
type Run struct {
	Fence daemon.Fence
	Phase string // "starting", "running", "draining", "cancelled" or "abandoned"
	// Trust is how long the run may go on without another answered heartbeat.
	Trust time.Duration
}

// Status returns this node's view of itself. It is at most [Timing].Watch old while the loop works.
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
		s.SinceAnswer = now.Sub(view.LastAnswered)
	}
	if leading {
		s.Trust = remaining(view.LeaderValidUntil, now)
	}
	for _, r := range view.Runs {
		s.Runs = append(s.Runs, Run{Fence: r.Fence, Phase: r.Phase, Trust: remaining(r.ValidUntil, now)})
	}
	return s
}

// remaining returns the time until a moment: 0 if it has passed, or if there is none.
func remaining(until, now lease.Instant) time.Duration {
	if until == lease.Never {
		return 0
	}
	return max(until.Sub(now), 0)
}

// Live returns, by check, whether the process makes progress; nil is passed. The state of the store has no
// influence: restarting a process does not repair a store.
func (c *Coordinator) Live() map[string]error {
	loop := error(nil)
	limit := max(20*c.timing.ClockCheckInterval, 5*time.Second)
	switch c.phase.Load() {
	case phaseOver:
		loop = errors.New("the coordinator has stopped")
	case phaseNew: // whether the coordinator was started is not checked here
	default:
		if idle := c.clock().Sub(lease.Instant(c.lastRound.Load())); c.lastRound.Load() != 0 && idle > limit {
			loop = fmt.Errorf("the main loop has made no progress for %v, at most %v is allowed", idle.Round(time.Millisecond), limit)
		}
	}
	return map[string]error{"loop": loop}
}

// Started returns, by check, whether the node has joined: the schema is right and the first heartbeat was
// written. A node that waits for room in the store counts as started, because a rolling deployment stops an old
// node only after that.
func (c *Coordinator) Started() map[string]error {
	var err error
	if view := c.published.Load(); !view.Registered && view.NoRoom == nil {
		err = errors.New("no heartbeat has been written yet")
	}
	return map[string]error{"heartbeat": err}
}

// Ready returns, by check, whether the node can take work: the store answers within 2·QueryTimeout, and the node
// is not stopping. Leadership has no influence.
func (c *Coordinator) Ready(ctx context.Context) map[string]error {
	checks := c.Started()
	checks["stopping"], checks["store"] = nil, c.reachable(ctx)
	if c.phase.Load() >= phaseStopping {
		checks["stopping"] = errors.New("the node is draining")
	}
	return checks
}

// Degraded returns, by check, problems that need attention although this node is ready. The node may be waiting
// for room in the store, or the store may be too slow. On the leader it also names the units (including shards of
// queues) that no node can take, since when and why. Other nodes make no plans and do not have that check.
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
		err = fmt.Errorf("no node can run %d; longest %s, since %s: %s",
			len(view.Unplaced), worst.Unit, worst.Since.UTC().Format(time.RFC3339), worst)
	}
	checks["units"] = err
	return checks
}

// ping is a question to the store for which many callers may wait.
type ping struct {
	done chan struct{}
	err  error
}

// reachable returns nil if the store has answered within the last 2·QueryTimeout, or else asks it. However many
// callers there are, they wait for one question.
func (c *Coordinator) reachable(ctx context.Context) error {
	if at := c.lastAnswer.Load(); at != 0 && c.clock().Sub(lease.Instant(at)) < 2*c.timing.QueryTimeout {
		return nil
	}
	c.mu.Lock()
	p := c.ping
	if p == nil {
		p = &ping{done: make(chan struct{})}
		c.ping = p
		go c.pingStore(p)
	}
	c.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("the store has not answered yet: %w", context.Cause(ctx))
	}
}

// pingStore reads the end of the history, which returns nothing and is cheap. The question ends when its time is over,
// whatever the store does with its context: the next caller asks again.
func (c *Coordinator) pingStore(p *ping) {
	limit := 2 * c.timing.QueryTimeout
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var once sync.Once
	reply := func(err error) {
		once.Do(func() {
			c.mu.Lock()
			c.ping = nil
			c.mu.Unlock()
			p.err = err
			close(p.done)
		})
	}
	late := context.AfterFunc(ctx, func() { reply(fmt.Errorf("the store has not answered within %v", limit)) })
	_, err := c.store.Events(ctx, math.MaxInt64, 1)
	late()
	if err == nil {
		c.lastAnswer.Store(int64(c.clock()))
	}
	reply(err)
}

// reading is a value of the store's clock and the moment of this process, in the middle of the call, to which it
// belongs.
type reading struct{ store, here time.Time }

// StoreTime estimates the store's clock: its value in the newest answer, plus the time since then by this
// process's monotonic clock. ok is false before the first answer. It is for timestamps that agents keep
// elsewhere. No decision about leases or assignments uses it.
func (c *Coordinator) StoreTime() (t time.Time, ok bool) {
	r := c.storeClock.Load()
	if r == nil {
		return t, false
	}
	return r.store.Add(time.Since(r.here)), true
}
