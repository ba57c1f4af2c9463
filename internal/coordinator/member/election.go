package member

import (
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

const storeChanged = node.StoreChanged

// election is what this node knows about the term, and its own part in the election.
type election struct {
	// held is the term that this node leads; its Number is 0 while it does not lead.
	held node.Term
	// validUntil is until when this node may act as leader, counted from before the newest answered renewal.
	validUntil lease.Instant
	// highestLost is the highest number of a term for which this node published LeadershipLost. Such a term is never led
	// again, although the store may still renew it: leader-only work and the hooks were told that it is over. An
	// example: node A pauses beyond its validity and publishes LeadershipLost for term 7. Its delayed renewal of term 7
	// then succeeds in the store. A does not lead term 7 again; it asks for a new term.
	highestLost int64

	// seen and renewals are the newest term in a reply, and how often it was renewed. observedAt is when this (term,
	// renewals) was first observed. lastFastReply is the newest read that was quick enough to compare clocks by.
	// leaseEnd is when the lease in that reply ends. It is Never if the store's clock may have stepped since the lease
	// was stamped, or if the holder's durations are not known. Then only a term that stays unchanged for a whole
	// LeaseDuration counts as over.
	seen          node.Term
	renewals      int64
	leaseEnd      lease.Instant
	lastFastReply lease.Read
	observedAt    lease.Seen
	// campaignAt is when to campaign next; Never while there is no reason to.
	campaignAt lease.Instant

	// resigning is the term that is being given up; its Number is 0 when there is none.
	resigning resigning
	// block keeps this node from campaigning after it resigned.
	block block
	// yields makes this node let others campaign first: an operator drains it, or hands the present term over to
	// another node.
	yields bool
}

// resigning covers the time from LeadershipLost to the resignation: wait for leader-only work, then resign.
type resigning struct {
	number   int64
	reason   node.LossReason
	deadline lease.Instant // leader-only work must have returned by then
	idle     bool          // leader-only work has returned
	sent     bool          // the leave is in flight
	tries    int
	retry    lease.Instant
	command  string
	actor    string
}

// block lasts until another node has led, or until a moment.
type block struct {
	term  int64
	until lease.Instant
}

// leading reports whether this node leads a term.
func (m *Member) leading() bool { return m.election.held.Number != 0 }

// forget drops what was observed of the term, after the store was replaced by another one.
func (e *election) forget() {
	e.seen, e.renewals, e.campaignAt, e.lastFastReply = node.Term{}, 0, lease.Never, lease.Read{}
}

// holds reports whether this process holds the term.
func (m *Member) holds(t node.Term) bool {
	return t.Held() && t.Leader.ID == m.cfg.Node.ID && t.Leader.Incarnation == m.cfg.Node.Incarnation
}

// mayCampaign reports whether this node may campaign now.
func (m *Member) mayCampaign(now lease.Instant) bool {
	e := &m.election
	switch {
	case m.cfg.Advert.Traits.NeverLead, m.stop.phase != stopNone, e.resigning.number != 0:
		return false
	case m.heartbeats.failures > 0 || !m.heartbeats.everAnswered:
		// A node that receives no replies would be elected again and again without learning of it.
		return false
	case m.formerLeaderMayAct(now):
		return false
	case e.block.term != 0 && now < e.block.until && e.seen.Number <= e.block.term:
		return false
	case now < m.yieldsUntil():
		return false
	}
	return true
}

// formerLeaderMayAct reports whether the store was replaced less than a LeaseDuration ago, the longest that any node
// has. The leader of the lost history may still consider itself the leader.
//
// Example: A is elected in term 8. The database fails over to a standby that has not received that: there term 7 of
// Z is over. B could win an election at once. But A has not heard of the failover, and acts as the leader until its
// next heartbeat tells it, or until its validity is over. So B campaigns only once a whole lease has passed.
func (m *Member) formerLeaderMayAct(now lease.Instant) bool {
	return m.storeChangedWithin(now, m.timings.longest.LeaseDuration)
}

// leaseUnknown reports whether the lease may be over but this node does not know how long it lasts: the holder has
// joined since the newest member list. The next heartbeat asks for the list instead of campaigning.
func (m *Member) leaseUnknown(now lease.Instant) bool {
	e := &m.election
	return e.seen.Held() && !m.knowsTimings(e.seen.Leader.Incarnation) && now.Sub(e.observedAt.Since) >= m.t.LeaseDuration
}

// termRequest returns what the heartbeat sent at now requests about the term: to renew it, to campaign for the next
// one, or neither.
func (m *Member) termRequest(now lease.Instant) storage.TermRequest {
	e := &m.election
	c := storage.TermRequest{Lease: m.t.LeaseDuration, LostThrough: e.highestLost, PassSeq: m.leader.passSeq}
	if m.leading() {
		c.Renew = e.held.Number
		return c
	}
	if !m.mayCampaign(now) {
		return c
	}
	// Campaign if the term is free, if it is this process's own but the reply was lost, or if this heartbeat
	// carries exit evidence of its holder.
	c.Campaign = !e.seen.Held() || m.holds(e.seen) || slices.Contains(m.heartbeats.ended, e.seen.Leader.Incarnation)
	if c.Campaign {
		return c
	}
	if !m.knowsTimings(e.seen.Leader.Incarnation) {
		return c
	}
	unchanged := now.Sub(e.observedAt.Since) >= m.timingsFor(e.seen.Leader.Incarnation).LeaseDuration
	// Leave a held term alone until its lease is over: a campaign makes the store write more than the node's row.
	c.Campaign = (now >= e.leaseEnd && !m.cfg.Store.NoClock) || unchanged
	if c.Campaign {
		// The store elects this node only if the term still has exactly this number and count of renewals. An
		// example: B and C see term 7 of A at renewal 40 unchanged for a lease. A's renewal 41 reaches the store
		// first, so the store refuses both. If it does not, B's campaign makes the term 8, and the store refuses
		// C.
		c.SeenTerm, c.SeenRenewals, c.Unchanged = e.seen.Number, e.renewals, unchanged
	}
	return c
}

// yieldsUntil returns until when this node lets others campaign first. It is bounded: if nobody else takes the term, this
// node does.
func (m *Member) yieldsUntil() lease.Instant {
	e := &m.election
	if !e.yields {
		return 0
	}
	longest := m.timings.longest
	until := e.observedAt.Since.Add(2*longest.HeartbeatInterval + longest.QueryTimeout)
	if e.seen.Held() {
		until = until.Add(m.timingsFor(e.seen.Leader.Incarnation).LeaseDuration)
	}
	return until
}

// observeCommands decides from the open commands whether this node lets others campaign first.
func (m *Member) observeCommands(r *storage.Reply) {
	me := m.cfg.Node.Name
	m.election.yields = slices.ContainsFunc(r.Commands, func(c storage.Command) bool {
		args, err := c.Arguments()
		switch {
		case err != nil:
			return false
		case c.Kind == daemon.CommandDrain:
			return args.Node == me
		}
		return c.Kind == daemon.CommandResign && args.To != "" && args.To != me && c.Term == r.Term.Number
	})
}

// onTerm handles the term in the reply to the heartbeat sent at sent.
func (m *Member) onTerm(now, sent lease.Instant, r *storage.Reply) {
	m.observeTerm(now, r)
	e := &m.election
	switch mine := m.holds(r.Term) && r.Verdict != storage.Refuse; {
	case m.leading() && (!mine || r.Term.Number != e.held.Number):
		m.endLeadership(now, node.Replaced)
	case m.leading():
		e.validUntil = sent.Add(m.t.ValidFor(m.t.LeaseDuration))
	case mine && m.stop.phase != stopNone:
		// The heartbeat was in flight when the stop began, and it won the election. The next leave gives the term
		// up.
		if r.Term.Number > e.highestLost {
			m.stop.resign, m.stop.drainKnown = r.Term.Number, false
		}
	case mine && m.formerLeaderMayAct(now):
		// The node campaigned before it knew of the change of store. The leader of the lost history may still
		// act.
	case mine && r.Term.Number > e.highestLost:
		m.elected(now, sent, r.Term)
	}
	m.scheduleCampaign(now)
}

// observeTerm records the term in the reply.
func (m *Member) observeTerm(now lease.Instant, r *storage.Reply) {
	e := &m.election
	same := r.Term.Number == e.seen.Number && r.Lease.Renewals == e.renewals && r.Term.Vacant == e.seen.Vacant && e.seen.Number != 0
	if !same {
		e.observedAt = lease.Seen{Since: now, PreviousRead: e.lastFastReply}
	}
	if m.clock.LastReplyFast() {
		e.lastFastReply = lease.Read{At: now, Store: r.Now}
	}
	over, holder := lease.Never, r.Term.Leader.Incarnation
	length := m.holderTiming(holder).LeaseDuration
	stamp := r.Lease.ExpiresAt.Add(-length)
	if m.knowsTimings(holder) && m.clock.Covers(stamp) && m.clock.MayFollow(stamp, e.observedAt) {
		more := m.timingsFor(holder).LeaseDuration - length
		left := max(r.Lease.ExpiresAt.Sub(r.Now)+more, 0)
		over = now.Add(left + left/1000 + time.Millisecond) // this node's clock may be the faster one
	}
	if same {
		// The same term was observed before: observedAt stays. leaseEnd moves to an earlier time, but not to a later
		// one while it is in the future. If it has passed and the campaign was refused because it came a little
		// early, leaseEnd takes the new value.
		if over < e.leaseEnd || (now >= e.leaseEnd && m.heartbeats.campaigned && over != lease.Never) {
			e.leaseEnd = over
		}
		return
	}
	e.seen, e.renewals, e.leaseEnd = r.Term, r.Lease.Renewals, over
	if e.block.term != 0 && e.seen.Number > e.block.term {
		e.block = block{}
	}
}

// scheduleCampaign sets when to campaign next, apart from the regular heartbeats.
func (m *Member) scheduleCampaign(now lease.Instant) {
	e := &m.election
	e.campaignAt = lease.Never
	if m.leading() || m.cfg.Advert.Traits.NeverLead || m.stop.phase != stopNone || e.resigning.number != 0 {
		return
	}
	spread := m.spread(min(200*time.Millisecond, m.t.HeartbeatInterval/5))
	unchanged := e.observedAt.Since.Add(m.timingsFor(e.seen.Leader.Incarnation).LeaseDuration)
	switch {
	case !e.seen.Held() || m.holds(e.seen):
		e.campaignAt = now
		if m.heartbeats.campaigned { // the campaign was refused although the term is free
			e.campaignAt = now.Add(m.t.HeartbeatInterval/5 + spread)
		}
	case m.cfg.Store.NoClock:
		e.campaignAt = unchanged.Add(spread)
	case now < e.leaseEnd:
		e.campaignAt = min(e.leaseEnd, unchanged).Add(spread)
	case !m.heartbeats.campaigned: // the lease ended while the heartbeat was in flight
		e.campaignAt = now.Add(spread)
	default: // refused although the lease seems over: the store's clock disagrees
		e.campaignAt = max(unchanged, now.Add(m.t.HeartbeatInterval/5)).Add(spread)
	}
	if m.formerLeaderMayAct(now) {
		e.campaignAt = max(e.campaignAt, m.store.changedAt.Add(m.timings.longest.LeaseDuration))
	}
	if e.block.term != 0 && now < e.block.until {
		e.campaignAt = max(e.campaignAt, e.block.until)
	}
	if now < m.yieldsUntil() {
		e.campaignAt = max(e.campaignAt, m.yieldsUntil().Add(spread))
	}
}

// elected begins to lead the term that the heartbeat sent at sent has won.
func (m *Member) elected(now, sent lease.Instant, t node.Term) {
	trust := sent.Add(m.t.ValidFor(m.t.LeaseDuration))
	if now >= trust {
		return // the answer took longer than the validity it gives; the next heartbeat keeps the term
	}
	e := &m.election
	e.held, e.validUntil, e.block = t, trust, block{}
	m.leader.begin(now)
	m.emit(Elected{Term: t})
}

// endLeadership ends leadership. Lost comes before every other effect.
func (m *Member) endLeadership(now lease.Instant, why node.LossReason) {
	e := &m.election
	t := e.held
	e.held, e.validUntil = node.Term{}, lease.Never
	e.highestLost = max(e.highestLost, t.Number)
	m.leader.end()
	m.emit(LeadershipLost{Term: t, Reason: why})
	m.beatSoon(now)
}

// resign gives up the term: it publishes LeadershipLost at once and sends the resignation after leader-only work has
// returned.
func (m *Member) resign(now lease.Instant, why node.LossReason, cooldown time.Duration, command, actor string) {
	if !m.leading() {
		return
	}
	e := &m.election
	e.resigning = resigning{number: e.held.Number, reason: why, deadline: now.Add(m.t.LeaderStopTimeout), retry: now, command: command, actor: actor}
	longest := m.timings.longest
	e.block = block{term: e.held.Number, until: now.Add(max(cooldown, 2*longest.HeartbeatInterval+longest.QueryTimeout))}
	m.endLeadership(now, why)
	m.heartbeats.wake = lease.Never
}

// onLeaderIdle notes that leader-only work of the term has returned.
func (m *Member) onLeaderIdle(now lease.Instant, term int64) {
	if r := &m.election.resigning; r.number == term {
		r.idle = true
		m.advanceResign(now)
	}
}

// advanceResign sends the resignation once leader-only work has returned. Work that has not returned by its
// deadline may still act as leader. The node then does not resign, and the lease runs out.
func (m *Member) advanceResign(now lease.Instant) {
	r := &m.election.resigning
	switch {
	case r.number == 0 || r.sent:
	case !r.idle && now < r.deadline:
	case !r.idle:
		m.endResign(now)
	case now >= r.retry:
		m.sendLeave(now)
	}
}

// nextResign returns when the resignation must be continued.
func (m *Member) nextResign() lease.Instant {
	r := &m.election.resigning
	switch {
	case r.number == 0 || r.sent:
		return lease.Never
	case r.idle:
		return r.retry
	}
	return r.deadline
}

// endResign ends the resignation, whether or not the store received it.
func (m *Member) endResign(now lease.Instant) {
	m.election.resigning = resigning{}
	m.scheduleCampaign(now)
}

// sendLeave resigns. If the node is stopping, the same call marks it as draining.
func (m *Member) sendLeave(now lease.Instant) {
	r := &m.election.resigning
	l := &storage.Leave{
		Node: m.cfg.Node, Seq: m.nextSeq(), Resign: r.number, Reason: r.reason,
		Drain: m.stop.phase != stopNone, DrainTimeout: m.t.DrainTimeout, Command: r.command, Actor: r.actor,
	}
	if l.Reason == "" {
		l.Reason = node.Shutdown
	}
	r.sent, r.tries = true, r.tries+1
	m.send(now, callLeave, Call{Leave: l})
}

// maxLeaveTries bounds the attempts to resign. After that the lease runs out.
const maxLeaveTries = 5

// onLeave handles the answer to a leave that resigns, and repeats a failed one. During a stop, the leave of the
// stop repeats it instead.
func (m *Member) onLeave(now lease.Instant, c call, res Result) {
	r := &m.election.resigning
	r.sent = false
	if res.Err != nil && r.tries < maxLeaveTries && m.stop.phase == stopNone {
		r.retry = now.Add(m.jitter(firstRetry << r.tries))
		return
	}
	if r.number != 0 && m.stop.phase != stopNone && res.Err != nil {
		m.stop.resign = r.number // the next leave resigns
	}
	if c.drains {
		m.onStopLeave(now, c.sent, res.Err)
	}
	m.endResign(now)
	if res.Err == nil {
		m.election.seen.Vacant = m.election.seen.Vacant || m.holds(m.election.seen)
	}
}

// onCommands carries out operators' commands to the leader.
func (m *Member) onCommands(now lease.Instant, commands []storage.Command) {
	if !m.leading() {
		return
	}
	for _, c := range commands {
		args, err := c.Arguments()
		switch {
		case c.Kind != daemon.CommandResign || err != nil || args.To != "": // passes carry it out
		case c.Term == 0 || c.Term == m.election.held.Number:
			m.resign(now, node.Resigned, c.Cooldown, c.ID, c.Actor)
			return
		default: // the operator meant another term; a leave that resigns none answers the command with a conflict
			m.send(now, callAnswer, Call{Leave: &storage.Leave{Node: m.cfg.Node, Seq: m.nextSeq(), Command: c.ID, Actor: c.Actor}})
		}
	}
}
