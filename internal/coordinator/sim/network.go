package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// server is the machine of the store.
type server struct {
	store *memory.Store
	clock storeClock
	// down is set while nothing arrives. With quick, callers are refused at once. With pooled,
	// requests wait in a connection pooler meanwhile.
	down, quick, pooled bool
	waiting             []*call // in the pooler
	failovers           int
	image               *image    // what a failover restores
	fork                *fork     // the former primary while it lives on
	newest              time.Time // the latest time that its clock ever showed
}

// image is the store at an earlier moment, with the checks' model of it at that moment.
type image struct {
	memory    *memory.Image
	at        time.Duration
	resources []resource
	model     model
}

// network is the faults of messages.
type network struct {
	// The probabilities per call: the request is lost, the reply is lost, the request arrives a
	// second time, the request is slow.
	lose, loseReply, repeat, slow float64
}

// call is a request to the store in flight.
type call struct {
	p        *process
	req      member.Call
	run      *run          // for a fence stamp
	issuedAt time.Duration // when the member issued it
	done     bool          // answered or given up
	repeat   bool          // a second copy, for whose answer nobody waits
	from     int           // the number of failovers when it was sent
	old      bool          // sent to a former primary
	read     string        // the store ID that the process knew when the member issued it

	result member.Result
}

func (w *world) openServer() {
	w.server.clock = storeClock{clock: clock{offset: w.rng.Int64N(1e9), ppm: w.drawPPM()}}
	w.server.store = memory.Open(memory.Config{
		StoreID:    storeID(0),
		Now:        w.storeNow,
		KeepEvents: 1000,
		OnEvent:    func(e daemon.Event) { w.check.event(w, &e) },
		OnWake:     w.wake,
	})
}

// storeNow reads the store's clock.
func (w *world) storeNow() time.Time {
	now := w.server.clock.now(w.now)
	if now.After(w.server.newest) {
		w.server.newest = now
	}
	return now
}

func storeID(failovers int) string { return fmt.Sprintf("store-%d", failovers) }

// wake sends a wake-up to every process. Wake-ups have no guarantee.
func (w *world) wake(wakeUp storage.WakeUp) { w.wakeSide(wakeUp, false) }

// wakeSide sends a wake-up to the processes that use one of the primaries.
func (w *world) wakeSide(wakeUp storage.WakeUp, old bool) {
	if w.cfg.Store.NoWakeUps {
		return
	}
	in := member.Input(member.WakeUp{Wake: wakeUp})
	for _, h := range w.hosts {
		for _, p := range [...]*process{h.proc, h.twin} {
			if p == nil || p.state == dead || h.onOld != old || (p.host.cutOff || p.host.deaf || w.server.down) && w.rng.Uint32()&1 == 0 {
				continue // wake-ups come on another connection, which may or may not be alive
			}
			if !w.calm && w.network.lose > 0 && w.chance(w.network.lose) {
				continue
			}
			d := w.between(time.Millisecond/2, 20*time.Millisecond)
			if !w.calm && w.chance(w.network.slow) {
				d = w.upTo(w.t.LeaseDuration)
			}
			p.later(d, in)
			if !w.calm && w.chance(w.network.repeat) {
				p.later(w.upTo(w.t.LeaseDuration), in)
			}
		}
	}
}

// call sends the member's request to the store.
func (p *process) call(c member.Call) {
	p.w.stats.Calls++
	p.w.check.checkCall(p.w, p, &c)
	cl := &call{p: p, req: c, issuedAt: p.w.now, read: p.watch.store}
	if p.crashIn > 0 {
		p.crashIn--
		if p.crashIn == 0 && p.crashAt == beforeSend {
			p.kill()
			return
		}
		if p.crashIn == 0 {
			p.watch.doomed = cl
		}
	}
	if p.pauseIn > 0 {
		p.pauseIn--
		if p.pauseIn == 0 {
			p.pause(p.pauseFor)
			p.frozen = append(p.frozen, event{kind: evSend, p: p, call: cl})
			return
		}
	}
	p.w.send(cl)
}

// send puts a request on its way.
func (w *world) send(c *call) {
	p := c.p
	c.from, c.old = w.server.failovers, p.host.onOld
	timeout := c.req.Timeout
	if timeout == 0 {
		timeout = p.t.QueryTimeout
	}
	w.queue.push(event{at: w.now + p.host.clock.lasts(timeout) + w.lateness(p), kind: evTimeout, p: p, call: c})
	n := &w.network
	if n.lose+n.loseReply+n.repeat+n.slow > 0 && !w.calm {
		if w.chance(n.repeat) {
			again := *c
			again.repeat = true
			d := w.upTo(w.t.QueryTimeout)
			if w.chance(0.3) {
				d = w.upTo(2 * w.t.NodeRegistrationTTL)
			}
			w.queue.push(event{at: w.now + d, kind: evArrive, p: p, call: &again})
		}
		if w.chance(n.lose) {
			return
		}
		if w.chance(n.slow) {
			w.queue.push(event{at: w.now + w.upTo(w.t.QueryTimeout*3/2), kind: evArrive, p: p, call: c})
			return
		}
	}
	w.queue.push(event{at: w.now + w.latency(p.host), kind: evArrive, p: p, call: c})
}

// latency draws how long a message without a fault takes.
func (w *world) latency(h *host) time.Duration {
	return 100*time.Microsecond + time.Duration(w.rng.Uint32()&(1<<21-1)) + w.upTo(h.slow) // up to 2 ms
}

// arrive handles a request that reaches the store.
func (w *world) arrive(c *call) {
	p := c.p
	switch {
	case p.host.cutOff:
		return
	case (c.from != w.server.failovers && !p.host.onOld || c.old && !p.host.onOld) && (c.repeat || c.done || w.chance(0.5)):
		return // its connection ended with the server; some requests wait in a pooler for the new one
	case w.server.down && w.server.pooled:
		w.server.waiting = append(w.server.waiting, c)
		return
	case w.server.down:
		if w.server.quick && !c.repeat {
			c.result = member.Result{ID: c.req.ID, Err: errRefused}
			w.reply(c)
		}
		return
	}
	doomed := p.watch.doomed == c
	if doomed && p.crashAt == beforeApply {
		p.kill()
		return
	}
	w.apply(c)
	if doomed {
		p.kill()
		return
	}
	if !c.repeat {
		w.reply(c)
	}
}

// open makes the store reachable again. Requests that waited in a pooler reach it, even if it is
// another store by now. Those that their callers gave up are dropped.
func (w *world) open() {
	s := &w.server
	waiting := s.waiting
	s.down, s.pooled, s.waiting = false, false, nil
	for _, c := range waiting {
		if !c.done && !c.repeat {
			c.from = s.failovers // the pooler's connection is a new one
			w.queue.push(event{at: w.now + w.latency(c.p.host), kind: evArrive, p: c.p, call: c})
		}
	}
}

// reply puts the answer on its way.
func (w *world) reply(c *call) {
	if w.loseReply != nil && w.loseReply(c) {
		return
	}
	if c.p.host.cutOff || c.p.host.deaf {
		return
	}
	if !w.calm && w.chance(w.network.loseReply) {
		return
	}
	w.queue.push(event{at: w.now + w.latency(c.p.host), kind: evReply, p: c.p, call: c})
}

// apply lets the store carry out the request.
func (w *world) apply(c *call) {
	ctx, p := context.Background(), c.p
	res := member.Result{ID: c.req.ID}
	store := w.storeOf(p)
	former := w.server.fork
	if !p.host.onOld {
		former = nil
		w.check.before(w, c)
	}
	switch {
	case c.run != nil:
		res.Err = store.StampFence(ctx, c.run.fence)
	case c.req.Heartbeat != nil:
		res.Reply, res.Err = store.Heartbeat(ctx, *c.req.Heartbeat)
	case c.req.Report != nil:
		res.Outcomes, res.Err = store.Report(ctx, *c.req.Report)
	case c.req.Leave != nil:
		res.Err = store.Leave(ctx, *c.req.Leave)
	case c.req.Commit != nil:
		res.Outcomes, res.Err = store.Commit(ctx, *c.req.Commit)
	case c.req.Snapshot:
		res.Snapshot, res.Err = store.Snapshot(ctx)
	}
	c.result = res
	if w.trace.out != nil {
		w.detail(c.p, "applied %s", c)
	}
	if former != nil {
		former.after(w, c)
	} else {
		w.check.after(w, c)
	}
}

// String describes a call that was applied.
func (c *call) String() string {
	var what, err string
	switch r := &c.req; {
	case c.run != nil:
		what = "stamp " + c.run.fence.String()
	case r.Heartbeat != nil:
		what = fmt.Sprintf("heartbeat %d heard %d claim %+v", r.Heartbeat.Seq, r.Heartbeat.ConfirmedSeq, r.Heartbeat.TermRequest)
		if reply := c.result.Reply; reply != nil {
			what += fmt.Sprintf(": verdict %d term %d (%s) lease %d until %v, %d units", reply.Verdict, reply.Term.Number,
				reply.Term.Leader.Incarnation, reply.Lease.Renewals, reply.Lease.ExpiresAt.Sub(reply.Now), len(reply.Units))
		}
	case r.Report != nil:
		what = fmt.Sprintf("report %d %v", r.Report.Seq, r.Report.Units)
	case r.Leave != nil:
		what = fmt.Sprintf("leave %+v", *r.Leave)
	case r.Commit != nil:
		what = fmt.Sprintf("commit of %d: %d changes, nodes %v", r.Commit.Term.Number, len(r.Commit.Changes), r.Commit.Nodes)
	default:
		what = "snapshot"
	}
	if c.repeat {
		what += " (repeated)"
	}
	if c.result.Err != nil {
		err = " ERROR " + c.result.Err.Error()
	}
	return what + err
}

// answer delivers the reply to the process.
func (p *process) answer(c *call) {
	if c.run != nil {
		if !c.done {
			c.done = true
			c.run.stamped(c.result.Err)
		}
		return
	}
	if c.done { // given up already: sometimes the shell delivers it all the same
		if p.w.chance(0.5) {
			p.step(c.result)
		}
		return
	}
	c.done = true
	p.w.check.answered(p, c)
	p.step(c.result)
	p.w.check.checkLedAfterChange(p.w, p)
	p.learn(c.result)
}

// learn takes from an answer what the shell takes from it.
func (p *process) learn(r member.Result) {
	switch {
	case p.state != running:
	case r.Reply != nil:
		p.setNeighbours(r.Reply.Members)
	case r.Snapshot != nil:
		p.setNeighbours(r.Snapshot.Nodes)
	}
}

// timeout informs the process that no reply came.
func (p *process) timeout(c *call) {
	if c.done {
		return
	}
	c.done = true
	p.note("timeout", -1, 0, 0)
	if c.run != nil {
		c.run.stamped(errTimeout)
		return
	}
	p.step(member.Result{ID: c.req.ID, Err: errTimeout})
}

// saveImage saves the image that a later failover restores.
func (w *world) saveImage() {
	img := &image{memory: w.server.store.Clone(), at: w.now, model: w.check.model.clone()}
	for _, u := range w.units {
		img.resources = append(img.resources, u.resource)
	}
	w.server.image = img
}

// failover replaces the store by the saved image: another store, without anything written since.
func (w *world) failover() {
	img := w.server.image
	if img == nil {
		return
	}
	s := &w.server
	s.failovers++
	s.image = nil
	// The copy is another machine. Its clock is not behind any stamp of the lost one.
	if behind := s.newest.Sub(s.clock.now(w.now)); behind > 0 {
		s.clock.stepped += behind + w.upTo(time.Second)
	}
	s.store.Restore(img.memory)
	s.store.SetStoreID(storeID(s.failovers))
	w.check.model = img.model
	for i, u := range w.units {
		if i < len(img.resources) {
			u.resource = img.resources[i]
		}
		for _, r := range u.live {
			r.read = false // its connection is gone, and with it what it read
		}
	}
	w.note(line{what: "failover", proc: -1, unit: -1, a: int64((w.now - img.at) / time.Millisecond)})
	w.check.failedOver(w)
	w.check.operations.failedOver(w)
}
