package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// world is a cluster, its store, its network, and all checks.
type world struct {
	cfg   Config
	t     lease.Timing // the longest that any process has
	rng   *rand.Rand
	now   time.Duration
	queue queue

	server  server
	network network
	hosts   []*host
	procs   []*process // every process that ever existed
	byInc   map[node.Incarnation]*process
	works   []*Work
	units   []*unit
	unitAt  map[daemon.Unit]int

	// deploying counts the nodes that advertise something else for a while.
	deploying int
	// onNotice and loseReply are for stories: they receive notices and select replies to lose.
	onNotice  func(*process, *member.Notice)
	loseReply func(*call) bool
	// calm makes latencies as small as those of a healthy machine, for the bounds of checkAfterKill.
	calm  bool
	fault director
	check checks
	trace trace
	stats Stats
	fail  *Violation
}

// host is a machine: it has a name and a clock, and outlives its processes.
type host struct {
	index int
	name  string
	t     lease.Timing // of its next process
	clock clock
	// wall is how far the machine's wall clock is off. It only affects the IDs of new processes,
	// because a UUID of version 7 begins with the time.
	wall   time.Duration
	full   daemon.Advert // what its processes advertise, unless it deploys something else
	advert daemon.Advert
	proc   *process // the newest
	twin   *process // a second process, at times
	// A cut machine exchanges nothing with the store; a deaf one receives no replies.
	cutOff, deaf bool
	slow         time.Duration // the longest delay added to each of its messages
	standing     bool          // it is stopped, and its clock with it
	onOld        bool          // it uses a former primary that lives on
	sluggish     bool          // its timers are usually late
	// startsUntil is when the last of the starts that it makes one after another is done.
	startsUntil time.Duration
}

// unit is one unit of the cluster's work, with its runs.
type unit struct {
	daemon.Unit
	index              int
	work               *Work
	enteredAt          time.Duration
	live               []*run // entered and not returned, anywhere
	resource           resource
	externalGeneration int64 // the highest generation that a resource outside of the store has seen
}

func newWorld(cfg Config) *world {
	if cfg.Duration == 0 {
		cfg.Duration = 24 * time.Hour
	}
	if cfg.Timing == (lease.Timing{}) {
		cfg.Timing = lease.Default()
	}
	if cfg.MaxMoves == 0 {
		cfg.MaxMoves = plan.DefaultMaxMoves
	}
	w := &world{
		rng:    rand.New(rand.NewPCG(cfg.Seed, 0x73696d)),
		byInc:  map[node.Incarnation]*process{},
		unitAt: map[daemon.Unit]int{},
	}
	if cfg.Nodes == 0 {
		cfg.Nodes = 1 + w.rng.IntN(10)
	}
	w.cfg, w.t = cfg, cfg.Timing
	w.trace.out = cfg.Trace
	w.trace.name = func(u int) string { return w.units[u].String() }
	w.check.init(w)
	w.openServer()
	if w.cfg.Work == nil {
		w.cfg.Work = w.drawWork()
	}
	for i := range w.cfg.Work {
		w.declare(&w.cfg.Work[i])
	}
	for i := range w.cfg.Nodes {
		w.hosts = append(w.hosts, w.drawHost(i))
	}
	return w
}

// declare adds a daemon's units to the world.
func (w *world) declare(work *Work) {
	w.works = append(w.works, work)
	units := work.Spec.Units()
	if work.Spec.Keyed() {
		units = possibleKeys(work.Spec.ID)
	}
	for _, u := range units {
		w.unitAt[u] = len(w.units)
		w.units = append(w.units, &unit{Unit: u, index: len(w.units), work: work})
	}
}

// boot starts a process on each machine, within a few seconds, and the faults.
func (w *world) boot() {
	for _, h := range w.hosts {
		w.after(w.upTo(3*time.Second), func() { w.start(h) })
	}
	w.restartBound("boot")
	w.after(time.Hour, w.sweepHourly)
	w.fault.begin(w)
}

// violate records the first broken promise, which ends the simulation.
func (w *world) violate(rule, format string, args ...any) {
	if w.fail == nil {
		w.fail = &Violation{Rule: rule, What: fmt.Sprintf(format, args...), At: w.now, Seed: w.cfg.Seed, Tail: w.trace.lines()}
	}
}

// runUntil lets time pass until t, or until a promise is broken.
func (w *world) runUntil(t time.Duration) error {
	for w.fail == nil && !w.queue.empty() && w.queue.next() <= t {
		e := w.queue.pop()
		w.now = e.at
		w.stats.Events++
		w.dispatch(&e)
	}
	if w.fail != nil {
		return w.fail
	}
	w.now = t
	return nil
}

// runFor lets d pass.
func (w *world) runFor(d time.Duration) error { return w.runUntil(w.now + d) }

// runTill lets time pass until cond holds, at most d. It reports whether cond came to hold.
func (w *world) runTill(d time.Duration, cond func() bool) bool {
	for end := w.now + d; w.fail == nil; {
		if cond() {
			return true
		}
		if w.queue.empty() || w.queue.next() > end {
			w.now = end
			return false
		}
		_ = w.runUntil(w.queue.next())
	}
	return false
}

func (w *world) dispatch(e *event) {
	if e.kind < lastOfProcess {
		switch e.p.state {
		case dead:
			return
		case paused:
			e.p.frozen = append(e.p.frozen, *e)
			return
		case running:
			e.p.happen(e)
			return
		}
	}
	switch e.kind {
	case evArrive:
		w.arrive(e.call)
	case evEffectArrive:
		w.effectArrives(e.run, e.n)
	case evTrust:
		w.check.runTrust(w, e.run)
	case evLeaderTrust:
		w.check.checkLeaderTrust(w, e.p, e.n)
	case evOverlap:
		w.check.overlapEnds(w, int(e.n))
	case evSettled:
		w.check.checkWell(w)
	case evDo:
		e.in.(func())()
	}
}

// happen handles one event of a running process.
func (p *process) happen(e *event) {
	switch e.kind {
	case evTick:
		p.tick(e.n)
	case evSend:
		p.w.send(e.call)
	case evReply:
		p.answer(e.call)
	case evTimeout:
		p.timeout(e.call)
	case evInput:
		p.step(e.in.(member.Input))
	case evReady:
		e.run.ready(e.n)
	case evReturn:
		e.run.returns(e.n)
	case evFail:
		e.run.fails(e.n)
	case evRetry:
		e.run.retry(e.n)
	case evEffect:
		e.run.effect(e.n)
	}
}

func (w *world) after(d time.Duration, do func()) {
	w.queue.push(event{at: w.now + d, kind: evDo, in: do})
}

// upTo draws a duration in [0, d).
func (w *world) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(w.rng.Int64N(int64(d)))
}

// between draws a duration in [a, b).
func (w *world) between(a, b time.Duration) time.Duration { return a + w.upTo(b-a) }

// chance returns true with probability x.
func (w *world) chance(x float64) bool { return x > 0 && w.rng.Float64() < x }

// detail writes a line that only a full trace shows. It is not part of the hash.
func (w *world) detail(p *process, format string, args ...any) {
	if w.trace.out != nil {
		fmt.Fprintf(w.trace.out, "%14.4f p%02d     . %s\n", w.now.Seconds(), p.index, fmt.Sprintf(format, args...))
	}
}

func (w *world) note(l line) {
	l.at = w.now
	w.trace.add(l)
}
