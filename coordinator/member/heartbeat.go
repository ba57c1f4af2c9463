package member

import (
	"errors"
	"slices"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// beat is the heartbeat loop: when the next one is due and what the last ones brought.
type beat struct {
	due      lease.Instant // the regular one; wake-ups never move it
	wake     lease.Instant // an extra one
	inFlight uint64        // the call under way; 0 = none
	again    bool          // a wake-up came while one was under way: its reads may be older
	stood    bool          // the newest one stood for election

	failures int
	// answered is when the newest answered heartbeat began: trust hangs on it.
	answered     lease.Instant
	everAnswered bool
	first        time.Time // the store's clock in the first answer: about when this node registered first
	heard        uint64    // its sequence number

	// register asks for the advert to be sent; told is set while the heartbeat under way has the
	// present one.
	register, told bool
	wantMembers    bool
	// newcomers says that processes joined of which only an event told; listed is when the newest
	// member list came.
	newcomers bool
	listed    lease.Instant
	cursor    int64 // membership events up to here are known

	rival rival
	// ended are processes of this host that are proven to have ended; the next heartbeat says so. proves
	// is set while one that says so is under way.
	ended  []node.Incarnation
	proves bool
	// returned are abandoned runs that have returned, by unit the generation under which they were reported.
	// Every heartbeat tells them until one is answered; telling is what the one under way tells.
	returned map[daemon.Unit]int64
	telling  []daemon.Fence
}

// rival is another process that has this node's id, as the store showed it when it refused this
// one. One that was seen to beat is alive; another may have been killed a moment ago, and its row
// is in the way for NodeRegistrationTTL.
type rival struct {
	incarnation node.Incarnation
	seenAt      time.Time // its newest heartbeat
	beats       int       // how often that was seen to move
}

// rivalBeats proves that a rival lives. One beat is none: the last of a process that was killed
// may have been on its way.
const rivalBeats = 2

// firstRetry is the pause after a failed heartbeat; it doubles up to Timing.Backoff.
const firstRetry = 50 * time.Millisecond

// A hint reaches everybody whom it concerns in the same instant. wakeSpread spreads the heartbeats
// that it causes, and beatCost, about what one costs a store, those of a crowd further apart.
const (
	wakeSpread = 10 * time.Millisecond
	beatCost   = time.Millisecond / 2
)

// wakeWithin returns within what time the heartbeats of so many nodes follow a hint.
func (m *Member) wakeWithin(nodes int) time.Duration {
	return min(max(wakeSpread, beatCost*time.Duration(nodes)), m.t.HeartbeatInterval/2)
}

func (m *Member) nextBeat() lease.Instant {
	if m.beat.inFlight != 0 || m.stop.phase >= stopDeregister {
		return lease.Never
	}
	return min(m.beat.due, m.beat.wake, m.election.stand)
}

// beatSoon asks for an extra heartbeat at once.
func (m *Member) beatSoon(now lease.Instant) {
	m.beat.wake = min(m.beat.wake, now)
	m.beat.again = m.beat.again || m.beat.inFlight != 0
}

func (m *Member) onWoken(now lease.Instant, w storage.Wake) {
	mine, crowd := len(w.Nodes) == 0, len(w.Nodes)
	if mine {
		crowd = len(m.peers.known)
	}
	if w.Leader && m.leading() {
		m.leader.want()
		if len(w.Nodes) == 1 {
			return // for the leader as such: a pass reads all there is
		}
	}
	for _, inc := range w.Nodes {
		mine = mine || inc == m.cfg.Node.Incarnation
	}
	if mine {
		m.beat.wake = min(m.beat.wake, now.Add(m.spread(m.wakeWithin(crowd))))
		m.beat.again = m.beat.again || m.beat.inFlight != 0
	}
}

// sendHeartbeat sends one if it is due and none is under way.
func (m *Member) sendHeartbeat(now lease.Instant) {
	if now < m.nextBeat() {
		return
	}
	if now >= m.beat.due {
		m.beat.due = now.Add(m.jitter(m.t.HeartbeatInterval))
	}
	m.beat.wake, m.beat.again = lease.Never, false
	hb := &storage.Heartbeat{
		Node: m.cfg.Node, Seq: m.nextSeq(), Heard: m.beat.heard,
		HighestTerm: m.highestTerm, HighestGeneration: m.highestGeneration,
		TTL: m.t.NodeRegistrationTTL, Claim: m.claim(now),
		EventsAfter: m.beat.cursor, WantMembers: m.beat.wantMembers || m.wantHosts(now) || len(m.beat.ended) > 0,
		Ended: m.beat.ended, Returned: m.beat.returnedRuns(),
	}
	m.beat.telling = hb.Returned
	if !m.beat.everAnswered { // who was in the cluster may come back to it
		hb.Room = Room(m.t)
	}
	m.beat.ended, m.beat.proves = nil, len(m.beat.ended) > 0 // told again, with the next proof, until a member list shows that it is known
	if m.beat.told = m.beat.register; m.beat.told {
		advert := m.cfg.Advert
		advert.Traits.FirstRegisteredAt = m.beat.first
		hb.Advert = &advert
	}
	m.send(now, callHeartbeat, Call{Heartbeat: hb})
	m.beat.inFlight, m.beat.stood = m.callID, hb.Claim.Stand
}

// smallCluster is how many nodes may read the member list after every interval in which one joined.
// In larger ones the pause grows by the square: all nodes of a cluster together read no more than
// smallCluster² rows an interval to know their neighbours.
const smallCluster = 100

// wantHosts asks for the member list after others have joined: an event does not say on which host
// a process runs, and who is to bear witness of its end must know. It goes with a heartbeat that is
// due anyway, and in a large cluster, where each list is long, waits until enough have passed.
func (m *Member) wantHosts(now lease.Instant) bool {
	if !m.beat.newcomers || m.cfg.Advert.Traits.Host.BootID == "" {
		return false
	}
	n := len(m.peers.known)
	pause := m.t.HeartbeatInterval * time.Duration(n*n/(smallCluster*smallCluster))
	return now.Sub(m.beat.listed) >= pause
}

// onEnded takes the proof that other processes of this host have ended: those that the store is not known
// to have been told of. The next heartbeat tells it, at once unless the store is away. A process that has
// this node's id and has ended is not in the way any more.
func (m *Member) onEnded(now lease.Instant, ended []node.Incarnation) {
	if m.beat.inFlight != 0 && m.beat.proves {
		return
	}
	m.beat.ended = ended
	switch {
	case m.beat.failures == 0:
		m.beatSoon(now)
	case slices.Contains(ended, m.beat.rival.incarnation):
		m.beat.due = now
	}
}

func (m *Member) onHeartbeat(now lease.Instant, c call, r Result) {
	m.beat.inFlight = 0
	if r.Err != nil || r.Reply == nil {
		m.beat.wake, m.beat.again = lease.Never, false // hints do not shorten the back-off
		m.onHeartbeatError(now, r.Err)
		return
	}
	if m.beat.again {
		m.beat.wake, m.beat.again = min(m.beat.wake, now), false
	}
	m.beat.toldReturned()
	m.heardInTime(now, c.sent)
	m.onReply(now, c.sent, r.Reply)
}

func (m *Member) onHeartbeatError(now lease.Instant, err error) {
	m.beat.failures++
	m.starts.unheard(now)
	var crowded *storage.CrowdedError
	pause := min(firstRetry<<min(m.beat.failures-1, 10), m.t.Backoff())
	switch {
	case errors.Is(err, storage.ErrNotRegistered):
		m.beat.register, m.beat.wantMembers, m.foreign.joining = true, true, true
		if m.beat.failures == 1 {
			pause = 0
		}
	case errors.Is(err, storage.ErrOtherCluster):
		m.endWith(now, err) // only an operator can change it
	case errors.As(err, &crowded):
		pause = m.t.HeartbeatInterval
		m.awaitRoom(now, crowded)
	case errors.Is(err, storage.ErrIDInUse):
		pause = m.t.HeartbeatInterval // only time or the other process can change it
		m.emit(Notice{Kind: IDInUse, Err: err})
		m.seeRival(now, err)
	case m.beat.failures&(m.beat.failures-1) == 0: // 1, 2, 4, 8, …
		m.emit(Notice{Kind: HeartbeatFailed, Err: err})
	}
	m.election.stand = lease.Never // nobody stands who is not heard and hearing
	m.beat.due = min(m.beat.due, now.Add(m.jitter(pause)))
	if pause >= m.t.HeartbeatInterval {
		m.beat.due = now.Add(pause)
	}
}

// seeRival waits for a rival that may be dead, and ends this node if it is seen to live: two
// processes with one id would take turns for ever.
func (m *Member) seeRival(now lease.Instant, err error) {
	var inUse *storage.IDInUseError
	if !errors.As(err, &inUse) {
		return
	}
	r := &m.beat.rival
	switch {
	case r.incarnation != inUse.Holder.Incarnation:
		*r = rival{incarnation: inUse.Holder.Incarnation, seenAt: inUse.SeenAt}
	case inUse.SeenAt.After(r.seenAt):
		r.seenAt, r.beats = inUse.SeenAt, r.beats+1
	}
	if r.beats >= rivalBeats {
		m.endWith(now, err)
	}
}

// endWith begins a clean stop that nobody asked for; err says why.
func (m *Member) endWith(now lease.Instant, err error) {
	if m.stop.phase == stopNone {
		m.stop.err = err
		m.beginStop(now)
	}
}

// onReply takes the answer to the heartbeat that began at sent.
func (m *Member) onReply(now, sent lease.Instant, r *storage.Reply) {
	served := sent.Sub(m.beat.answered) // between two answered heartbeats
	if m.beat.failures > 0 {
		m.beat.failures, served = 0, 0
		m.emit(Notice{Kind: HeartbeatFine})
		m.beatSoon(now) // tell that this was heard: until then the node looks deaf
	}
	if m.beat.everAnswered && sent.Sub(m.beat.answered) > m.t.Grace() {
		m.leader.grace = now.Add(m.t.Grace()) // an outage: let everybody come back first
	}
	m.beat.register, m.beat.rival = m.beat.register && !m.beat.told, rival{}
	if !m.beat.everAnswered {
		m.beat.first = r.Now
	}
	m.beat.everAnswered, m.beat.answered, m.beat.heard = true, sent, r.Seq
	m.observeStore(now, sent, r)
	m.raise(r.Term.Number, 0)
	led := m.leading()
	m.onTerm(now, sent, r)
	m.onListed(now, sent, r.Units)
	m.onMembership(now, r)
	switch {
	case led:
		m.onCommands(now, r.Commands)
	case m.leading() && len(r.Commands) > 0:
		m.beatSoon(now) // a term is first published, then given up
	}
	if m.leading() {
		m.countWithoutPass(now, served)
	}
	if m.leading() {
		m.leader.want()
	}
}

// observeStore notices steps of the store's clock and that the store became another one.
func (m *Member) observeStore(now, sent lease.Instant, r *storage.Reply) {
	if m.store.id != "" && m.store.id != r.StoreID {
		m.store.changedAt, m.store.term = now, m.highestTerm
		// No term of the history before is kept, not even one's own whose election went unheard.
		m.election.lostThrough = max(m.election.lostThrough, m.highestTerm)
		m.clock.Reset()
		m.leader.forget()
		m.forgetReports()
		m.starts.clear()
		m.beat.wantMembers, m.beat.register = true, true // its row may have an older advert
		m.election.forget()
		m.emit(Notice{Kind: StoreChanged, Reason: r.StoreID})
		if m.leading() {
			m.lose(now, storeChanged)
		}
	}
	if m.store.id == "" && !r.StoreSince.IsZero() && r.Now.Sub(r.StoreSince) < m.t.NodeRegistrationTTL {
		// A process that began after the change: others may still run what the lost history
		// gave them, and this one is told that it is free.
		m.store.changedAt = now
	}
	m.store.id = r.StoreID
	m.observeClock(now, sent, r.Now)
}

func (m *Member) observeClock(now, sent lease.Instant, store time.Time) {
	if !m.cfg.Store.NoClock && m.clock.Observe(sent, now, store) {
		m.beat.wantMembers = true
		m.emit(Notice{Kind: ClockStepped})
		m.older(m.clock.Ahead())
	}
}
