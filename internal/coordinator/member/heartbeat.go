package member

import (
	"errors"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// heartbeatState is the state of the heartbeat loop: when the next one is due, and what the last replies brought.
type heartbeatState struct {
	due            lease.Instant // the regular heartbeat; wake-ups never move it
	wake           lease.Instant // an extra heartbeat
	inFlight       uint64        // the ID of the call in flight; 0 = none
	wakeAfterReply bool          // a wake-up came while a heartbeat was in flight, which may have read before the change
	campaigned     bool          // the newest heartbeat campaigned

	failures int
	// lastAnsweredSent is when the newest answered heartbeat was sent. The validity of leadership and runs counts from
	// it.
	lastAnsweredSent  lease.Instant
	everAnswered      bool
	firstRegisteredAt time.Time // the store's clock in the first answer: about when this node registered first
	lastAnsweredSeq   uint64    // the sequence number of the newest answered heartbeat

	// sendAdvert asks for the advert to be sent. advertInFlight is set while the heartbeat in flight carries the
	// present advert.
	sendAdvert, advertInFlight bool
	wantMembers                bool
	// returns are the moments at which this process found its row removed, of the last plan.LossMemory.
	returns []lease.Instant
	// unlistedJoins is set when an event showed a process that no member list has shown yet. memberListAt is
	// when the newest member list came.
	unlistedJoins bool
	memberListAt  lease.Instant
	cursor        int64 // membership events up to this number are known

	rival rival
	// ended are processes of this host that have ended, with evidence; the next heartbeat carries them. evidenceInFlight
	// is set while the heartbeat in flight carries some.
	ended            []node.Incarnation
	evidenceInFlight bool
	// returned are the abandoned runs that have returned: by unit, the generation under which each was reported.
	// Every heartbeat carries them until one is answered. returnsInFlight is what the heartbeat in flight carries.
	returned        map[daemon.Unit]int64
	returnsInFlight []daemon.Fence
}

// rival is another process with this node's ID, as the store showed it when it refused this one. A rival whose
// heartbeats advance is alive. Otherwise it may have been killed a moment ago, and its row blocks the ID for
// NodeRegistrationTTL.
type rival struct {
	incarnation    node.Incarnation
	seenAt         time.Time // the store's stamp of its newest heartbeat
	heartbeatsSeen int       // how often observedAt was seen to advance
}

// rivalProofHeartbeats is how many heartbeats prove that a rival is alive. One is not enough: it may have been the last of
// a process that was killed.
const rivalProofHeartbeats = 2

// firstRetry is the pause after a failed heartbeat. It doubles with each failure, up to Timing.Backoff.
const firstRetry = 50 * time.Millisecond

// retryAfter returns the pause, before jitter, after this many failures in a row of one kind of request.
func (m *Member) retryAfter(failures int) time.Duration {
	return backoff.Policy{First: firstRetry, Limit: m.t.Backoff()}.After(failures)
}

// A wake-up reaches all nodes that it concerns at the same moment. wakeSpread spreads the heartbeats that follow
// it. In a large cluster they are spread further, by heartbeatCost per node: about what one heartbeat costs a store.
const (
	wakeSpread    = 10 * time.Millisecond
	heartbeatCost = time.Millisecond / 2
)

// wakeWithin returns the time over which the heartbeats of that many nodes are spread after a wake-up.
func (m *Member) wakeWithin(nodes int) time.Duration {
	return min(max(wakeSpread, heartbeatCost*time.Duration(nodes)), m.t.HeartbeatInterval/2)
}

// nextBeat returns when the next heartbeat is due; Never while one is in flight.
func (m *Member) nextBeat() lease.Instant {
	if m.heartbeats.inFlight != 0 || m.stop.phase >= stopDeregister {
		return lease.Never
	}
	return min(m.heartbeats.due, m.heartbeats.wake, m.election.campaignAt)
}

// beatSoon asks for an extra heartbeat now.
func (m *Member) beatSoon(now lease.Instant) {
	m.heartbeats.wake = min(m.heartbeats.wake, now)
	m.heartbeats.wakeAfterReply = m.heartbeats.wakeAfterReply || m.heartbeats.inFlight != 0
}

// onWoken handles a wake-up from the store. A wake-up for the leader asks for a pass, one for this node for a
// heartbeat.
func (m *Member) onWoken(now lease.Instant, w storage.WakeUp) {
	mine, crowd := len(w.Nodes) == 0, len(w.Nodes)
	if mine {
		crowd = len(m.peers.known)
	}
	if w.Leader && m.leading() {
		m.leader.requestPass()
		if len(w.Nodes) == 1 {
			return // it is for the leader only: a pass reads everything
		}
	}
	for _, inc := range w.Nodes {
		mine = mine || inc == m.cfg.Node.Incarnation
	}
	if mine {
		m.heartbeats.wake = min(m.heartbeats.wake, now.Add(m.spread(m.wakeWithin(crowd))))
		m.heartbeats.wakeAfterReply = m.heartbeats.wakeAfterReply || m.heartbeats.inFlight != 0
	}
}

// sendHeartbeat sends a heartbeat if one is due and none is in flight.
func (m *Member) sendHeartbeat(now lease.Instant) {
	if now < m.nextBeat() {
		return
	}
	if now >= m.heartbeats.due {
		m.heartbeats.due = now.Add(m.jitter(m.t.HeartbeatInterval))
	}
	m.heartbeats.wake, m.heartbeats.wakeAfterReply = lease.Never, false
	hb := &storage.Heartbeat{
		Node: m.cfg.Node, Seq: m.nextSeq(), ConfirmedSeq: m.heartbeats.lastAnsweredSeq,
		HighestTerm: m.highestTerm, HighestGeneration: m.highestGeneration,
		TTL: m.t.NodeRegistrationTTL, TermRequest: m.termRequest(now),
		EventsAfter: m.heartbeats.cursor, WantMembers: m.wantsMembers(now),
		ExitEvidence: m.heartbeats.ended, ReturnedRuns: m.heartbeats.returnedRuns(),
	}
	m.heartbeats.returnsInFlight = hb.ReturnedRuns
	if !m.heartbeats.everAnswered { // the limit is for newcomers: a node that was in the cluster may come back
		hb.MaxTotalChangeTime = ChangeTimeBudget(m.t)
	}
	m.heartbeats.ended, m.heartbeats.evidenceInFlight = nil, len(m.heartbeats.ended) > 0 // the shell repeats what stays unknown
	if m.heartbeats.advertInFlight = m.heartbeats.sendAdvert; m.heartbeats.advertInFlight {
		advert := m.cfg.Advert
		advert.Traits.FirstRegisteredAt, advert.Traits.Returns = m.heartbeats.firstRegisteredAt, len(m.heartbeats.returns)
		hb.Advert = &advert
	}
	m.send(now, callHeartbeat, Call{Heartbeat: hb})
	m.heartbeats.inFlight, m.heartbeats.campaigned = m.callID, hb.TermRequest.Campaign
}

// noteRemoved notes that the store no longer has this node's row, so the node has to register again.
func (m *Member) noteRemoved(now lease.Instant) {
	h := &m.heartbeats
	if h.everAnswered && !h.sendAdvert {
		h.returns = slices.DeleteFunc(append(h.returns, now), func(at lease.Instant) bool { return now.Sub(at) >= plan.LossMemory(m.t.StableAfter()) })
	}
	h.sendAdvert = true
}

// smallCluster is the number of nodes up to which each may read the member list after every interval in which a
// node joined. In larger clusters the pause grows with the square of the number of nodes. All nodes together then
// read at most smallCluster² rows per interval.
const smallCluster = 50

// wantsMembers reports whether the heartbeat sent at now asks for the member list.
func (m *Member) wantsMembers(now lease.Instant) bool {
	return m.heartbeats.wantMembers || m.needMemberList(now) || len(m.heartbeats.ended) > 0 || m.leaseUnknown(now)
}

// needMemberList reports whether to ask for the member list after others have joined. An event names neither the
// host of a process, which exit evidence needs, nor its durations. The request goes with a heartbeat that is due anyway. In a large
// cluster, where each list is long, it waits longer (see smallCluster).
func (m *Member) needMemberList(now lease.Instant) bool {
	if !m.heartbeats.unlistedJoins {
		return false
	}
	n := len(m.peers.known)
	pause := m.t.HeartbeatInterval * time.Duration(n*n/(smallCluster*smallCluster))
	return now.Sub(m.heartbeats.memberListAt) >= pause
}

// onExitEvidence handles exit evidence about other processes of this host, of which the store may not know yet. The next
// heartbeat carries it. That heartbeat goes out now, unless the last one failed and the back-off applies. The
// back-off does not apply if the rival for this node's ID has ended.
func (m *Member) onExitEvidence(now lease.Instant, ended []node.Incarnation) {
	if m.heartbeats.inFlight != 0 && m.heartbeats.evidenceInFlight {
		return
	}
	m.heartbeats.ended = ended
	switch {
	case m.heartbeats.failures == 0:
		m.beatSoon(now)
	case slices.Contains(ended, m.heartbeats.rival.incarnation):
		m.heartbeats.due = now
	}
}

// onHeartbeat handles the answer to a heartbeat.
func (m *Member) onHeartbeat(now lease.Instant, c call, r Result) {
	m.heartbeats.inFlight = 0
	if r.Err != nil || r.Reply == nil {
		m.heartbeats.wake, m.heartbeats.wakeAfterReply = lease.Never, false // wake-ups do not shorten the back-off
		m.onHeartbeatError(now, r.Err)
		return
	}
	if m.heartbeats.wakeAfterReply {
		m.heartbeats.wake, m.heartbeats.wakeAfterReply = min(m.heartbeats.wake, now), false
	}
	m.heartbeats.forgetReportedReturns()
	m.heartbeatAnswered(now, c.sent)
	m.onReply(now, c.sent, r.Reply)
}

// onHeartbeatError plans the next heartbeat after one that failed, and stops the node if waiting cannot help.
func (m *Member) onHeartbeatError(now lease.Instant, err error) {
	m.heartbeats.failures++
	m.starts.heartbeatFailed(now)
	var crowded *storage.TooManyNodesError
	pause := m.retryAfter(m.heartbeats.failures)
	switch {
	case errors.Is(err, storage.ErrNotRegistered):
		m.noteRemoved(now)
		m.heartbeats.wantMembers = true
		if m.heartbeats.failures == 1 {
			pause = 0
		}
	case errors.Is(err, storage.ErrOtherCluster):
		m.stopWithError(now, err) // only an operator can change this
	case errors.As(err, &crowded):
		pause = m.t.HeartbeatInterval
		m.onNoRoom(now, crowded)
	case errors.Is(err, storage.ErrIDInUse):
		pause = m.t.HeartbeatInterval // only time or the other process can change this
		m.emit(Notice{Kind: IDInUse, Err: err})
		m.observeRival(now, err)
	case m.heartbeats.failures&(m.heartbeats.failures-1) == 0: // 1, 2, 4, 8, …
		m.emit(Notice{Kind: HeartbeatFailed, Err: err})
	}
	m.election.campaignAt = lease.Never // a node whose heartbeats fail does not campaign
	m.heartbeats.due = min(m.heartbeats.due, now.Add(m.jitter(pause)))
	if pause >= m.t.HeartbeatInterval {
		m.heartbeats.due = now.Add(pause)
	}
}

// observeRival keeps waiting while the rival may be dead, and stops this node once the rival is proven alive. Two
// live processes with one ID would otherwise replace each other for ever.
func (m *Member) observeRival(now lease.Instant, err error) {
	var inUse *storage.IDInUseError
	if !errors.As(err, &inUse) {
		return
	}
	r := &m.heartbeats.rival
	switch {
	case r.incarnation != inUse.Holder.Incarnation:
		*r = rival{incarnation: inUse.Holder.Incarnation, seenAt: inUse.SeenAt}
	case inUse.SeenAt.After(r.seenAt):
		r.seenAt, r.heartbeatsSeen = inUse.SeenAt, r.heartbeatsSeen+1
	}
	if r.heartbeatsSeen >= rivalProofHeartbeats {
		m.stopWithError(now, err)
	}
}

// stopWithError begins a clean stop that nobody asked for; err is the reason.
func (m *Member) stopWithError(now lease.Instant, err error) {
	if m.stop.phase == stopNone {
		m.stop.err = err
		m.beginStop(now)
	}
}

// onReply handles the reply to the heartbeat sent at sent.
func (m *Member) onReply(now, sent lease.Instant, r *storage.Reply) {
	served := sent.Sub(m.heartbeats.lastAnsweredSent) // the time between two answered heartbeats
	if m.heartbeats.failures > 0 {
		m.heartbeats.failures, served = 0, 0
		m.emit(Notice{Kind: HeartbeatRecovered})
		m.beatSoon(now) // confirm that a reply was received: until then the leader sees this node as deaf
	}
	if m.heartbeats.everAnswered && sent.Sub(m.heartbeats.lastAnsweredSent) > m.t.Grace() {
		m.leader.graceFrom = now // an outage: give all nodes time to come back first
	}
	m.heartbeats.sendAdvert, m.heartbeats.rival = m.heartbeats.sendAdvert && !m.heartbeats.advertInFlight, rival{}
	if !m.heartbeats.everAnswered {
		m.heartbeats.firstRegisteredAt = r.Now
	}
	m.heartbeats.everAnswered, m.heartbeats.lastAnsweredSent, m.heartbeats.lastAnsweredSeq = true, sent, r.Seq
	if r.Members != nil {
		m.noteTimings(now, r.Members)
	}
	m.observeStore(now, sent, r)
	m.noteHighest(r.Term.Number, 0)
	m.observeCommands(r)
	led := m.leading()
	m.onTerm(now, sent, r)
	m.onListed(now, sent, r.Units)
	m.onMembership(now, r)
	switch {
	case led:
		m.onCommands(now, r.Commands)
	case m.leading() && len(r.Commands) > 0:
		m.beatSoon(now) // a new leader publishes its term first; it carries out a resign command with the next reply
	}
	if m.leading() {
		m.countWithoutPass(now, served)
	}
	if m.leading() {
		m.leader.requestPass()
	}
}

// observeStore checks whether the store was replaced by another one, and whether its clock stepped.
func (m *Member) observeStore(now, sent lease.Instant, r *storage.Reply) {
	if m.store.id != "" && m.store.id != r.StoreID {
		m.store.changedAt, m.store.term = now, m.highestTerm
		// Give up every term of the lost history, even one whose election this node never heard of.
		m.election.highestLost = max(m.election.highestLost, m.highestTerm)
		m.clock.Reset()
		m.leader.forget()
		m.forgetReports()
		m.starts.clear()
		m.heartbeats.wantMembers, m.heartbeats.sendAdvert = true, true // the store's row may have an older advert
		m.election.forget()
		m.emit(Notice{Kind: StoreChanged, Reason: r.StoreID})
		if m.leading() {
			m.endLeadership(now, storeChanged)
		}
	}
	if m.store.id == "" && !r.StoreSince.IsZero() && r.Now.Sub(r.StoreSince) < m.timings.longest.NodeRegistrationTTL {
		// This process started after the change of store. Others may still run what the lost history assigned to
		// them, although the rows say that those units are free.
		m.store.changedAt = now
	}
	m.store.id = r.StoreID
	m.observeClock(now, sent, r.Now)
}

// observeClock compares the store's clock with the samples before. After a step it asks for the whole member
// list, and moves deadlines that the local clock may have missed (older).
func (m *Member) observeClock(now, sent lease.Instant, store time.Time) {
	if !m.cfg.Store.NoClock && m.clock.Observe(sent, now, store) {
		m.heartbeats.wantMembers = true
		m.emit(Notice{Kind: ClockStepped})
		m.ageDeadlines(m.clock.ForwardStep())
	}
}
