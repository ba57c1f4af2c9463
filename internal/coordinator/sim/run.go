package sim

import (
	"errors"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// Work is a daemon and the behaviour of its simulated agents.
type Work struct {
	Spec daemon.Spec
	// Ready is how long a run takes to be ready once entered, Drain how long to return once draining, Cancel how
	// long to return once cancelled.
	Ready, Drain, Cancel Span
	// Stubborn runs do not return when draining, only when cancelled.
	Stubborn bool
	// Stuck is the probability that a run ignores its cancellation, for StuckFor.
	Stuck    float64
	StuckFor time.Duration
	// Fails is the mean time between failures of a run, 0 for never. FailsOn is the index of the machine on which
	// it fails, or -1 for all. Returns and Releases are the mean times until a run returns early or gives its
	// unit back.
	Fails, Returns, Releases time.Duration
	FailsOn                  int
	// OneByOne, if set, is how long each start of this daemon takes on a machine that makes its starts one after
	// another. Ready then bounds all of them together.
	OneByOne time.Duration
	// Stalls makes runs on the machine FailsOn go on without any progress. That is a failure once
	// Spec.StallTimeout has passed.
	Stalls bool
}

// Span is a range of durations; both zero is nothing.
type Span struct{ Min, Max time.Duration }

// flaky reports whether the agents behave so that a unit may rightly be down at a given moment.
func (k *Work) flaky() bool {
	return k.Stuck > 0 || k.Fails > 0 || k.Returns > 0 || k.Releases > 0 || k.Stalls
}

// run is one run of a unit in a process: the supervisor's part and the agent's.
type run struct {
	p     *process
	u     *unit
	fence daemon.Fence
	phase runPhase
	epoch int64 // events that were scheduled in an earlier epoch are void

	listed    time.Duration // when the newest call whose answer listed it was issued
	entered   time.Duration
	returnAt  time.Duration // 0 = not scheduled
	draining  bool
	cancelled bool
	cancelAt  time.Duration
	abandoned bool
	stuck     bool // this one ignores its cancellation
	wasReady  bool
	watched   bool // the end of its drain is checked
	failures  int
	why       runFailure

	// What the agent knows about the resource it works on.
	read  bool
	value int64
	busy  bool // an effect is in flight
	// strayed is set if it belongs to a former primary that was fenced: it has no effects any more.
	strayed bool
	// sentTo is the number of failovers when the newest effect was sent.
	sentTo int
}

type runPhase uint8

const (
	stamping runPhase = iota
	live              // the agent's code runs
	waiting           // for the next attempt after a failure
	over
)

// runFailure is how the next attempt of a run ends by itself.
type runFailure uint8

const (
	byError runFailure = iota
	byReturn
	byRelease
)

var errAgent = errors.New("sim: the agent failed")

func (s Span) draw(w *world) time.Duration { return w.between(s.Min, s.Max) }

// startRun begins a run. Its fence is stamped first.
func (p *process) startRun(e member.Start) {
	w := p.w
	i := w.unitAt[e.Fence.Unit]
	p.note("start run", i, e.Fence.Generation, 0)
	r := &run{p: p, u: w.units[i], fence: e.Fence}
	r.stuck = w.chance(r.u.work.Stuck)
	w.check.started(w, r)
	p.runs = append(p.runs, r)
	r.stamp()
}

func (r *run) stamp() {
	w := r.p.w
	w.stats.Calls++
	w.send(&call{p: r.p, run: r, issuedAt: w.now})
}

// stamped handles the store's answer.
func (r *run) stamped(err error) {
	w := r.p.w
	var stale *daemon.StaleError
	switch {
	case r.phase != stamping:
	case r.draining || r.cancelled:
		r.end(member.Returned, nil)
	case errors.As(err, &stale):
		r.p.step(member.FenceHeld{Generation: stale.HeldGeneration})
		r.end(member.FenceRefused, err)
	case err != nil:
		r.schedule(w.between(100*time.Millisecond, 500*time.Millisecond), evRetry)
	default:
		if r.p.step(member.RunStamped{Fence: r.fence}); r.draining || r.cancelled { // the stamp has come too late
			r.end(member.Returned, nil)
			return
		}
		r.enter()
	}
}

// enter begins the agent's code.
func (r *run) enter() {
	w := r.p.w
	r.phase, r.entered, r.returnAt = live, w.now, 0
	r.epoch++
	w.stats.Runs++
	r.p.note("enter", r.u.index, r.fence.Generation, 0)
	w.check.entered(w, r)
	r.read = false // stamp first, then read, also after a failure
	r.readResource()
	if r.u.work.Spec.WaitReady {
		r.schedule(r.startTime(), evReady)
	} else {
		r.ready(r.epoch)
	}
	if r.phase == live {
		r.planEnd()
		r.schedule(w.between(0, w.t.HeartbeatInterval), evEffect)
	}
}

// startTime draws how long the run takes to be ready.
func (r *run) startTime() time.Duration {
	w, each := r.p.w, r.u.work.OneByOne
	if each == 0 {
		return r.u.work.Ready.draw(w)
	}
	h := r.p.host
	h.startsUntil = max(h.startsUntil, w.now) + each
	return h.startsUntil - w.now
}

// planEnd draws whether and when this attempt ends by itself.
func (r *run) planEnd() {
	k, w := r.u.work, r.p.w
	fails := k.FailsOn < 0 || k.FailsOn == r.p.host.index
	if stall := k.Spec.StallTimeout; fails && k.Stalls && stall > 0 { // found after up to a quarter more
		r.why = byError
		r.schedule(w.between(stall, stall+stall/4)+k.Cancel.draw(w), evFail)
		return
	}
	for _, end := range [...]struct {
		mean time.Duration
		why  runFailure
	}{{k.Fails, byError}, {k.Returns, byReturn}, {k.Releases, byRelease}} {
		if end.mean == 0 || end.why == byError && !fails {
			continue
		}
		r.why = end.why
		r.schedule(w.upTo(2*end.mean), evFail)
		return
	}
}

func (r *run) ready(epoch int64) {
	if epoch != r.epoch || r.phase != live || r.wasReady {
		return
	}
	r.wasReady = true
	r.p.step(member.RunStarted{Fence: r.fence})
}

// fails ends an attempt that nobody asked to end.
func (r *run) fails(epoch int64) {
	w := r.p.w
	if epoch != r.epoch || r.phase != live || r.stuck && r.cancelled {
		return
	}
	r.leave()
	limit := r.u.work.Spec.WithDefaults().MaxFailures
	pause := time.Second
	switch {
	case r.draining || r.cancelled:
		r.end(member.Returned, nil)
		return
	case r.why == byRelease:
		r.end(member.Released, daemon.ErrRelease)
		return
	case r.why == byError:
		r.failures++
		r.p.note("fails", r.u.index, int64(r.failures), 0)
		if limit >= 0 && r.failures >= limit {
			r.end(member.GaveUp, errAgent)
			return
		}
		pause <<= min(r.failures, 6)
		r.p.step(member.RunFailed{Fence: r.fence, Err: errAgent, Failures: r.failures})
	}
	if r.phase == waiting {
		r.schedule(w.between(pause/2, pause), evRetry)
	}
}

// retry makes the next attempt.
func (r *run) retry(epoch int64) {
	switch {
	case epoch != r.epoch:
	case r.draining || r.cancelled:
		r.end(member.Returned, nil)
	case r.phase == stamping:
		r.stamp()
	case r.phase == waiting:
		r.enter()
	}
}

// drainRun tells a run to finish what is in flight.
func (p *process) drainRun(f daemon.Fence) {
	r := p.find(f)
	if r == nil || r.draining {
		return
	}
	p.note("drain", r.u.index, f.Generation, 0)
	r.draining = true
	switch {
	case r.phase != live:
		r.soon()
	case !r.u.work.Stubborn:
		r.returnIn(r.u.work.Drain.draw(p.w))
	}
}

// cancelRun cancels a run's context.
func (p *process) cancelRun(e member.Cancel) {
	r := p.find(e.Fence)
	if r == nil || r.cancelled {
		return
	}
	p.w.note(line{what: "cancel", more: string(e.Cause), proc: int32(p.index), unit: int32(r.u.index), a: e.Fence.Generation})
	r.cancelled, r.cancelAt = true, p.w.now
	switch {
	case r.phase != live:
		r.soon()
	case !r.stuck:
		r.returnIn(min(r.u.work.Cancel.draw(p.w), p.toReturn()))
	default: // it goes on, and so do its effects
		r.returnAt = forever
		if d := r.u.work.StuckFor; d > 0 {
			r.returnAt = 0
			r.returnIn(d)
		}
	}
}

// toReturn returns the longest time in which an agent that keeps its promise returns: all of StopTimeout, by the
// fastest clock.
func (p *process) toReturn() time.Duration { return toReturn(p.t) }

func toReturn(t lease.Timing) time.Duration { return t.StopTimeout * 999 / 1000 }

// abandonRun gives a run up.
func (p *process) abandonRun(f daemon.Fence) {
	r := p.find(f)
	if r == nil {
		return
	}
	p.w.check.abandoned(p.w, r)
	if r.phase != live || r.abandoned {
		return // about to end, or answered before
	}
	p.note("abandon", r.u.index, f.Generation, 0)
	r.abandoned = true
	p.later(p.w.upTo(time.Millisecond), member.RunAbandoned{Fence: f})
}

func (p *process) find(f daemon.Fence) *run {
	for _, r := range p.runs {
		if r.fence == f {
			return r
		}
	}
	return nil
}

// soon ends a run whose agent is not running. The member is informed right away, but not within the step that
// asked for it.
func (r *run) soon() {
	r.epoch++
	r.schedule(r.p.w.upTo(time.Millisecond), evRetry)
}

// returnIn makes the agent's code return after d, or earlier if that was planned.
func (r *run) returnIn(d time.Duration) {
	w := r.p.w
	if at := w.now + d; r.returnAt == 0 || at < r.returnAt {
		r.returnAt = at
		r.schedule(d, evReturn)
	}
}

func (r *run) returns(epoch int64) {
	if epoch != r.epoch || r.phase != live || r.p.w.now < r.returnAt {
		return
	}
	r.leave()
	r.end(member.Returned, nil)
}

// leave ends the agent's code.
func (r *run) leave() {
	r.phase = waiting
	r.epoch++
	r.p.note("leave", r.u.index, r.fence.Generation, 0)
	r.p.w.check.left(r)
}

// end ends the run and informs the member.
func (r *run) end(how member.Ending, err error) {
	if r.phase == over {
		return
	}
	r.phase = over
	r.epoch++
	p := r.p
	for i, other := range p.runs {
		if other == r {
			p.runs = append(p.runs[:i], p.runs[i+1:]...)
			break
		}
	}
	p.note("run ended", r.u.index, r.fence.Generation, int64(how))
	if r.abandoned {
		p.w.check.checkReturn(p.w, r)
	}
	p.step(member.RunEnded{Fence: r.fence, How: how, Err: err, Failures: r.failures})
}

// gone ends a run together with its process; nobody is informed.
func (r *run) gone() {
	if r.phase == live {
		r.p.w.check.left(r)
	}
	r.phase = over
	r.epoch++
}

func (r *run) schedule(d time.Duration, kind eventKind) {
	w := r.p.w
	w.queue.push(event{at: w.now + d, kind: kind, p: r.p, run: r, n: r.epoch})
}
