package sim

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// forever is later than every moment of a world.
const forever = time.Duration(math.MaxInt64)

// checks is all checks of a world. They see calls, replies, events of the store and effects of members. They
// never read a member's own state.
type checks struct {
	model       model // the state according to the store's events; a failover restores it
	terms       terms // all terms, across failovers
	leaderTerms []*leaderTerm
	issued      []int64 // by unit: the highest generation ever issued
	owners      []owner // by unit: the newest generation entered, and by which process

	failedOverAt time.Duration // 0 = never

	settled     bool
	settleArmed bool
	steadied    bool // a node that flapped became steady, at steadiedAt: it gets its share again
	steadiedAt  time.Duration
	disturbedAt time.Duration
	well        []bool          // by unit: was running when the cluster was found well
	heldBack    []bool          // by unit: embargoes kept it from running when the cluster was found well
	movedAt     []time.Duration // by unit: when a round revoked it last
	roundUntil  time.Duration   // until then, a round may follow because such a unit runs again
	recheckedAt time.Duration   // when the end of an embargo or such a round was checked last

	revoked []revocation               // by unit
	deafBy  map[node.Incarnation]*call // by node: the call that declared it deaf

	// asOf is the term before the call that is being applied; applying is that call.
	operations operations

	asOf     model
	applying *call
	forged   bool // the simulator itself writes
}

// processHistory is what the checks remember of a process.
type processHistory struct {
	doomed     *call
	pausedTill time.Duration // while paused: the end; otherwise, when the last pause ended
	paused     bool

	leading   bool
	leaseFrom time.Duration // when the newest call whose answer renewed its term was issued
	beatAt    time.Duration // when its newest heartbeat was applied
	heard     uint64
	heardAt   time.Duration // when its row last confirmed a new reply
	sawTerm   int64         // the highest term in any answer to it
	store     string        // as in the newest answered heartbeat
	known     map[node.Incarnation]bool

	// unaware is set after a standstill that the process cannot notice, until a heartbeat that it sent since is
	// answered, or until its validity is over. sentSince is when the standstill ended.
	unaware   bool
	sentSince time.Duration
	// strayed is set when a former primary that the process used ends, until the process knows.
	strayed  bool
	reported highestSeen

	changedAt time.Duration // when it learned that the store is another one; 0 = never
	mustLose  bool          // it led at that moment
}

func (p *processHistory) init() { p.known = map[node.Incarnation]bool{} }

// owner is the process that entered a generation.
type owner struct {
	generation int64
	process    int
}

func (c *checks) init(*world) {
	c.deafBy = map[node.Incarnation]*call{}
	c.operations.init()
}

// grow makes room for units that were declared since.
func (c *checks) grow(n int) {
	for len(c.model.units) < n {
		c.model.units = append(c.model.units, unitModel{state: daemon.Unassigned})
	}
	for len(c.issued) < n {
		c.revoked = append(c.revoked, revocation{})
		c.issued, c.owners, c.well = append(c.issued, 0), append(c.owners, owner{process: -1}), append(c.well, false)
		c.heldBack, c.movedAt = append(c.heldBack, false), append(c.movedAt, 0)
	}
}

// excuse returns until when the code of a process may act on what a pause has made stale. It needs d to notice
// and to end.
func (p *process) excuse(d time.Duration) time.Duration {
	switch {
	case p.state == paused || p.watch.unaware:
		return forever
	case !p.watch.paused:
		return 0
	}
	return p.watch.pausedTill + d
}

// noticed returns how long after a pause a leadership or run may still go on.
func (p *process) noticed(then time.Duration) time.Duration {
	return p.t.ClockCheckInterval + p.t.Wakeup + slow(then)
}

// slow returns the longest real time in which any clock counts d, and quick the shortest.
func slow(d time.Duration) time.Duration { return d + d*maxPPM/1e6 + d/1e6 }

func quick(d time.Duration) time.Duration { return d - d*maxPPM/1e6 - d/1e6 }

// event handles an event of the store.
func (c *checks) event(w *world, e *daemon.Event) {
	u := -1
	if !e.Unit.IsZero() {
		var ok bool
		if u, ok = w.unitAt[e.Unit]; !ok {
			w.violate("I8", "event %d is about %s, which nobody declared", e.Seq, e.Unit)
			return
		}
	}
	who := int32(-1)
	if p := w.byInc[e.Incarnation]; p != nil {
		who = int32(p.index)
	}
	w.note(line{what: string(e.Kind), more: e.Reason, proc: who, unit: int32(u), a: e.Generation, b: e.Term})
	c.grow(len(w.units))
	before := c.model.term
	if err := c.model.event(e, u); err != nil {
		w.violate(err.rule, "%s", err.what)
		return
	}
	c.deadlines(w, e, u)
	c.operations.event(w, e)
	switch e.Kind {
	case daemon.LeaderLost:
		if e.Reason == string(node.ProcessEnded) {
			w.stats.Proven++
			c.proven(w, e)
		}
	case daemon.LeaderElected:
		c.checkElection(w, e, before)
	case daemon.AssignmentAssigned, daemon.AssignmentResumed, daemon.AssignmentPostponed:
		w.stats.Assignments++
		c.above(w, e)
		if e.Kind == daemon.AssignmentPostponed {
			w.stats.Postponed++
		}
		if err := checkIssued(&c.issued[u], e); err != nil {
			w.violate(err.rule, "%s", err.what)
		}
	case daemon.NodeRegistered:
		if p := w.byInc[e.Incarnation]; p != nil {
			p.watch.heardAt = w.now
		}
	case daemon.NodeRemoved:
		if p := w.byInc[e.Incarnation]; p != nil {
			p.watch.reported = highestSeen{}
		}
		c.removed(w, e)
	case daemon.NodeDeaf:
		c.calledDeaf(w, e)
	case daemon.LedgerCleared:
		if strings.HasPrefix(e.Reason, "lost ") {
			c.steadied, c.steadiedAt = true, w.now
		}
	}
	c.checkNothingMoves(w, e, u)
}

// checkElection checks the term of a leader that was elected. before is the store's term until then.
func (c *checks) checkElection(w *world, e *daemon.Event, before int64) {
	w.stats.Elections++
	c.above(w, e)
	if c.terms.forgotten(e.At) && !w.anySaw(c.terms.highest) {
		c.terms.highest = before
	}
	if err := c.terms.elected(e.Term); err != nil {
		w.violate(err.rule, "%s", err.what)
	}
}

// before and after are called around a call that the store applies.
func (c *checks) before(_ *world, cl *call) {
	c.applying = cl
	c.asOf.term, c.asOf.leader, c.asOf.vacant = c.model.term, c.model.leader, c.model.vacant
}

func (c *checks) after(w *world, cl *call) {
	c.applying = nil
	res := &cl.result
	if res.Err != nil {
		return
	}
	c.grow(len(w.units))
	if err := decided(cl, storeID(w.server.failovers)); err != nil {
		w.violate(err.rule, "%s", err.what)
	}
	switch {
	case cl.req.Heartbeat != nil:
		c.beat(w, cl, cl.req.Heartbeat, res.Reply)
	case cl.req.Report != nil:
		c.outcomes(w, res.Outcomes)
	case cl.req.Commit != nil:
		if err := c.asOf.commit(cl.req.Commit.Term); err != nil {
			w.violate(err.rule, "%s", err.what)
		}
		c.outcomes(w, res.Outcomes)
	}
}

// decided checks a report or commit that the named store has accepted. The process must have decided it from that
// store, not from another one.
func decided(cl *call, store string) *broken {
	if (cl.req.Report != nil || cl.req.Commit != nil) && cl.read != store {
		return breaks("store identity", "%s accepted what was decided from %s: %s", store, cl.read, cl)
	}
	return nil
}

// beat handles an applied heartbeat.
func (c *checks) beat(w *world, cl *call, beat *storage.Heartbeat, r *storage.Reply) {
	p := &cl.p.watch
	p.beatAt = w.now
	p.reported = highestSeen{max(p.reported.term, beat.HighestTerm), max(p.reported.generation, beat.HighestGeneration)}
	c.terms.reported(beat.HighestTerm)
	if beat.ConfirmedSeq > p.heard {
		p.heard, p.heardAt = beat.ConfirmedSeq, w.now
	}
	if err := c.model.checkUnits(r.Units, cl.p.who.Incarnation, w.unitAt); err != nil {
		w.violate(err.rule, "%s", err.what)
	}
}

// outcomes compares the store's answer with its events. One batch may free a unit and assign it again, so only
// the last outcome of each unit is the present state.
func (c *checks) outcomes(w *world, outcomes []storage.Outcome) {
	for i := range outcomes {
		rec := &outcomes[i].Record
		later := slices.ContainsFunc(outcomes[i+1:], func(o storage.Outcome) bool { return o.Unit == rec.Unit })
		if rec.Unit.IsZero() || later {
			continue
		}
		if err := c.model.checkRow(rec, w.unitAt); err != nil {
			w.violate(err.rule, "%s", err.what)
		}
	}
}

// answered handles a reply that is about to be delivered to a process.
func (c *checks) answered(p *process, cl *call) {
	res := &cl.result
	switch {
	case res.Err != nil:
	case res.Snapshot != nil:
		p.watch.sawTerm = max(p.watch.sawTerm, res.Snapshot.Term.Number)
	case res.Reply != nil:
		r := res.Reply
		c.noteStore(p.w, p, r)
		if p.watch.unaware && cl.issuedAt >= p.watch.sentSince {
			c.aware(p.w, p)
		}
		p.watch.sawTerm = max(p.watch.sawTerm, r.Term.Number)
		if r.Verdict != storage.Refuse && r.Term.Leader.Incarnation == p.who.Incarnation {
			p.watch.leaseFrom = cl.issuedAt
		}
		for i := range r.Units {
			p.list(&r.Units[i], cl.issuedAt)
		}
	case cl.req.Report != nil: // of its commits a leader learns nothing about its own units: its next heartbeat lists them
		for i := range res.Outcomes {
			p.list(&res.Outcomes[i].Record, cl.issuedAt)
		}
	}
}

// list notes that a reply to a call issued at issuedAt lists the record for the process.
func (p *process) list(r *daemon.Record, issuedAt time.Duration) {
	if !r.HeldBy(p.who.Incarnation) {
		return
	}
	p.watch.sawTerm = max(p.watch.sawTerm, r.Term)
	l := &p.listings[p.w.unitAt[r.Unit]]
	if r.Generation != l.generation || issuedAt > l.sent {
		*l = listed{r.Generation, issuedAt}
	}
	for _, run := range p.runs {
		if run.fence == r.Fence() {
			run.listed = max(run.listed, issuedAt)
		}
	}
	p.w.check.checkDrainCancelled(p.w, p, r)
}

// notice handles a notice from a member for hooks, log and metrics.
func (c *checks) notice(w *world, p *process, n *member.Notice) {
	u := -1
	if !n.Fence.Unit.IsZero() {
		u = w.unitAt[n.Fence.Unit]
	}
	more := n.Reason
	if n.Err != nil && more == "" {
		more = n.Err.Error()
	}
	w.note(line{what: string(n.Kind), more: more, proc: int32(p.index), unit: int32(u), a: n.Fence.Generation})
	if w.onNotice != nil {
		w.onNotice(p, n)
	}
	inc := n.Member.Incarnation
	switch n.Kind {
	case member.NodeJoined:
		if p.watch.known[inc] {
			w.violate("hooks", "p%02d was told twice that %s joined", p.index, inc)
		}
		p.watch.known[inc] = true
	case member.NodeLeft:
		if !p.watch.known[inc] {
			w.violate("hooks", "p%02d was told that %s left, which never joined", p.index, inc)
		}
		delete(p.watch.known, inc)
	}
}
