package member

import (
	"math/rand/v2"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Member is one node's state machine. Create it with New; the package comment says how to drive it.
type Member struct {
	cfg Config
	t   lease.Timing
	rng *rand.Rand
	out []Effect

	// calls are the calls in flight. An answer to a call that is not in it is late, and is dropped.
	calls  map[uint64]call
	callID uint64
	// seq is the sequence number of heartbeats, reports and leaves; see package storage.
	seq uint64

	heartbeats heartbeatState
	clock      lease.Clock
	store      storeIdentity
	election   election
	runs       runs
	starts     startLimiter
	leader     leader
	peers      peers
	timings    timings
	load       storeLoad
	stop       stop

	// highestTerm and highestGeneration are the highest numbers seen anywhere. Every heartbeat
	// carries them.
	highestTerm, highestGeneration int64
}

// call is a call in flight.
type call struct {
	kind callKind
	sent lease.Instant
	// term is the term under which the leader made the call. An answer for another term is dropped.
	term int64
	// drains is set for a leave that also marks the node as draining.
	drains bool
}

// callKind is the request of a call, and decides who handles its answer.
type callKind uint8

const (
	callHeartbeat callKind = iota
	callReport
	callLeave
	callDeregister
	callSnapshot
	callCompute
	callCommit
	callAnswer // answers an operator's command; if it fails, the next heartbeat's reply repeats the command
)

// New returns a member that has not called the store yet. Its first Step sends the first heartbeat.
func New(cfg Config, now lease.Instant) *Member {
	t := cfg.Timing
	m := &Member{
		cfg: cfg, t: t,
		rng:   rand.New(rand.NewPCG(cfg.Seed, 0x656d697464)),
		calls: map[uint64]call{},
		clock: lease.Clock{Step: t.ClockStep, Window: clockWindow(t)},
	}
	m.heartbeats = heartbeatState{due: now, wake: lease.Never, sendAdvert: true, wantMembers: true, cursor: -1, returned: map[daemon.Unit]int64{}}
	m.election = election{validUntil: lease.Never, campaignAt: lease.Never}
	m.stop = stop{deadline: lease.Never}
	m.runs.init()
	m.starts.init()
	m.leader.init()
	m.peers.known = map[node.Incarnation]KnownMember{}
	m.load.tooSlowSince = lease.Never
	m.advertise(cfg.Advert)
	m.timings = timings{of: map[node.Incarnation]knownTiming{}, longest: t}
	return m
}

// advertise sets what this node declares about itself, its durations included.
func (m *Member) advertise(a daemon.Advert) {
	a.Traits.Timing = m.t.Shared()
	m.cfg.Advert = a
}

// Step handles an input that happened at now and returns the effects, in order. The slice is valid
// until the next call.
func (m *Member) Step(now lease.Instant, in Input) []Effect {
	m.out = nil // the effects before are not kept: a plan's input is among them
	if m.stop.phase == stopDone {
		return nil
	}
	// Deadlines come before the input. After a pause of the process, a queued answer must not be
	// handled by a node that still counts itself as leader although its validity is over.
	m.checkDeadlines(now)
	m.handle(now, in)
	m.sendDue(now)
	return m.out
}

// handle passes the input to the part that it concerns.
func (m *Member) handle(now lease.Instant, in Input) {
	switch in := in.(type) {
	case Result:
		m.onResult(now, in)
	case Planned:
		m.onPlanned(now, in)
	case WakeUp:
		m.onWoken(now, in.Wake)
	case RunStamped:
		m.onRunStamped(now, in.Fence)
	case RunStarted:
		m.onRunStarted(now, in.Fence)
	case RunEnded:
		m.onRunEnded(now, in)
	case RunAbandoned:
		m.onRunAbandoned(now, in.Fence)
	case RunFailed:
		m.onRunFailed(now, in)
	case FenceHeld:
		m.noteHighest(0, in.Generation)
	case Advertise:
		m.advertise(in.Advert)
		m.heartbeats.sendAdvert, m.heartbeats.advertInFlight = true, false
		m.beatSoon(now)
	case Resign:
		m.resign(now, in.Reason, in.Cooldown, "", "")
	case LeaderIdle:
		m.onLeaderIdle(now, in.Term)
	case ExitEvidence:
		m.onExitEvidence(now, in.Ended)
	case Stop:
		m.beginStop(now)
	}
}

// checkDeadlines acts on deadlines that have passed.
func (m *Member) checkDeadlines(now lease.Instant) {
	if m.leading() && now >= m.election.validUntil {
		m.endLeadership(now, node.ValidityEnded)
	}
	m.advanceResign(now)
	m.checkRunDeadlines(now)
	m.failOverduePlan(now)
	m.checkStopDeadline(now)
}

// sendDue sends what is due.
func (m *Member) sendDue(now lease.Instant) {
	if m.stop.phase == stopDone {
		return
	}
	m.startWaiting(now)
	m.sendHeartbeat(now)
	m.sendReports(now)
	m.startPass(now)
	m.advanceStop(now)
}

// Next returns the latest moment at which Step must be called with a Tick.
func (m *Member) Next() lease.Instant {
	if m.stop.phase == stopDone {
		return lease.Never
	}
	next := min(m.nextBeat(), m.nextResign(), m.nextRun(), m.nextPass(), m.starts.next(), m.stop.next())
	if m.leading() {
		next = min(next, m.election.validUntil)
	}
	return next
}

// shrunk returns the map, or a new one if it is empty: a map that once was large never gets small again.
func shrunk[M ~map[K]V, K comparable, V any](m M) M {
	if len(m) > 0 {
		return m
	}
	return M{}
}

// emit adds an effect to those of the current Step.
func (m *Member) emit(e Effect) { m.out = append(m.out, e) }

// send emits a call and records it as in flight.
func (m *Member) send(now lease.Instant, kind callKind, c Call) {
	m.callID++
	c.ID, c.Timeout = m.callID, m.t.QueryTimeout
	m.calls[c.ID] = call{kind: kind, sent: now, term: m.election.held.Number, drains: c.Leave != nil && c.Leave.Drain}
	m.emit(c)
}

// nextSeq returns the next sequence number.
func (m *Member) nextSeq() uint64 {
	m.seq++
	return m.seq
}

// noteHighest updates the highest numbers seen.
func (m *Member) noteHighest(term, generation int64) {
	m.highestTerm = max(m.highestTerm, term)
	m.highestGeneration = max(m.highestGeneration, generation)
}

// spread returns a random duration in [0, d).
func (m *Member) spread(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(m.rng.Int64N(int64(d)))
}

// jitter returns d ± 10 %.
func (m *Member) jitter(d time.Duration) time.Duration { return d - d/10 + m.spread(d/5) }

// onResult passes the answer of a call to its handler.
func (m *Member) onResult(now lease.Instant, r Result) {
	c, ok := m.calls[r.ID]
	if !ok {
		return
	}
	delete(m.calls, r.ID)
	switch c.kind {
	case callHeartbeat:
		m.onHeartbeat(now, c, r)
	case callReport:
		m.onReport(now, r)
	case callLeave:
		m.onLeave(now, c, r)
	case callDeregister:
		m.finish()
	case callSnapshot:
		m.onSnapshot(now, c, r)
	case callCommit:
		m.onCommit(now, c, r)
	case callCompute, callAnswer:
	}
}

// View returns a copy of the member's state.
func (m *Member) View() View {
	v := View{
		Leading: m.leading(), Term: m.election.seen, LeaderValidUntil: m.election.validUntil, RunsValidUntil: m.runsValidUntil(),
		LastAnswered: m.heartbeats.lastAnsweredSent, Stopping: m.stop.phase != stopNone, Registered: m.heartbeats.everAnswered,
		StoreID: m.store.id, ClockSteps: m.clock.Steps(), PassSeq: m.leader.passSeq, PassesFailed: m.leader.failed,
	}
	if l := m.load; l.refusedReason != nil {
		v.NoRoom = l.refusedReason
	} else if l.current != nil {
		if l.reportedSlow {
			v.TooSlow = l.current
		}
		v.ChangeTime, v.ChangeTimeLimit = l.current.Change, ChangeTimeBudget(m.t)/time.Duration(max(l.current.Nodes, 1))
	}
	if v.Leading {
		v.Unplaced = m.leader.unplaced
		v.Braked = m.leader.brake.since != 0 && !m.leader.brake.over
	}
	v.Runs = make([]RunView, len(m.runs.sorted))
	for i, u := range m.runs.sorted {
		r := m.runs.live[u]
		v.Runs[i] = RunView{Fence: daemon.Fence{Unit: u, Generation: r.Generation}, Phase: r.phase(), ValidUntil: r.validUntil}
	}
	return v
}

// storeIdentity is the store's ID and since when this node knows it.
type storeIdentity struct {
	id string
	// changedAt is when this node saw the ID change; 0 = never.
	changedAt lease.Instant
	// term is the highest term known at that moment. A later term is above every generation that
	// the lost history gave out. Before there is one, this node asks for no new generation (see
	// resume).
	term int64
}

// storeChangedWithin reports whether the store was replaced by another one less than d ago. What this node
// knows about other nodes may then be wrong.
func (m *Member) storeChangedWithin(now lease.Instant, d time.Duration) bool {
	return m.store.changedAt != 0 && now.Sub(m.store.changedAt) < d
}

// lostUnitsMayRun reports whether the store was replaced less than a NodeRegistrationTTL ago, the longest that any
// node has. Others may still run what the lost rows gave them.
func (m *Member) lostUnitsMayRun(now lease.Instant) bool {
	return m.storeChangedWithin(now, m.timings.longest.NodeRegistrationTTL)
}

// onMembership handles the membership in a reply: the changes, or the whole list.
func (m *Member) onMembership(now lease.Instant, r *storage.Reply) {
	for _, e := range r.Events {
		switch e.Kind {
		case daemon.NodeRegistered:
			m.memberJoined(KnownMember{Identity: node.Identity{Name: e.Node, ID: e.NodeID, Incarnation: e.Incarnation}})
			m.heartbeats.unlistedJoins = m.heartbeats.unlistedJoins || e.Incarnation != m.cfg.Node.Incarnation
		case daemon.NodeRemoved:
			m.memberLeft(e.Incarnation, e.Reason)
		}
	}
	if n := len(r.Events); n > 0 {
		m.heartbeats.cursor = r.Events[n-1].Seq
	} else if r.Members == nil && m.heartbeats.cursor >= 0 {
		m.heartbeats.cursor = max(m.heartbeats.cursor, r.Head) // the events up to there are about units
	}
	if r.Members != nil {
		m.observeMembers(now, r.Now, r.Members)
		m.heartbeats.wantMembers, m.heartbeats.unlistedJoins, m.heartbeats.memberListAt = false, false, now
	}
	m.compareLoad(now, r)
	if r.EventsMissing || m.heartbeats.cursor < 0 || r.Head < m.heartbeats.cursor {
		// The cursor is too far behind, or unset, or ahead of a store that lost events. Ask for the
		// whole list next time, and for the events after this number.
		m.heartbeats.wantMembers = m.heartbeats.wantMembers || r.Members == nil
		m.heartbeats.cursor = r.Head
	}
}
