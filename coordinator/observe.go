package coordinator

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
)

// maxLostDelay is how long OnLeaderLost waits until OnLeaderElected of the same term has been
// called, so that the two are called in order.
const maxLostDelay = 100 * time.Millisecond

// elected is the name of the hook that may block.
const elected = "OnLeaderElected"

// observers calls the Hooks.
type observers struct {
	list []*observer
	log  *slog.Logger
	m    *instruments
	done sync.WaitGroup // goroutines that are running
}

// observer is one Hooks value with the queues of its goroutines.
type observer struct {
	Hooks
	lost, rest *queue[func()]
}

func newObservers(h Hooks, log *slog.Logger, m *instruments) *observers {
	o := &observers{log: log, m: m}
	for _, one := range h.each() {
		o.list = append(o.list, &observer{Hooks: one, lost: newQueue[func()](), rest: newQueue[func()]()})
	}
	return o
}

// start starts the goroutines. They end after close, once their queues are empty.
func (o *observers) start() {
	for _, one := range o.list {
		o.done.Add(2)
		go runQueue(one.lost, o.done.Done)
		go runQueue(one.rest, o.done.Done)
	}
}

// runQueue calls the functions of the queue, in order, until the queue is closed and empty.
func runQueue(q *queue[func()], done func()) {
	defer done()
	for {
		if f, ok := q.pop(); ok {
			f()
			continue
		}
		if q.done() {
			return
		}
		<-q.ready
	}
}

func (o *observers) close() {
	for _, one := range o.list {
		one.lost.close()
		one.rest.close()
	}
}

// call calls a hook and recovers from its panic.
func (o *observers) call(event string, f func()) {
	began := time.Now()
	err := recoverPanic(func() error { f(); return nil })
	if event != elected || err != nil { // OnLeaderElected may block as long as the node leads: its duration means nothing
		o.m.observed(event, time.Since(began), err)
	}
	var p *panicError
	if errors.As(err, &p) {
		o.log.Error("hook panicked", "hook", event, "error", err, "stack", string(p.stack))
	}
}

// tasks returns one task for each OnLeaderElected.
func (o *observers) tasks() []*leaderTask {
	var out []*leaderTask
	for i, one := range o.list {
		if one.OnLeaderElected == nil {
			continue
		}
		out = append(out, &leaderTask{run: func(r *leaderTerm) {
			close(r.entered[i])
			o.call(elected, func() { one.OnLeaderElected(r.ctx, r.term) })
		}})
	}
	return out
}

// newEntered returns a channel for each Hooks value. It is closed once OnLeaderElected has been called; leadershipLost
// waits for it.
func (o *observers) newEntered() []chan struct{} {
	out := make([]chan struct{}, len(o.list))
	for i := range out {
		out[i] = make(chan struct{})
	}
	return out
}

// leadershipLost queues OnLeaderLost for the term that has ended.
func (o *observers) leadershipLost(r *leaderTerm, why node.LossReason) {
	deadline := time.Now().Add(maxLostDelay)
	for i, one := range o.list {
		if one.OnLeaderLost == nil {
			continue
		}
		one.lost.push(func() {
			if one.OnLeaderElected != nil {
				awaitUntil(r.entered[i], deadline)
			}
			o.call("OnLeaderLost", func() { one.OnLeaderLost(r.term, why) })
		})
	}
}

func awaitUntil(c <-chan struct{}, deadline time.Time) {
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-c:
	case <-t.C:
	}
}

// notice queues the hooks for what the member noticed.
func (o *observers) notice(n member.Notice) {
	for _, one := range o.list {
		if event, f := one.hook(n); f != nil {
			one.rest.push(func() { o.call(event, f) })
		}
	}
}

// hook returns the hook that belongs to the notice, if any.
func (h *observer) hook(n member.Notice) (string, func()) {
	switch {
	case n.Kind == member.NodeJoined && h.OnNodeRegistered != nil:
		return "OnNodeRegistered", func() { h.OnNodeRegistered(n.Member.Row()) }
	case n.Kind == member.NodeLeft && h.OnNodeRemoved != nil:
		return "OnNodeRemoved", func() { h.OnNodeRemoved(n.Member.Row(), n.Reason) }
	case n.Kind == member.UnitAssigned && h.OnDaemonAssigned != nil:
		return "OnDaemonAssigned", func() { h.OnDaemonAssigned(n.Fence) }
	case n.Kind == member.UnitStarted && h.OnDaemonStarted != nil:
		return "OnDaemonStarted", func() { h.OnDaemonStarted(n.Fence) }
	case n.Kind == member.UnitDraining && h.OnDaemonDraining != nil:
		return "OnDaemonDraining", func() { h.OnDaemonDraining(n.Fence) }
	case n.Kind == member.UnitStopped && h.OnDaemonStopped != nil:
		return "OnDaemonStopped", func() { h.OnDaemonStopped(n.Fence, n.Reason) }
	case n.Kind == member.UnitFailed && h.OnDaemonFailed != nil:
		return "OnDaemonFailed", func() { h.OnDaemonFailed(n.Fence, n.Err) }
	}
	return "", nil
}
