package member

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/coordinator/plan"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// leader is the leader's loop: snapshot, judge, plan, commit.
type leader struct {
	// beats and heard watch every node's row by this node's own clock: when its sequence number
	// and what it says to have heard last changed. They are kept by followers too, as far as
	// they see rows, so that a new leader need not begin from nothing.
	beats lease.Sightings[node.Incarnation, uint64]
	// stamps are the heartbeats' stamps alone: reports move the sequence number as well.
	stamps lease.Sightings[node.Incarnation, int64]
	heard  lease.Sightings[node.Incarnation, echo]
	units  lease.Sightings[daemon.Unit, holding]
	read   lease.Read // the newest sharp read of all rows

	// grace is until when nobody is called dead: after election and after an outage.
	grace lease.Instant
	// settle is until when the leader of a young cluster in which nothing runs waits for nodes to arrive.
	settle  lease.Instant
	settled bool // whether it had to wait was decided

	phase   passPhase
	began   lease.Instant // of the newest pass
	wanted  bool
	due     lease.Instant // a pass that deadlines ask for
	snap    *daemon.Snapshot
	verdict map[node.Incarnation]node.State
	changes []storage.Change
	nodes   []storage.NodeChange
	redo    bool // something was skipped or only declared: another pass at once
	size    batch

	passSeq uint64
	failed  int // passes in a row
	// withoutPass is for how long heartbeats were answered since the first of them. While the store is
	// away as a whole it does not grow: another leader would do no better.
	withoutPass time.Duration
	retry       lease.Instant
	// quiet is the fingerprint of the newest pass that had nothing to do; the same cluster
	// again needs no plan.
	quiet fingerprint
	// unplaced is what the newest plan found no node for, unplacedTold what the hooks were told of it.
	unplaced     []plan.Unplaced
	unplacedTold map[daemon.Unit]string
	// disagreed are the disagreements told already.
	disagreed map[string]bool
	patience  lease.Instant // a plan that takes longer has failed
}

// echo is what a node says to have heard, since it registered last.
type echo struct {
	heard      uint64
	registered int64
}

// holding is what must stay unchanged for a unit's deadline to run.
type holding struct {
	generation int64
	state      daemon.State
}

type passPhase uint8

const (
	passIdle passPhase = iota
	passReading
	passPlanning
	passCommitting
)

func (l *leader) init() {
	l.forget()
	l.verdict = map[node.Incarnation]node.State{}
	l.due = lease.Never
	l.size = full()
}

// forget drops all sightings: the store became another one.
func (l *leader) forget() {
	l.beats = lease.Sightings[node.Incarnation, uint64]{}
	l.stamps = lease.Sightings[node.Incarnation, int64]{}
	l.heard = lease.Sightings[node.Incarnation, echo]{}
	l.units = lease.Sightings[daemon.Unit, holding]{}
	l.read = lease.Read{}
}

func (l *leader) see(p *node.Member, now lease.Instant) {
	l.beats.See(p.Incarnation, p.Seq, now, l.read)
	l.stamps.See(p.Incarnation, p.LastHeartbeatAt.UnixNano(), now, l.read)
	if p.Present() {
		l.heard.See(p.Incarnation, echo{p.Heard, p.RegisteredAt.UnixNano()}, now, l.read)
	} else {
		delete(l.heard, p.Incarnation) // a row that comes back begins anew
	}
}

// readRows notes that a reply observed at now told all rows.
func (m *Member) readRows(now lease.Instant, store time.Time) {
	if m.clock.Sharp() {
		m.leader.read = lease.Read{At: now, Store: store}
	}
}

// beat returns since when the node's row is unmoved, and what its heartbeat's stamp must fit.
func (l *leader) beat(inc node.Incarnation) lease.Seen {
	return lease.Seen{Since: l.beats[inc].Since, Floor: l.stamps[inc].Floor}
}

// keep forgets the rows that nobody asks for any more.
func (l *leader) keep(row func(node.Incarnation) bool) {
	l.beats.Keep(row)
	l.stamps.Keep(row)
	l.heard.Keep(row)
}

// begin starts the loop of a new term.
func (l *leader) begin(now lease.Instant, t lease.Timing) {
	l.end()
	l.grace = max(l.grace, now.Add(t.Grace()))
	l.settle, l.settled = now, false
	l.passSeq = 0
	l.want()
}

// end stops the loop; answers that are still under way are dropped.
func (l *leader) end() {
	l.phase, l.wanted, l.due, l.retry = passIdle, false, lease.Never, 0
	l.failed, l.withoutPass, l.quiet, l.snap, l.redo = 0, 0, fingerprint{}, nil, false
	l.unplaced, l.unplacedTold = nil, map[daemon.Unit]string{}
}

// want asks for a pass as soon as the one under way has ended.
func (l *leader) want() { l.wanted = true }

// planPatience is how many query timeouts a plan may take.
const planPatience = 4

// watchPass fails a pass whose plan does not come.
func (m *Member) watchPass(now lease.Instant) {
	if m.leading() && m.leader.phase == passPlanning && now >= m.leader.patience {
		m.passFailed(now, errNoPlan)
	}
}

var errNoPlan = errors.New("the plan takes too long")

func (m *Member) nextPass() lease.Instant {
	l := &m.leader
	switch {
	case m.leading() && l.phase == passPlanning:
		return l.patience
	case !m.leading() || l.phase != passIdle:
		return lease.Never
	case l.wanted:
		return l.retry
	}
	return l.due
}

// startPass begins a pass when one is wanted or due.
func (m *Member) startPass(now lease.Instant) {
	l := &m.leader
	if !m.leading() || l.phase != passIdle || now < m.nextPass() {
		return
	}
	l.wanted, l.due, l.redo = false, lease.Never, false
	l.phase, l.began = passReading, now
	m.send(now, callSnapshot, Call{Snapshot: true})
}

// fresh reports whether the answer belongs to the pass of the term this node leads.
func (m *Member) fresh(c call, phase passPhase) bool {
	return m.leading() && c.term == m.election.held.Number && m.leader.phase == phase
}

// passFailed ends a pass that failed. An error says nothing about what happened: the next pass
// begins by reading.
func (m *Member) passFailed(now lease.Instant, err error) {
	l := &m.leader
	l.phase, l.wanted = passIdle, true
	l.failed++
	l.retry = now.Add(m.jitter(min(firstRetry<<min(l.failed, 10), m.t.Backoff())))
	m.emit(Notice{Kind: PassFailed, Err: err, Term: m.election.held.Number})
}

// countWithoutPass counts the time between two answered heartbeats, none of which failed in between. A
// leader that brings no pass to its end for a whole lease, although its heartbeats are answered, resigns:
// another node should try.
func (m *Member) countWithoutPass(now lease.Instant, served time.Duration) {
	l := &m.leader
	if l.failed == 0 {
		return
	}
	if l.withoutPass += served; l.withoutPass >= m.t.LeaseDuration {
		m.resign(now, node.PassesFailed, 0, "", "")
	}
}

func (m *Member) onSnapshot(now lease.Instant, c call, r Result) {
	if !m.fresh(c, passReading) {
		return
	}
	l := &m.leader
	if r.Err != nil || r.Snapshot == nil {
		m.passFailed(now, r.Err)
		return
	}
	s := r.Snapshot
	if s.StoreID != m.store.id || s.Term.Ref() != m.election.held.Ref() || s.Term.Vacant {
		// The heartbeat is the one place where leadership is lost by what the store says.
		l.phase = passIdle
		m.beatSoon(now)
		return
	}
	m.observeClock(now, c.sent, s.Now)
	l.snap = s
	m.judge(now)
	if now < l.settle || m.stranger(now, m.t.NodeRegistrationTTL) {
		m.commitNext(now)
		return
	}
	if f := m.fingerprint(); len(l.changes) == 0 && len(l.nodes) == 0 && f == l.quiet {
		m.passDone(now)
		return
	}
	l.phase = passPlanning
	l.patience = now.Add(planPatience * m.t.QueryTimeout)
	m.callID++
	m.calls[m.callID] = call{kind: callCompute, sent: now, term: m.election.held.Number}
	m.emit(Compute{ID: m.callID, Input: m.planInput()})
}

// fingerprint of what a plan depends on; a zero one equals nothing.
type fingerprint struct {
	head  int64
	nodes uint64
	now   int64 // set while somebody waits: embargoes end by time alone
}

// fingerprint returns that of the snapshot at hand.
func (m *Member) fingerprint() fingerprint {
	s := m.leader.snap
	h := uint64(14695981039346656037)
	mix := func(text string) {
		for i := range len(text) {
			h = (h ^ uint64(text[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	for i := range s.Nodes {
		p := &s.Nodes[i]
		mix(string(p.Incarnation))
		mix(p.Advert)
		mix(string(m.leader.verdict[p.Incarnation]))
	}
	f := fingerprint{head: s.Head, nodes: h}
	if len(m.leader.unplaced) > 0 {
		f.now = s.Now.UnixNano()
	}
	return f
}

// planInput is the snapshot as the plan should see it: judged, and with what this pass frees
// already free.
func (m *Member) planInput() plan.Input {
	l, s := &m.leader, m.leader.snap
	in := plan.Input{Now: s.Now, RetireAfter: m.t.RetireAfter(), Units: s.Units}
	in.Nodes = make([]plan.Node, len(s.Nodes))
	for i := range s.Nodes {
		p := &s.Nodes[i]
		in.Nodes[i] = plan.Node{Member: *p, Advert: s.Advert(*p), State: l.verdict[p.Incarnation]}
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

func (m *Member) onPlanned(now lease.Instant, p Planned) {
	c, ok := m.calls[p.ID]
	if !ok || c.kind != callCompute {
		return
	}
	delete(m.calls, p.ID)
	if !m.fresh(c, passPlanning) {
		return
	}
	l := &m.leader
	if p.Err != nil {
		m.passFailed(now, p.Err)
		return
	}
	for i := range p.Plan.Decisions {
		l.changes = append(l.changes, m.change(&p.Plan.Decisions[i]))
		l.redo = l.redo || p.Plan.Decisions[i].Step == ""
	}
	m.tellUnplaced(&p.Plan)
	m.tellDisagreements(&p.Plan)
	if len(l.changes) == 0 && len(l.nodes) == 0 {
		l.quiet = m.fingerprint()
	}
	m.commitNext(now)
}

// change makes the guarded change of a decision.
func (m *Member) change(d *plan.Decision) storage.Change {
	c := storage.Change{
		Unit: d.Unit, Step: d.Step, Generation: d.Generation, State: d.State, To: d.To, Retired: d.Retired,
		AcknowledgeTimeout: m.t.AcknowledgeTimeout, DrainTimeout: m.t.DrainTimeout, Reason: d.Why.String(),
	}
	if d.Spec.AcknowledgeTimeout > 0 {
		c.AcknowledgeTimeout = d.Spec.AcknowledgeTimeout
	}
	if d.Spec.DrainTimeout > 0 {
		c.DrainTimeout = d.Spec.DrainTimeout
	}
	if text, err := json.Marshal(d.Why); err == nil {
		c.Detail = text
	}
	return c
}

// tellUnplaced tells of units that nobody can take, once per reason.
func (m *Member) tellUnplaced(p *plan.Plan) {
	told := make(map[daemon.Unit]string, len(p.Unplaced))
	for i := range p.Unplaced {
		u := &p.Unplaced[i]
		why := u.Why.String()
		if u.Why.Rule == plan.NotAdvertised {
			why += fmt.Sprintf("; it leaves the list %v after it became free", m.t.RetireAfter())
		}
		told[u.Unit] = why
		if m.leader.unplacedTold[u.Unit] != why {
			m.emit(Notice{Kind: Unplaced, Fence: daemon.Fence{Unit: u.Unit}, Reason: why})
		}
	}
	m.leader.unplaced, m.leader.unplacedTold = p.Unplaced, told
}

// tellDisagreements tells where nodes describe one daemon differently, once each.
func (m *Member) tellDisagreements(p *plan.Plan) {
	told := make(map[string]bool, len(p.Disagreements))
	for i := range p.Disagreements {
		d := &p.Disagreements[i]
		what := fmt.Sprintf("%s: %s says otherwise than %s: %s", d.Daemon, d.Loser.Name, d.Winner.Name, d.What)
		if d.Why != "" {
			what += "; " + d.Winner.Name + " wins: " + d.Why
		}
		told[what] = true
		if !m.leader.disagreed[what] {
			m.emit(Notice{Kind: Disagreement, Fence: daemon.Fence{Unit: daemon.Unit{Daemon: d.Daemon}}, Reason: what})
		}
	}
	m.leader.disagreed = told
}

// commitNext commits the next part of what the pass has to change, or ends the pass.
func (m *Member) commitNext(now lease.Instant) {
	l := &m.leader
	if len(l.changes) == 0 && len(l.nodes) == 0 {
		m.passDone(now)
		return
	}
	n := l.size.of(len(l.changes))
	commit := &storage.Commit{
		Term: m.election.held.Ref(), StoreID: l.snap.StoreID, HighestGeneration: m.highestGeneration,
		Changes: l.changes[:n:n], Nodes: l.nodes,
	}
	l.changes, l.nodes = l.changes[n:], nil
	l.phase = passCommitting
	m.send(now, callCommit, Call{Commit: commit})
}

func (m *Member) onCommit(now lease.Instant, c call, r Result) {
	if !m.fresh(c, passCommitting) {
		return
	}
	l := &m.leader
	switch {
	case errors.Is(r.Err, storage.ErrTermLost):
		m.lose(now, node.Replaced)
		return
	case errors.Is(r.Err, storage.ErrStoreChanged):
		l.phase = passIdle
		m.beatSoon(now) // as with a snapshot: the heartbeat is told of it
		return
	case r.Err != nil:
		l.size.failed()
		m.passFailed(now, r.Err)
		return
	}
	l.size.succeeded()
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		m.raise(0, o.Record.Generation)
		l.redo = l.redo || !o.Applied
		if o.Applied && o.Record.HeldBy(m.cfg.Node.Incarnation) {
			m.beatSoon(now) // one's own units need no wake-up
		}
	}
	m.commitNext(now)
}

func (m *Member) passDone(now lease.Instant) {
	l := &m.leader
	pause := min(max(passPause, now.Sub(l.began)), maxPassPause)
	l.phase, l.failed, l.withoutPass, l.retry = passIdle, 0, 0, now.Add(pause)
	l.passSeq++
	l.snap = nil
	l.wanted = l.wanted || l.redo
}

// passPause lies between two passes, so that a burst of wake-ups, or rows that move all the time,
// do not make the leader spin. After a long pass, of a large cluster or over a slow line, the pause is
// as long as the pass was, up to maxPassPause.
const (
	passPause    = 10 * time.Millisecond
	maxPassPause = 100 * time.Millisecond
)
