package member

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// leader is the state of the leader's passes: read a snapshot, apply the deadlines, plan, commit.
type leader struct {
	// seqSeen and echoSeen record, by this node's own clock, when each row's sequence number and its echo last
	// changed. Followers record them too, for the rows that they see, so that a new leader does not start from
	// nothing.
	seqSeen lease.Observations[node.Incarnation, uint64]
	// heartbeatStampSeen record the heartbeats' stamps alone: reports change the sequence number as well.
	heartbeatStampSeen lease.Observations[node.Incarnation, int64]
	echoSeen           lease.Observations[node.Incarnation, echo]
	units              lease.Observations[daemon.Unit, unitState]
	lastFastRead       lease.Read // the newest read of all rows that was quick enough to compare clocks by
	index              unitIndex  // of the units of the newest pass

	// graceFrom is when the election or the newest outage ended. No node is declared dead before it had its grace
	// since then.
	graceFrom lease.Instant
	// noPlacementBefore is until when the leader of a young cluster in which nothing runs waits for more nodes to join.
	noPlacementBefore lease.Instant
	formationChecked  bool // it has been decided whether to wait

	phase      passPhase
	began      lease.Instant // beginning of the newest pass
	rows       int           // in the snapshot of the term's newest pass
	joined     int           // how many more these are than in the pass before it
	committed  bool          // it has committed something
	wanted     bool
	due        lease.Instant // when a deadline needs a pass
	snap       *daemon.Snapshot
	nodeStates map[node.Incarnation]node.State
	changes    []storage.Change
	nodes      []storage.NodeChange
	backlog    backlog
	events     []daemon.Event // decisions that change no row; each is repeated until a commit succeeds
	brake      brake
	answers    []storage.CommandResult
	handOver   *plan.HandOver // resign when the pass is done; nil = no command asks for it
	passAgain  bool           // something was skipped, or a unit was only declared: do another pass at once
	size       batch
	adding     bool          // the commit in flight only adds to the store: units and assignments
	fullUntil  lease.Instant // the store had no room for more. Until then, plans declare no units
	noRoom     bool          // the present pass's plan declares none

	passSeq uint64
	failed  int // how many passes failed in a row
	// withoutPass is for how long heartbeats were answered since the first failed pass, or since a commit that changed
	// something. It does not grow while the store is away altogether, because another leader would do no better.
	withoutPass time.Duration
	retry       lease.Instant
	// idleFingerprint is the fingerprint of the newest pass that had nothing to do. The same cluster needs no plan again.
	idleFingerprint fingerprint
	// unplaced is what the newest plan found no node for. unplacedReported is what the hooks know of it: per unit,
	// the reason.
	unplaced []plan.Unplaced
	// maybeUneven is set from an election or a change of the membership until a plan found the loads even. Only then
	// does a plan move units, so that a unit that changes its node after a failure makes no other unit move.
	maybeUneven bool
	// heldBack are the units that a plan of this term found no node for. Loads were made even without them. None of them
	// comes to stay before heldBackDue.
	heldBack         map[daemon.Unit]bool
	heldBackDue      lease.Instant
	membership       uint64 // fingerprint of the nodes in the newest pass
	waiting          bool   // the newest plan waits for the membership to settle
	unplacedReported map[daemon.Unit]string
	verdicts         []plan.Verdict // of the newest plan
	// reportedDisagreements are the disagreements that the hooks know of.
	reportedDisagreements map[string]bool
	planDeadline          lease.Instant // a plan that is not there by then has failed
}

// echo is the newest sequence number that a node confirms to have received, and when the node registered.
type echo struct {
	seq        uint64
	registered int64
}

// unitState is what must stay unchanged while a unit's deadline runs.
type unitState struct {
	generation int64
	state      daemon.State
}

// passPhase is the step of the pass that is in flight.
type passPhase uint8

const (
	passIdle passPhase = iota
	passReading
	passPlanning
	passCommitting
)

// init prepares a leader loop that is idle.
func (l *leader) init() {
	l.forget()
	l.nodeStates = map[node.Incarnation]node.State{}
	l.due = lease.Never
	l.size = newBatch()
}

// forget drops all sightings after the store was replaced by another one.
func (l *leader) forget() {
	l.expectRows(0)
	l.units = lease.Observations[daemon.Unit, unitState]{}
	l.lastFastRead, l.index = lease.Read{}, unitIndex{}
}

// begin starts the passes of a new term.
func (l *leader) begin(now lease.Instant) {
	l.end()
	l.graceFrom = now
	l.noPlacementBefore, l.formationChecked = now, false
	l.passSeq, l.rows, l.joined = 0, 0, 0
	l.maybeUneven = true
	l.requestPass()
}

// end stops the passes. Answers to calls in flight will be dropped.
func (l *leader) end() {
	l.phase, l.wanted, l.due, l.retry = passIdle, false, lease.Never, 0
	l.failed, l.withoutPass, l.idleFingerprint, l.snap, l.passAgain = 0, 0, fingerprint{}, nil, false
	l.unplaced, l.unplacedReported, l.heldBack = nil, map[daemon.Unit]string{}, map[daemon.Unit]bool{}
	l.heldBackDue = 0
	l.brake, l.events, l.verdicts = brake{}, nil, nil
	l.answers, l.handOver, l.index = nil, nil, unitIndex{}
	l.fullUntil, l.noRoom = 0, false
}

// requestPass asks for a pass, as soon as the current one has ended.
func (l *leader) requestPass() { l.wanted = true }

// planTimeoutFactor is how many query timeouts a plan may take.
const planTimeoutFactor = 4

// failOverduePlan fails a pass whose plan takes too long.
func (m *Member) failOverduePlan(now lease.Instant) {
	if m.leading() && m.leader.phase == passPlanning && now >= m.leader.planDeadline {
		m.passFailed(now, errNoPlan)
	}
}

var errNoPlan = errors.New("the plan takes too long")

// nextPass returns when the pass must be continued or the next one begins.
func (m *Member) nextPass() lease.Instant {
	l := &m.leader
	switch {
	case m.leading() && l.phase == passPlanning:
		return l.planDeadline
	case !m.leading() || l.phase != passIdle:
		return lease.Never
	case l.wanted:
		return l.retry
	}
	return l.due
}

// startPass begins a pass if one is wanted or due.
func (m *Member) startPass(now lease.Instant) {
	l := &m.leader
	if !m.leading() || l.phase != passIdle || now < m.nextPass() {
		return
	}
	l.wanted, l.due, l.passAgain = false, lease.Never, false
	l.phase, l.began, l.committed = passReading, now, false
	m.send(now, callSnapshot, Call{Snapshot: true})
}

// isCurrent reports whether an answer belongs to the current pass of the term that this node leads.
func (m *Member) isCurrent(c call, phase passPhase) bool {
	return m.leading() && c.term == m.election.held.Number && m.leader.phase == phase
}

// passFailed ends a pass that failed. After an error it is unknown what was applied, so the next pass begins with
// a new snapshot.
func (m *Member) passFailed(now lease.Instant, err error) {
	l := &m.leader
	l.phase, l.wanted = passIdle, true
	l.failed++
	l.retry = now.Add(m.jitter(m.retryAfter(l.failed + 1)))
	m.emit(Notice{Kind: PassFailed, Err: err, Term: m.election.held.Number})
}

// countWithoutPass adds the time between two answered heartbeats, with no failed one in between. If a leader
// completes no pass and changes nothing for a whole LeaseDuration although its heartbeats are answered, it resigns so that
// another node can try.
func (m *Member) countWithoutPass(now lease.Instant, served time.Duration) {
	l := &m.leader
	if l.failed == 0 {
		return
	}
	if l.withoutPass += served; l.withoutPass >= m.t.LeaseDuration {
		m.resign(now, node.PassesFailed, 0, "", "")
	}
}

// onSnapshot handles the snapshot of a pass: it applies the deadlines, and then asks for a plan. Without a plan
// it commits only what the deadlines decide: while the first leader waits for nodes to join, and for
// NodeRegistrationTTL after the store was replaced by another one.
func (m *Member) onSnapshot(now lease.Instant, c call, r Result) {
	if !m.isCurrent(c, passReading) {
		return
	}
	l := &m.leader
	if r.Err != nil || r.Snapshot == nil {
		m.passFailed(now, r.Err)
		return
	}
	s := r.Snapshot
	if s.StoreID != m.store.id || s.Term.Ref() != m.election.held.Ref() || s.Term.Vacant {
		// A snapshot ends no leadership. Ask for a heartbeat instead: its reply decides.
		l.phase = passIdle
		m.beatSoon(now)
		return
	}
	m.observeClock(now, c.sent, s.Now)
	l.snap = s
	if l.rows > 0 {
		l.joined = len(s.Nodes) - l.rows
	}
	l.rows = len(s.Nodes)
	m.noteTimings(now, s.Nodes)
	m.applyDeadlines(now)
	if now < l.noPlacementBefore || m.lostUnitsMayRun(now) {
		m.commitNext(now)
		return
	}
	if l.noRoom = now < l.fullUntil; l.noRoom {
		m.requestPassAt(l.fullUntil)
	}
	f := m.fingerprint()
	if l.heldBackRuns(now) {
		l.maybeUneven, l.idleFingerprint = true, fingerprint{}
	}
	if f.members != l.membership {
		l.membership, l.maybeUneven = f.members, true
	}
	l.maybeUneven = l.maybeUneven || slices.ContainsFunc(s.Commands, func(c daemon.Command) bool { return c.Kind == daemon.CommandRebalance })
	if l.nothingDecided() && f == l.idleFingerprint {
		m.passDone(now)
		return
	}
	l.phase, l.waiting = passPlanning, false
	l.planDeadline = now.Add(planTimeoutFactor * m.t.QueryTimeout)
	m.callID++
	m.calls[m.callID] = call{kind: callCompute, sent: now, term: m.election.held.Number}
	in := m.planInput()
	in.MaxMoves, in.NoRounds = m.movesAllowed(now), m.cfg.MaxMoves <= 0
	m.emit(Compute{ID: m.callID, Input: in})
}

// movesAllowed returns how many units this pass may move to make loads even. A new leader, and one that was cut off from
// the store, first gives all nodes time to show that they live.
func (m *Member) movesAllowed(now lease.Instant) int {
	l := &m.leader
	at := l.graceFrom.Add(m.timings.longest.Grace())
	switch {
	case !l.maybeUneven || m.cfg.MaxMoves <= 0:
		return 0
	case now < at:
		m.requestPassAt(at)
		l.waiting = true
		return 0
	}
	return m.cfg.MaxMoves
}

// heldBackRuns reports whether a unit that could run nowhere has come to stay: it has run for FailuresResetAfter. Loads were made
// even without it, so another round is due.
//
// Example: the four units of a daemon need a label that one of two nodes has, and do not start there in time. While an
// embargo keeps them from that node, it gets as many others as the second one. Then it has these four as well.
//
// A unit that fails or leaves sooner makes no unit move: they would move back when it is held back again.
//
// There may be thousands of them, for example where no node has room. So they are not looked at before one may be due: a
// unit that does not run yet has FailuresResetAfter to go.
func (l *leader) heldBackRuns(now lease.Instant) (again bool) {
	if now < l.heldBackDue {
		return false
	}
	next := daemon.FailuresResetAfter
	for u := range l.heldBack {
		i, ok := slices.BinarySearchFunc(l.snap.Units, u, func(r daemon.Record, u daemon.Unit) int { return r.Unit.Compare(u) })
		if !ok {
			delete(l.heldBack, u)
			continue
		}
		r := &l.snap.Units[i]
		if r.State != daemon.Active {
			continue
		}
		left := daemon.FailuresResetAfter - l.snap.Now.Sub(r.Since)
		if left <= 0 && r.Failures == 0 {
			delete(l.heldBack, u)
			again = true
			continue
		}
		next = min(next, max(left, 0))
	}
	l.heldBackDue = now.Add(next)
	return again
}

// fingerprint identifies everything that a plan depends on. The zero value equals no other.
type fingerprint struct {
	head  int64
	nodes uint64
	// members is the part of nodes that loads depend on: a node that is late for a moment makes no unit move.
	members uint64
	failing uint64 // of units: a failure has no event, but it may decide where a daemon is sick
	now     int64  // set while time alone may change the plan: embargoes end, the membership settles, a full store has room again
}

// fingerprint returns the fingerprint of the pass's snapshot.
func (m *Member) fingerprint() fingerprint {
	s := m.leader.snap
	f := fingerprint{head: s.Head, nodes: emptyHash, members: emptyHash, failing: m.leader.index.failing}
	for i := range s.Nodes {
		p, state := &s.Nodes[i], m.leader.nodeStates[s.Nodes[i].Incarnation]
		f.nodes = mix(mix(mix(f.nodes, string(p.Incarnation)), p.Advert), string(state))
		if state != node.Removed {
			if state == node.Late {
				state = node.Live
			}
			f.members = mix(mix(mix(f.members, string(p.Incarnation)), p.Advert), string(state))
		}
	}
	if len(m.leader.unplaced) > 0 || m.leader.waiting || m.leader.noRoom {
		f.now = s.Now.UnixNano()
	}
	return f
}

// planInput returns the snapshot for the plan: with the states that applyDeadlines found, and with the units that this
// pass frees already free.
func (m *Member) planInput() plan.Input {
	l, s := &m.leader, m.leader.snap
	in := plan.Input{
		Now: s.Now, RetireAfter: m.timings.longest.RetireAfter(), SettleWindow: m.t.SettleWindow, Units: s.Units,
		StableAfter: m.timings.longest.StableAfter(),
		Term:        s.Term, Commands: s.Commands, NoRoom: l.noRoom,
	}
	in.Nodes = make([]plan.Node, len(s.Nodes))
	for i := range s.Nodes {
		p := &s.Nodes[i]
		in.Nodes[i] = plan.Node{Member: *p, Advert: s.Advert(*p), State: l.nodeStates[p.Incarnation]}
	}
	if len(l.changes) == 0 {
		return in
	}
	in.Units = slices.Clone(s.Units)
	for _, c := range l.changes {
		i, ok := slices.BinarySearchFunc(in.Units, c.Unit, func(r daemon.Record, u daemon.Unit) int { return r.Unit.Compare(u) })
		if !ok {
			continue
		}
		r := &in.Units[i]
		r.State, r.Since, r.Reason = daemon.Deleted, s.Now, c.Reason
		if c.Embargo > 0 {
			r.Embargoes = append(slices.Clone(r.Embargoes), daemon.Embargo{Incarnation: r.Holder.Incarnation, Until: s.Now.Add(c.Embargo), Length: c.Embargo})
		}
	}
	return in
}

// onPlanned handles the plan of the pass, and begins to commit.
func (m *Member) onPlanned(now lease.Instant, p Planned) {
	c, ok := m.calls[p.ID]
	if !ok || c.kind != callCompute {
		return
	}
	delete(m.calls, p.ID)
	if !m.isCurrent(c, passPlanning) {
		return
	}
	l := &m.leader
	if p.Err != nil {
		m.passFailed(now, p.Err)
		return
	}
	m.countBacklog(p.Plan.Decisions)
	expired := len(l.changes) > 0
	sortByNode(p.Plan.Decisions)
	for i := range p.Plan.Decisions {
		l.changes = append(l.changes, m.change(&p.Plan.Decisions[i]))
		l.passAgain = l.passAgain || p.Plan.Decisions[i].Step == ""
	}
	l.maybeUneven = l.maybeUneven && !p.Plan.Balanced
	if again := p.Plan.DueAt; !again.IsZero() {
		l.waiting = true
		m.requestPassAt(now.Add(again.Sub(l.snap.Now) + dueSlack))
	}
	m.noteVerdicts(p.Plan.Verdicts)
	l.handOver = p.Plan.HandOver
	for _, a := range p.Plan.Answers {
		if a.Result == daemon.ResultDrained && expired {
			l.passAgain = true // the commit may skip what frees the node's last unit: look again
			continue
		}
		// What was lifted may have kept units from a node. A move does not count: a round would only undo it.
		l.maybeUneven = l.maybeUneven || strings.HasPrefix(a.Result, daemon.ResultLifted)
		l.answers = append(l.answers, storage.CommandResult(a))
	}
	m.noticeUnplaced(&p.Plan)
	m.noticeDisagreements(&p.Plan)
	if l.nothingDecided() {
		l.idleFingerprint = m.fingerprint()
	}
	m.commitNext(now)
}

// sortByNode puts decisions into the order of the nodes that get the units. Of many units, each commit then concerns few
// nodes, and a node is woken about once instead of by every commit. It begins to start its units while others still wait for
// theirs. Units that are declared come last: a store without room for them ends the pass, which must not keep others waiting.
func sortByNode(decisions []plan.Decision) {
	last := func(d plan.Decision) int {
		if declares(&d) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(decisions, func(a, b plan.Decision) int {
		return cmp.Or(last(a)-last(b), cmp.Compare(a.To.Incarnation, b.To.Incarnation))
	})
}

// declares reports whether a decision adds a unit. One that retires a unit, or declares it again, has the row that it is of.
func declares(d *plan.Decision) bool { return d.Step == "" && d.State == "" }

// change turns a decision of the plan into a guarded change.
func (m *Member) change(d *plan.Decision) storage.Change {
	c := storage.Change{
		Unit: d.Unit, Step: d.Step, Generation: d.Generation, State: d.State, To: d.To, Retired: d.Retired,
		Reason: d.Reason.String(),
	}
	c.AcknowledgeTimeout, c.DrainTimeout = m.assignTimeouts(d.To.Incarnation,
		cmp.Or(d.Spec.AcknowledgeTimeout, m.t.AcknowledgeTimeout), cmp.Or(d.Spec.DrainTimeout, m.t.DrainTimeout))
	c.AcknowledgeTimeout = m.acknowledgeWithin(d.To.Incarnation, c.AcknowledgeTimeout)
	if text, err := json.Marshal(d.Reason); err == nil {
		c.Detail = text
	}
	return c
}

// noticeUnplaced informs the hooks of units that no node can take, once per reason.
func (m *Member) noticeUnplaced(p *plan.Plan) {
	reported := make(map[daemon.Unit]string, len(p.Unplaced))
	last := ""
	for i := range p.Unplaced {
		u := &p.Unplaced[i]
		why := u.Why.String()
		if u.Why.Rule == plan.NotAdvertised {
			why += fmt.Sprintf("; it leaves the list %v after it became free", m.timings.longest.RetireAfter())
		}
		if why == last {
			why = last // one text for all of them
		}
		last, reported[u.Unit] = why, why
		m.leader.heldBack[u.Unit] = true
		if m.leader.unplacedReported[u.Unit] != why {
			m.emit(Notice{Kind: Unplaced, Fence: daemon.Fence{Unit: u.Unit}, Reason: why})
		}
	}
	m.leader.unplaced, m.leader.unplacedReported = p.Unplaced, reported
}

// noticeDisagreements informs the hooks of daemons that nodes advertise differently, once each.
func (m *Member) noticeDisagreements(p *plan.Plan) {
	reported := make(map[string]bool, len(p.Disagreements))
	for i := range p.Disagreements {
		d := &p.Disagreements[i]
		what := fmt.Sprintf("%s: %s says otherwise than %s: %s", d.Daemon, d.Loser.Name, d.Winner.Name, d.What)
		if d.Why != "" {
			what += "; " + d.Winner.Name + " wins: " + d.Why
		}
		reported[what] = true
		if !m.leader.reportedDisagreements[what] {
			m.emit(Notice{Kind: Disagreement, Fence: daemon.Fence{Unit: daemon.Unit{Daemon: d.Daemon}}, Reason: what})
		}
	}
	m.leader.reportedDisagreements = reported
}

// nothingDecided reports whether the pass has nothing to commit.
func (l *leader) nothingDecided() bool {
	return len(l.changes)+len(l.nodes)+len(l.events)+len(l.answers) == 0
}

// commitNext commits the next batch of the pass's changes, or ends the pass.
func (m *Member) commitNext(now lease.Instant) {
	l := &m.leader
	if l.nothingDecided() {
		m.passDone(now)
		return
	}
	n := l.size.atMost(len(l.changes))
	commit := &storage.Commit{
		Term: m.election.held.Ref(), StoreID: l.snap.StoreID, HighestGeneration: m.highestGeneration,
		Changes: l.changes[:n:n], Nodes: l.nodes, Events: l.events, Commands: l.answers,
	}
	l.adding = n > 0 && len(l.nodes)+len(l.events)+len(l.answers) == 0 && !slices.ContainsFunc(commit.Changes, func(c storage.Change) bool {
		return c.Step != daemon.Assign && (c.Step != "" || c.State != "")
	})
	l.changes, l.nodes, l.answers = l.changes[n:], nil, nil
	l.phase, l.committed = passCommitting, true
	m.send(now, callCommit, Call{Commit: commit})
}

// onCommit handles the answer to one batch of the pass's changes.
func (m *Member) onCommit(now lease.Instant, c call, r Result) {
	if !m.isCurrent(c, passCommitting) {
		return
	}
	l := &m.leader
	switch {
	case errors.Is(r.Err, storage.ErrTermLost):
		m.endLeadership(now, node.Replaced)
		return
	case errors.Is(r.Err, storage.ErrStoreChanged):
		l.phase = passIdle
		m.beatSoon(now) // as with a snapshot: the heartbeat's reply decides
		return
	case errors.Is(r.Err, storage.ErrFull) && l.adding:
		l.size.failed() // there may be room for fewer
		m.passEndsFull(now, r.Err)
		return
	case r.Err != nil:
		if errors.Is(r.Err, storage.ErrFull) {
			l.withoutPass = 0 // another leader would have no more room
		}
		l.size.failed()
		m.passFailed(now, r.Err)
		return
	}
	l.size.succeeded()
	l.events = nil
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		m.noteHighest(0, o.Record.Generation)
		l.passAgain = l.passAgain || !o.Applied
		if o.Applied {
			l.withoutPass = 0 // the pass may yet fail, but this leader gets on
		}
		if o.Applied && o.Record.HeldBy(m.cfg.Node.Incarnation) {
			m.beatSoon(now) // this node's own units need no wake-up
		}
	}
	m.commitNext(now)
}

// passEndsFull ends a pass in which all but what the store has no room for is done: assignments and declarations are the last
// in it. It is done, so that a command to hand the term over is followed. For a heartbeat interval, plans declare no units.
// Otherwise no plan would find that there is nothing else to decide, and make the loads even.
func (m *Member) passEndsFull(now lease.Instant, err error) {
	l := &m.leader
	l.changes, l.fullUntil = nil, now.Add(m.t.HeartbeatInterval)
	m.requestPassAt(l.fullUntil)
	m.emit(Notice{Kind: PassFailed, Err: err, Term: m.election.held.Number})
	m.passDone(now)
}

// passDone ends a pass in which every call succeeded, or failed for want of room alone.
func (m *Member) passDone(now lease.Instant) {
	l := &m.leader
	pause := min(max(passPause, now.Sub(l.began)), maxPassPause)
	if !l.committed && (len(l.index.timed) >= startsPerTimeout || l.joined >= crowdOfJoins) {
		pause *= crowdPause
	}
	l.phase, l.failed, l.withoutPass, l.retry = passIdle, 0, 0, now.Add(pause)
	l.passSeq++
	l.snap, l.changes, l.units, l.heldBack = nil, nil, shrunk(l.units), shrunk(l.heldBack)
	l.wanted = l.wanted || l.passAgain
	if h := l.handOver; h != nil {
		m.resign(now, node.Resigned, 0, "", h.Actor)
	}
}

// passPause lies between two passes, so that a burst of wake-ups or rows that change all the time do not keep the
// leader busy. After a long pass (a large cluster, a slow connection) the pause is as long as the pass was, up to
// maxPassPause. It is crowdPause times as long if the pass found nothing to do while many units start, or while many nodes
// join: each report about them, and each registration, wakes the leader, and the time that it spends on looking is missing where
// they are started.
const (
	passPause    = 10 * time.Millisecond
	maxPassPause = 100 * time.Millisecond
	crowdPause   = 3
	crowdOfJoins = 4 // nodes that have joined since the pass before
)
