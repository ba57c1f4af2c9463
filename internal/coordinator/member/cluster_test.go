package member_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// cluster is the smallest world for members: one clock, calls answered after a fixed latency, and
// runs that start at once and end when told to. Tests cut connections in it.
type cluster struct {
	t       testing.TB
	now     lease.Instant
	latency time.Duration
	store   *memory.Store
	skew    time.Duration // of the store's clock
	nodes   []*peer
	queue   []delivery // answers in flight, in order of arrival
	wakes   bool       // wake-ups are delivered
	// maxMoves is how many units a leader may move for even loads.
	maxMoves int
	// brake is the share of the nodes that may look dead at once, in percent; 0 means no brake.
	brake int
}

// peer is one node of the cluster with what was observed of it.
type peer struct {
	c       *cluster
	m       *member.Member
	id      node.Identity
	dead    bool // takes no more steps
	paused  bool // takes no steps now; answers wait
	cut     bool // calls do not reach the store
	deaf    bool // answers do not reach the node
	loseOne func(member.Call) bool
	full    bool                            // the store declares no units; see storage.ErrFull
	sealed  bool                            // the store has no room for anything
	takes   func(member.Call) time.Duration // in the store, which gives up a call that takes longer than its timeout
	forge   func(*storage.Reply)            // changes a reply to what another version wrote
	show    func(*daemon.Snapshot)          // changes what a pass reads
	leading bool
	stopped bool
	ended   error // of Stopped
	running map[daemon.Unit]int64
	stuck   map[daemon.Unit]bool // ignores its cancellation
	slow    map[daemon.Unit]bool // ignores Drain
	fails   bool
	noFence error // of every stamp
	// oneByOne is how long each start takes on a machine that makes its starts one after another.
	// never is a daemon whose runs are never ready.
	oneByOne     time.Duration
	never        daemon.ID
	stamps       func(daemon.Unit) time.Duration // how long the store takes to stamp a fence
	startsUntil  lease.Instant
	starting     map[daemon.Fence]bool
	mostStarting int
	log          []string
	calls        []member.Call
}

type delivery struct {
	at lease.Instant
	to *peer
	in member.Input
}

var errLost = errors.New("lost")

func newCluster(t testing.TB, n int, adverts ...daemon.Advert) *cluster {
	t.Helper()
	c := &cluster{t: t, now: lease.Instant(time.Hour), latency: time.Millisecond, wakes: true}
	c.store = memory.Open(memory.Config{
		Now:    func() time.Time { return time.Unix(1_800_000_000, 0).Add(time.Duration(c.now) + c.skew) },
		OnWake: c.wake,
	})
	for i := range n {
		a := advert("acme:work", 6)
		if len(adverts) > 0 {
			a = adverts[i%len(adverts)]
		}
		c.join(fmt.Sprintf("n%d", i), a)
	}
	return c
}

func advert(id daemon.ID, instances int) daemon.Advert {
	return daemon.Advert{
		Traits: node.Traits{Capacity: 1, Version: "test"},
		Kinds:  []daemon.Kind{daemon.Kind(id)}, Specs: []daemon.Spec{{ID: id, Instances: instances}},
	}
}

func (c *cluster) join(name string, a daemon.Advert) *peer {
	p := &peer{c: c, running: map[daemon.Unit]int64{}, stuck: map[daemon.Unit]bool{}, slow: map[daemon.Unit]bool{}, starting: map[daemon.Fence]bool{}}
	p.id = node.Identity{Name: name, ID: node.ID("id-" + name), Incarnation: node.Incarnation(fmt.Sprintf("%s-%d", name, len(c.nodes)))}
	p.m = member.New(member.Config{Node: p.id, Advert: a, Timing: lease.Fast(), MaxMoves: c.maxMoves, BrakePercent: c.brake, Seed: uint64(len(c.nodes) + 1)}, c.now)
	c.nodes = append(c.nodes, p)
	return p
}

func (c *cluster) wake(w storage.WakeUp) {
	if !c.wakes {
		return
	}
	for _, p := range c.nodes {
		c.deliver(p, member.WakeUp{Wake: w})
	}
}

func (c *cluster) deliver(p *peer, in member.Input) { c.deliverAt(c.now.Add(c.latency), p, in) }

func (c *cluster) deliverAt(at lease.Instant, p *peer, in member.Input) {
	c.queue = append(c.queue, delivery{at, p, in})
	slices.SortStableFunc(c.queue, func(a, b delivery) int { return cmp.Compare(a.at, b.at) })
}

// run lets d pass.
func (c *cluster) run(d time.Duration) {
	c.t.Helper()
	end := c.now.Add(d)
	for steps := 0; ; steps++ {
		if steps > 2_000_000 {
			c.t.Fatal("the cluster spins")
		}
		next, who := end, -1
		for i, p := range c.nodes {
			if at := max(p.m.Next(), c.now); !p.dead && !p.paused && at < next {
				next, who = at, i
			}
		}
		if len(c.queue) > 0 && c.queue[0].at <= next {
			d := c.queue[0]
			c.queue = c.queue[1:]
			c.now = max(c.now, d.at)
			if d.to.paused {
				d.at = d.at.Add(time.Millisecond)
				c.queue = append(c.queue, d)
				slices.SortStableFunc(c.queue, func(a, b delivery) int { return cmp.Compare(a.at, b.at) })
				continue
			}
			d.to.step(d.in)
			continue
		}
		if who < 0 {
			c.now = end
			return
		}
		c.now = next
		c.nodes[who].step(member.Tick{})
	}
}

// until lets time pass until ok, at most d, and returns how long it took.
func (c *cluster) until(d time.Duration, what string, ok func() bool) time.Duration {
	c.t.Helper()
	began := c.now
	for c.now.Sub(began) < d {
		if ok() {
			return c.now.Sub(began)
		}
		c.run(2 * time.Millisecond)
	}
	c.t.Fatalf("%s: not within %v\n%s", what, d, c.dump())
	return 0
}

func (p *peer) step(in member.Input) {
	if p.dead {
		return
	}
	if started, ok := in.(member.RunStarted); ok {
		delete(p.starting, started.Fence)
	}
	for _, e := range slices.Clone(p.m.Step(p.c.now, in)) {
		p.do(e)
	}
}

func (p *peer) do(e member.Effect) {
	c := p.c
	switch e := e.(type) {
	case member.Call:
		p.calls = append(p.calls, e)
		p.call(e)
	case member.Compute:
		c.deliver(p, member.Planned{ID: e.ID, Plan: plan.Make(e.Input)})
	case member.Start:
		p.note("start %v", e.Fence)
		if _, ok := p.running[e.Fence.Unit]; ok {
			c.t.Errorf("%s starts %v while an earlier run has not returned", p.id.Name, e.Fence)
		}
		if err := cmp.Or(p.noFence, c.store.StampFence(context.Background(), e.Fence)); err != nil {
			c.deliver(p, member.RunEnded{Fence: e.Fence, How: member.FenceRefused, Err: err})
			return
		}
		if p.fails {
			c.deliver(p, member.RunEnded{Fence: e.Fence, How: member.GaveUp, Err: errors.New("boom"), Failures: 5})
			return
		}
		p.running[e.Fence.Unit] = e.Fence.Generation
		stamp := time.Duration(0)
		if p.stamps != nil {
			stamp = p.stamps(e.Fence.Unit)
		}
		c.deliverAt(c.now.Add(c.latency+stamp), p, member.RunStamped{Fence: e.Fence})
		if e.Fence.Unit.Daemon == p.never {
			return
		}
		p.startsUntil = max(p.startsUntil, c.now).Add(p.oneByOne)
		p.starting[e.Fence] = true
		p.mostStarting = max(p.mostStarting, len(p.starting))
		c.deliverAt(p.startsUntil.Add(c.latency+stamp), p, member.RunStarted{Fence: e.Fence})
	case member.Drain:
		p.note("drain %v", e.Fence)
		if !p.slow[e.Fence.Unit] {
			p.end(e.Fence)
		}
	case member.Cancel:
		p.note("cancel %v: %s", e.Fence, e.Cause)
		if !p.stuck[e.Fence.Unit] {
			p.end(e.Fence)
		}
	case member.Abandon:
		p.note("abandon %v", e.Fence)
		if p.running[e.Fence.Unit] == e.Fence.Generation {
			c.deliver(p, member.RunAbandoned(e))
		}
	case member.Elected:
		p.note("elected %d", e.Term.Ordinal)
		p.leading = true
	case member.LeadershipLost:
		p.note("lost %d: %s", e.Term.Ordinal, e.Reason)
		p.leading = false
		c.deliver(p, member.LeaderIdle{Term: e.Term.Number})
	case member.Notice:
		p.note("%s %v %s %v", e.Kind, e.Fence, e.Reason, e.Err)
	case member.Stopped:
		p.note("stopped")
		p.stopped, p.dead, p.ended = true, true, e.Err
	}
}

// end makes a run return.
func (p *peer) end(f daemon.Fence) {
	if p.running[f.Unit] == f.Generation {
		delete(p.running, f.Unit)
		p.c.deliver(p, member.RunEnded{Fence: f, How: member.Returned})
	}
}

func (p *peer) call(call member.Call) {
	c, r := p.c, member.Result{ID: call.ID}
	lost := p.loseOne != nil && p.loseOne(call)
	took := time.Duration(0)
	if p.takes != nil {
		took = p.takes(call)
	}
	if p.cut || took > call.Timeout {
		r.Err = errLost
	} else {
		ctx := context.Background()
		switch {
		case call.Heartbeat != nil:
			r.Reply, r.Err = c.store.Heartbeat(ctx, *call.Heartbeat)
			if p.forge != nil && r.Err == nil {
				p.forge(r.Reply)
			}
		case call.Report != nil:
			r.Outcomes, r.Err = c.store.Report(ctx, *call.Report)
		case call.Leave != nil:
			r.Err = c.store.Leave(ctx, *call.Leave)
		case call.Commit != nil:
			r.Outcomes, r.Err = p.commit(ctx, *call.Commit)
		case call.Snapshot:
			r.Snapshot, r.Err = c.store.Snapshot(ctx)
			if p.show != nil && r.Err == nil {
				p.show(r.Snapshot)
			}
		}
	}
	if p.deaf || lost {
		r = member.Result{ID: call.ID, Err: errLost}
	}
	d := delivery{c.now.Add(c.latency + took + time.Duration(len(p.starting))*p.oneByOne/8), p, r}
	if errors.Is(r.Err, errLost) {
		d.at = c.now.Add(call.Timeout)
	}
	c.queue = append(c.queue, d)
	slices.SortStableFunc(c.queue, func(a, b delivery) int { return cmp.Compare(a.at, b.at) })
}

// commit commits what the store has room for.
func (p *peer) commit(ctx context.Context, commit storage.Commit) ([]storage.Outcome, error) {
	if p.sealed {
		return nil, storage.ErrFull
	}
	if !p.full {
		return p.c.store.Commit(ctx, commit)
	}
	declares := func(ch storage.Change) bool { return ch.Step == "" && ch.State == "" }
	all := commit.Changes
	commit.Changes = slices.DeleteFunc(slices.Clone(all), declares)
	if len(all) > 0 && len(commit.Changes)+len(commit.Nodes)+len(commit.Events)+len(commit.Commands) == 0 {
		return nil, storage.ErrFull
	}
	out, err := p.c.store.Commit(ctx, commit)
	for i, ch := range all {
		if err == nil && declares(ch) {
			out = slices.Insert(out, i, storage.Outcome{Unit: ch.Unit})
		}
	}
	return out, err
}

func (p *peer) note(format string, args ...any) {
	p.log = append(p.log, fmt.Sprintf("%8.3f %s ", time.Duration(p.c.now-lease.Instant(time.Hour)).Seconds(), p.id.Name)+fmt.Sprintf(format, args...))
}

// count returns how many lines of the node's log contain the text.
func (p *peer) count(text string) (n int) {
	for _, l := range p.log {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

func (p *peer) stop() { p.step(member.Stop{}) }

func (p *peer) kill() { p.dead, p.leading = true, false; clear(p.running) }

func (c *cluster) leader() *peer {
	for _, p := range c.nodes {
		if p.leading && !p.dead {
			return p
		}
	}
	return nil
}

// spread returns how many units run on each node, in order of nodes.
func (c *cluster) spread() []int {
	var out []int
	for _, p := range c.nodes {
		if !p.dead {
			out = append(out, len(p.running))
		}
	}
	return out
}

func (c *cluster) total() (n int) {
	for _, k := range c.spread() {
		n += k
	}
	return n
}

func (c *cluster) dump() string {
	var lines []string
	for _, p := range c.nodes {
		lines = append(lines, p.log[max(0, len(p.log)-60):]...)
	}
	slices.Sort(lines)
	s := ""
	for _, l := range lines {
		s += l + "\n"
	}
	return s
}
