package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// process is one incarnation on a machine: a member, a substitute for the shell around it, and its agents.
type process struct {
	w      *world
	index  int
	host   *host
	t      lease.Timing
	who    node.Identity
	member *member.Member
	state  processState
	frozen []event // events that wait for the end of a pause

	tickAt  time.Duration // when the pending tick comes; 0 = none
	tickGen int64

	neighbours []*process // other processes on its machine, as in the newest member list
	checkDue   bool       // it will check them soon

	runs     []*run   // runs that have not returned
	started  []int64  // by unit: the highest generation that was started
	listings []listed // by unit: the newest reply that listed it

	// crashIn counts the calls until the one at which the process ends, at the point crashAt; 0 = never.
	crashIn int
	crashAt crashPoint
	// pauseIn counts the calls until the one before which the process is paused for pauseFor; 0 = never.
	pauseIn  int
	pauseFor time.Duration

	stopping bool
	stopBy   time.Duration  // when a clean stop must have ended
	watch    processHistory // what the checks remember
}

type processState uint8

const (
	running processState = iota
	paused
	dead
)

type crashPoint uint8

const (
	beforeSend crashPoint = iota
	beforeApply
	afterApply
	crashPoints
)

// listed is the newest reply that listed a unit for a process.
type listed struct {
	generation int64
	sent       time.Duration // when its call was issued
}

// start starts a new process on the machine. IDs are in the order of wall clocks.
func (w *world) start(h *host) *process {
	i := len(w.procs) + int(h.wall/time.Millisecond)
	return w.startAs(h, node.Identity{Name: h.name, ID: node.ID(fmt.Sprintf("id-%04d", i)), Incarnation: incarnation(i)})
}

func incarnation(i int) node.Incarnation { return node.Incarnation(fmt.Sprintf("inc-%04d", i)) }

func (w *world) startAs(h *host, who node.Identity) *process {
	if w.chance(w.otherTimings()) {
		h.switchTimings(w)
	}
	p := &process{
		w: w, index: len(w.procs), host: h, t: h.t, who: who,
		started: make([]int64, len(w.units)), listings: make([]listed, len(w.units)),
	}
	p.member = member.New(member.Config{
		Node: who, Advert: h.advert, Timing: p.t, Store: w.cfg.Store, MaxMoves: w.cfg.MaxMoves, BrakePercent: plan.DefaultBrakePercent, Seed: w.rng.Uint64(),
	}, p.local())
	w.procs = append(w.procs, p)
	w.byInc[who.Incarnation] = p
	if h.proc == nil || h.proc.state == dead {
		h.proc = p
	} else {
		h.twin = p
	}
	p.watch.init()
	p.note("start", -1, 0, 0)
	w.restartBound("start")
	p.step(member.Tick{})
	return p
}

func (p *process) local() lease.Instant { return p.host.clock.at(p.w.now) }

func (p *process) note(what string, unit int, a, b int64) {
	p.w.note(line{what: what, proc: int32(p.index), unit: int32(unit), a: a, b: b})
}

func (p *process) noteText(what, more string) {
	p.w.note(line{what: what, more: more, proc: int32(p.index), unit: -1})
}

// step gives the member an input, carries out the effects, and sets the next tick.
func (p *process) step(in member.Input) {
	p.w.stats.Steps++
	effects := p.member.Step(p.local(), in)
	p.w.check.first(p.w, p, effects)
	for _, e := range effects {
		p.carry(e)
		if p.state == dead {
			return
		}
	}
	p.arm()
}

// arm sets the timer for the member's next deadline. A timer that is already set for an earlier moment stays:
// when it fires too early, it is set again.
func (p *process) arm() {
	next := p.member.Next()
	if next == lease.Never || p.state == dead {
		return
	}
	at := max(p.host.clock.real(next), p.w.now)
	if p.tickAt != 0 && p.tickAt <= at {
		return
	}
	p.tickGen++
	p.tickAt = at
	p.w.queue.push(event{at: at + p.w.lateness(p), kind: evTick, p: p, n: p.tickGen})
}

func (p *process) tick(gen int64) {
	if gen != p.tickGen {
		return
	}
	p.tickAt = 0
	if p.local() < p.member.Next() {
		p.arm()
		return
	}
	p.step(member.Tick{})
}

// lateness draws how late a timer of the machine fires. Usually it is little. At times, and usually on a sluggish
// machine, it is up to all that the margin allows for.
func (w *world) lateness(p *process) time.Duration {
	if w.calm || !p.host.sluggish && w.rng.Uint32()&63 != 0 {
		return time.Duration(w.rng.Uint32() & (1<<19 - 1)) // half a millisecond
	}
	return w.upTo(p.t.Wakeup)
}

// carry carries out one effect of the member.
func (p *process) carry(e member.Effect) {
	w := p.w
	switch e := e.(type) {
	case member.Call:
		p.call(e)
	case member.Compute:
		planned := plan.Make(e.Input)
		p.later(w.between(time.Millisecond/10, 5*time.Millisecond), member.Planned{ID: e.ID, Plan: planned})
	case member.Start:
		p.startRun(e)
	case member.Drain:
		p.drainRun(e.Fence)
	case member.Cancel:
		p.cancelRun(e)
	case member.Abandon:
		p.abandonRun(e.Fence)
	case member.Elected:
		p.note("elected", -1, e.Term.Number, 0)
		w.check.elected(w, p, e.Term)
	case member.LeadershipLost:
		p.noteText("lost", string(e.Reason))
		w.check.lost(w, p, e)
		p.later(w.leaderWork(), member.LeaderIdle{Term: e.Term.Number})
	case member.Notice:
		w.check.notice(w, p, &e)
	case member.Stopped:
		p.note("stopped", -1, 0, 0)
		w.check.stopped(w, p)
		p.end()
	}
}

// leaderWork draws how long leader-only work takes to return after Lost.
func (w *world) leaderWork() time.Duration {
	if !w.calm && w.cfg.Faults&BadAgents != 0 && w.chance(0.05) {
		return w.upTo(2 * w.t.LeaderStopTimeout)
	}
	return w.upTo(20 * time.Millisecond)
}

// later gives the member an input after d.
func (p *process) later(d time.Duration, in member.Input) {
	p.w.queue.push(event{at: p.w.now + d, kind: evInput, p: p, in: in})
}

// stop begins a clean stop.
func (p *process) stop() {
	if p.state != running || p.stopping {
		return
	}
	p.note("stop", -1, 0, 0)
	p.w.restartBound("stop")
	p.stopping = true
	p.stopBy = p.w.now + p.w.stopBound()
	p.w.queue.push(event{at: p.stopBy, kind: evDo, in: func() { p.w.check.stopOverdue(p.w, p) }})
	p.step(member.Stop{})
}

// stopBound returns the time within which a clean stop ends, whatever the store and agents do.
func (w *world) stopBound() time.Duration {
	t, drain := w.t, w.longestDrain()
	return t.LeaderStopTimeout + drain + t.StopTimeout + 2*t.QueryTimeout + t.Margin(drain) + t.Wakeup
}

// kill ends the process at once, with everything in it.
func (p *process) kill() {
	if p.state == dead {
		return
	}
	p.note("kill", -1, 0, 0)
	p.end()
}

func (p *process) end() {
	p.state = dead
	p.frozen = nil
	for _, r := range p.runs {
		r.gone()
	}
	p.runs = nil
	p.w.check.ended(p.w, p)
	p.w.noticedBy(p)
}

// pause freezes the process for d: no step of its member, no code of its agents.
func (p *process) pause(d time.Duration) {
	if p.state != running {
		return
	}
	p.note("pause", -1, int64(d/time.Millisecond), 0)
	p.state = paused
	p.watch.paused, p.watch.pausedTill = true, max(p.watch.pausedTill, p.w.now+d)
	p.w.restartBound("pause")
	p.w.after(d, p.resume)
}

// standStill stops the machine for d, and its clock with it. Afterwards nothing on the machine can notice, and a
// process goes on acting on validity that is over. The time for which it may do so is the one exception from the
// promises.
func (h *host) standStill(w *world, d time.Duration) {
	if h.standing {
		return
	}
	var stopped []*process
	for _, p := range [...]*process{h.proc, h.twin} {
		if p != nil && p.state == running {
			stopped = append(stopped, p)
			p.note("stands still", -1, int64(d/time.Millisecond), 0)
			p.state = paused
			p.watch.paused, p.watch.pausedTill = true, forever
		}
	}
	h.standing = true
	w.restartBound("standstill")
	w.after(d, func() {
		h.standing = false
		h.clock.missed += d
		for _, p := range w.procs {
			if p.host == h && p.state == paused {
				w.check.unaware(w, p)
			}
		}
		for _, p := range stopped {
			p.resume()
		}
	})
}

// resume lets a paused process go on. What waited happens soon, in a random order, except for what a run does.
func (p *process) resume() {
	if p.state != paused {
		return
	}
	if p.host.standing {
		p.w.after(time.Second, p.resume)
		return
	}
	p.note("resume", -1, 0, 0)
	p.state = running
	w := p.w
	w.restartBound("resume")
	if !p.watch.unaware {
		p.watch.pausedTill = w.now
	}
	frozen := p.frozen
	p.frozen = nil
	at := w.now
	for _, e := range frozen {
		e.at = w.now + w.upTo(time.Millisecond)
		switch e.kind {
		case evReturn, evReady, evRetry, evEffect, evFail, evInput: // these keep their order
			at += w.upTo(time.Millisecond / 4)
			e.at = at
		}
		w.queue.push(e)
	}
	// After a SIGCONT, due timers fire soon. After a suspend of the machine, only the shell's regular reading of
	// its clock notices.
	p.tickGen++
	p.tickAt = w.now + w.upTo(10*time.Millisecond)
	if w.chance(0.5) {
		p.tickAt = w.now + w.upTo(p.t.ClockCheckInterval)
	}
	w.queue.push(event{at: p.tickAt, kind: evTick, p: p, n: p.tickGen})
	w.check.resumed(w, p)
}

var (
	errTimeout = errors.New("sim: no answer in time")
	errRefused = errors.New("sim: connection refused")
)
