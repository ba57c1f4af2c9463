package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/channel"
	"github.com/emitd/emitd/internal/coordinator/crash"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/internal/coordinator/supervisor"
	"github.com/emitd/emitd/node"
)

// shell drives one member: it carries out the effects and feeds back what happens. It decides
// nothing. Its loop is the only goroutine that uses the member. The loop waits for nothing but the
// next input or the next deadline.
type shell struct {
	c   *Coordinator
	m   *member.Member
	sup *supervisor.Supervisor

	// background is the context of everything that must go on during a clean stop. It ends after
	// the loop has.
	background context.Context
	end        context.CancelFunc
	owned      sync.WaitGroup // goroutines that end soon after background does
	external   sync.WaitGroup // goroutines in store or user code, which may not end

	calls     *calls
	wakes     *wakes
	exits     *exitWatcher
	noticeLog *noticeLog
	logDone   sync.WaitGroup // done when the goroutine of logQueue has written everything
	stats     *stats

	highest   atomic.Int64  // the highest generation that a fence is known to hold
	due       lease.Instant // when the next Tick is due
	published lease.Instant // when the view was last published
	current   bool          // the published view shows the newest step
	stopped   *member.Stopped
}

// newShell prepares the loop and everything around it. It starts nothing.
func newShell(ctx context.Context, c *Coordinator, m *member.Member) *shell {
	s := &shell{c: c, m: m, noticeLog: newNoticeLog(c), stats: newStats(c)}
	s.logDone.Add(1)
	s.background, s.end = context.WithCancel(context.WithoutCancel(ctx))
	s.calls = newCalls(s)
	s.wakes = &wakes{self: c.cfg.Node.Incarnation, ready: make(chan struct{}, 1)}
	s.exits = newExitWatcher(c.cfg.Node, c.cfg.traits().Host)
	states, _ := c.store.(daemon.StateStore)
	s.sup = supervisor.New(supervisor.Config{
		Node: c.cfg.Node.Name, Agent: c.agent, Stamp: c.store.StampFence, Validity: c.runValidity, States: states,
		OnReport: s.report, OnFenceHeld: s.onFenceHeld,
		StampTimeout: c.timing.QueryTimeout, StopTimeout: c.timing.StopTimeout, Exit: c.exit,
		Logger: c.asyncLog, MeterProvider: c.cfg.MeterProvider, TracerProvider: c.cfg.TracerProvider,
	})
	return s
}

// run runs the loop until the member has stopped, and then stops everything else.
func (s *shell) run(ctx context.Context) error {
	c := s.c
	unregister := c.m.observe(c)
	c.observers.start()
	go runQueue(c.logQueue, s.logDone.Done)
	bound := newBound()
	stop := context.AfterFunc(ctx, func() {
		c.phase.CompareAndSwap(phaseRunning, phaseStopping)
		if errors.Is(context.Cause(ctx), crash.ErrKilled) {
			bound.end()
			return
		}
		bound.begin(c.stopBound())
		c.inbox.push(member.Stop{})
	})
	s.goExternal(s.watchStore)
	s.goOwned(s.watchHost)
	c.logQueue.push(func() {
		c.log.Info("node starts", "node_id", c.cfg.Node.ID, "incarnation", c.cfg.Node.Incarnation, "profile", c.cfg.Profile)
	})

	s.loop(bound.over.Done())

	stop()
	c.phase.Store(phaseOver)
	err := s.shutdown(bound)
	unregister()
	if errors.Is(context.Cause(ctx), crash.ErrKilled) {
		return fmt.Errorf("run: %w", crash.ErrKilled)
	}
	return err
}

// loop is the only goroutine that calls the member.
func (s *shell) loop(overtime <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for s.stopped == nil && !channel.IsClosed(overtime) {
		now := s.c.clock()
		s.c.lastRound.Store(int64(now))
		if now >= s.due {
			s.step(now, member.Tick{})
			continue
		}
		// Read the clock again after taking an input. With the earlier reading, an answer could
		// seem to have been received before it existed.
		if in, ok := s.c.inbox.pop(); ok {
			if _, ok := in.(member.Advertise); ok {
				in = s.c.queuedAdvert()
			}
			s.step(s.c.clock(), in)
			continue
		}
		if w, ok := s.wakes.take(); ok { // last, because wake-ups may wait
			s.step(s.c.clock(), member.WakeUp{Wake: w})
			continue
		}
		if !s.current {
			s.publish(now)
		}
		timer.Reset(s.due.Sub(now))
		select {
		case <-s.c.inbox.ready:
		case <-s.wakes.ready:
		case <-timer.C:
		case <-overtime:
			return
		}
	}
}

// step gives the member one input and carries out its effects. Effects that end leadership come
// first.
func (s *shell) step(now lease.Instant, in member.Input) {
	if r, ok := in.(member.Result); ok {
		s.answered(r)
	}
	effects := s.m.Step(now, in)
	s.current = false
	begun := len(effects) // a Lost behind an Elected ends that new term, so it stays in its place
	for i, e := range effects {
		if _, ok := e.(member.Elected); ok {
			begun = i
			break
		}
		if lost, ok := e.(member.LeadershipLost); ok {
			s.lost(lost)
		}
	}
	if slices.ContainsFunc(effects, isStart) {
		s.publish(now) // a run may ask for its validity as soon as it starts
	}
	for i, e := range effects {
		if lost, ok := e.(member.LeadershipLost); ok && i > begun {
			s.lost(lost)
			continue
		}
		s.carryOut(now, e)
	}
	// Wake up at least every Watch, so that a suspend of the machine is noticed.
	s.due = min(s.m.Next(), now.Add(s.c.timing.ClockCheckInterval))
	if now.Sub(s.published) >= s.c.timing.ClockCheckInterval {
		s.publish(now)
	}
}

// isStart reports whether the effect starts a run.
func isStart(e member.Effect) bool {
	_, ok := e.(member.Start)
	return ok
}

// carryOut carries out one effect, except Lost, which step handles. It waits for nothing.
func (s *shell) carryOut(now lease.Instant, e member.Effect) {
	switch e := e.(type) {
	case member.Elected:
		s.elected(now, e.Term)
	case member.Call:
		s.calls.issue(e)
	case member.Compute:
		s.goOwned(func() { s.c.inbox.push(planned(e)) })
	case member.Start:
		s.sup.Start(e.Fence, e.Term, e.Spec)
	case member.Drain:
		s.sup.Drain(e.Fence)
	case member.Cancel:
		s.sup.Cancel(e.Fence, &CancelledError{Fence: e.Fence, Cause: string(e.Cause)})
	case member.Abandon:
		s.sup.Abandon(e.Fence)
	case member.Notice:
		if s.noticeLog.wants(e.Kind) {
			s.c.logQueue.push(func() { s.noticeLog.notice(now, e) })
		}
		s.c.observers.notice(e)
	case member.Stopped:
		s.stopped = &e
	}
}

// planned makes the plan. If that panics, only the pass fails, not the process.
func planned(e member.Compute) (p member.Planned) {
	defer func() {
		if r := recover(); r != nil {
			p = member.Planned{ID: e.ID, Err: fmt.Errorf("plan: panic: %v", r)}
		}
	}()
	return member.Planned{ID: e.ID, Plan: plan.Make(e.Input)}
}

// elected publishes leadership of the term.
func (s *shell) elected(now lease.Instant, t node.Term) {
	view := s.publish(now)
	s.stats.elected()
	s.c.lead.begin(context.WithoutCancel(s.background), t, view.LeaderValidUntil)
}

// lost ends leadership in this process. It informs the member once everything that ran under it has
// returned.
func (s *shell) lost(e member.LeadershipLost) {
	if r := s.c.lead.end(e.Term.Number, e.Reason); r != nil {
		s.external.Add(1)
		go func() {
			defer s.external.Done()
			r.work.Wait()
			s.c.inbox.push(member.LeaderIdle{Term: e.Term.Number})
		}()
	}
}

// publish makes the member's view visible to other goroutines.
func (s *shell) publish(now lease.Instant) *member.View {
	view := s.m.View()
	s.published, s.current = now, true
	s.c.published.Store(&view)
	if view.Leading {
		s.c.lead.extend(view.LeaderValidUntil)
	}
	return &view
}

// onFenceHeld notes a generation that a fence holds. Only a new maximum goes to the inbox: an agent that
// is refused in a tight loop must not fill it.
func (s *shell) onFenceHeld(generation int64) {
	for {
		old := s.highest.Load()
		if generation <= old {
			return
		}
		if s.highest.CompareAndSwap(old, generation) {
			s.c.inbox.push(member.FenceHeld{Generation: generation})
			return
		}
	}
}

// report turns a report of the supervisor into an input.
func (s *shell) report(r supervisor.Report) {
	switch r.Kind {
	case supervisor.Stamped:
		s.c.inbox.push(member.RunStamped{Fence: r.Fence})
	case supervisor.Started:
		s.c.inbox.push(member.RunStarted{Fence: r.Fence})
	case supervisor.Failed:
		s.c.inbox.push(member.RunFailed{Fence: r.Fence, Err: r.Err, Failures: r.Failures, RetryIn: r.RetryIn, Hangs: r.Hangs, Lasted: r.Lasted})
	case supervisor.Abandoned:
		s.c.inbox.push(member.RunAbandoned{Fence: r.Fence})
	case supervisor.Ended:
		s.c.inbox.push(member.RunEnded{Fence: r.Fence, How: r.Ending, Err: r.Err, Failures: r.Failures})
	}
}
