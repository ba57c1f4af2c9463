package member

import (
	"cmp"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// startLimiter limits how many runs this node starts at the same time. If many agents started at once on a busy
// machine, all would miss their acknowledge deadlines, and the node its heartbeats. So only a bounded number of
// runs is in the start phase, and other units wait. A waiting unit is postponed in the store well before its
// deadline: its assignment gets a higher generation, and the acknowledge timeout begins anew, twice as long each
// time. The generation makes this safe. An expiry that the leader decided before finds another generation and is
// skipped. This node starts a run only under the generation, and within the deadline, that the store returned.
type startLimiter struct {
	waiting []daemon.Unit // in order of arrival
	queued  map[daemon.Unit]*waiter
	slots   map[daemon.Unit]*slot // the runs in their start phase
	// limit is how many runs may be in the start phase and not slow; with slow ones there may be maxSlow times as
	// many. While heartbeats are answered quickly, limit grows by one with each run that starts quickly: it
	// doubles from one round of starts to the next. It also grows by one with each slow start, which then waits
	// for something other than this machine. While heartbeats are slow, it shrinks by one with each slow start, and so it
	// does if the fence is what takes so long: the store has more to do than it can.
	// It is halved when a run misses its deadline, and when a heartbeat fails or nearly fails: a machine too busy
	// for its heartbeats must not get more to do.
	limit    int
	halvedAt lease.Instant
	// busy is set while the newest heartbeat has failed: no run starts before one is answered. slow is set if the
	// newest answer took long.
	busy, slow bool
	// nextPostponeAt is when the next waiting unit has to be postponed.
	nextPostponeAt lease.Instant
}

// waiter is a unit that waits to start.
type waiter struct {
	timeout          time.Duration // the acknowledge timeout before it was postponed
	postponeReported int64         // the generation whose postponing was reported
}

// slot is a run in its start phase.
type slot struct {
	began   lease.Instant
	window  time.Duration // in which the run must be acknowledged once its fence is stamped
	stamped bool
	slow    bool // a quarter of the window is over
}

// The bounds of starts.limit and its initial value, and the factor for slow starts.
const (
	fewestStarts = 4
	firstStarts  = 8
	mostStarts   = 256
	maxSlow      = 4
)

// mostPostponed bounds the timeout of a postponed assignment, as a multiple of its first timeout.
const mostPostponed = 8

// init sets the initial limit.
func (s *startLimiter) init() {
	s.slots, s.limit = map[daemon.Unit]*slot{}, firstStarts
	s.clear()
}

// clear drops all waiting units. Units that are listed again wait again.
func (s *startLimiter) clear() {
	s.waiting, s.queued, s.nextPostponeAt = nil, map[daemon.Unit]*waiter{}, lease.Never
}

// hasFreeSlot reports whether another run may start. A start that takes a quarter of its window counts as slow and
// frees its slot: an agent that waits for something must not keep all others from starting.
func (s *startLimiter) hasFreeSlot(now lease.Instant) bool {
	if s.busy {
		return false
	}
	young, more := 0, 0
	for _, slot := range s.slots {
		switch {
		case slot.slow:
		case now.Sub(slot.began) < slot.window/4:
			young++
		case s.slow || !slot.stamped:
			slot.slow = true
			more--
		default:
			slot.slow = true
			more++
		}
	}
	s.limit = min(max(s.limit+more, fewestStarts), mostStarts) // all at once: the order of the slots must not matter
	return young < s.limit && len(s.slots) < maxSlow*s.limit
}

// next returns when time alone changes something: a waiting unit must be postponed, or a start becomes slow and
// frees its slot.
func (s *startLimiter) next() lease.Instant {
	if len(s.waiting) == 0 {
		return lease.Never
	}
	next := s.nextPostponeAt
	for _, slot := range s.slots {
		if !s.busy && !slot.slow {
			next = min(next, slot.began.Add(slot.window/4))
		}
	}
	return next
}

// started notes that a run has started, and raises the limit if that was quick.
func (s *startLimiter) started(now lease.Instant, u daemon.Unit) {
	if slot, ok := s.slots[u]; ok && now.Sub(slot.began) < slot.window/8 && !s.slow {
		s.limit = min(s.limit+1, mostStarts)
	}
	delete(s.slots, u)
}

// heartbeatAnswered notes that a heartbeat sent at sent was answered.
func (m *Member) heartbeatAnswered(now, sent lease.Instant) {
	s, took := &m.starts, now.Sub(sent)
	s.busy, s.slow = false, took > m.t.QueryTimeout/4
	if took > m.t.QueryTimeout/2 {
		s.halveLimit(now, sent)
	}
}

// heartbeatFailed notes that a heartbeat failed.
func (s *startLimiter) heartbeatFailed(now lease.Instant) {
	s.busy, s.slow = true, true
	s.halveLimit(now, now)
}

// halveLimit halves the limit because something that began at the given moment was too slow. What began before the
// last halving is no evidence about the present limit.
func (s *startLimiter) halveLimit(now, began lease.Instant) {
	if began >= s.halvedAt {
		s.limit, s.halvedAt = max(s.limit/2, fewestStarts), now
	}
}

// startWindow returns how long a run with that acknowledge timeout may take to start.
func (m *Member) startWindow(timeout time.Duration) time.Duration {
	return timeout - m.t.Margin(timeout) - m.t.StopTimeout
}

// start begins a run of the listed unit, or makes the unit wait.
func (m *Member) start(now lease.Instant, l *listing) {
	s, u := &m.starts, l.rec.Unit
	if m.stop.phase != stopNone {
		m.report(u, l.rec.Generation, daemon.Release, storage.UnitReport{Reason: "node stops"})
		return
	}
	if m.lostUnitsMayRun(now) {
		return
	}
	w := s.queued[u]
	if w == nil {
		// The leader gave a longer timeout if this node has much to start. The unit's own part of it is no longer.
		w = &waiter{timeout: min(l.rec.AcknowledgeTimeout, cmp.Or(m.spec(u.Daemon).AcknowledgeTimeout, m.t.AcknowledgeTimeout))}
		if len(s.waiting) == 0 && s.hasFreeSlot(now) && m.begin(now, l, w.timeout) {
			return
		}
		s.queued[u] = w
		s.waiting = append(s.waiting, u)
	}
	s.nextPostponeAt = min(s.nextPostponeAt, m.postponeAt(l, w))
}

// begin starts a run of the listed unit. It returns false if the run could no longer be acknowledged in time, or
// if the listing is too old to give it any validity.
func (m *Member) begin(now lease.Instant, l *listing, timeout time.Duration) bool {
	rec, spec := &l.rec, m.spec(l.rec.Unit.Daemon)
	r := &run{
		localRun: localRun{Generation: rec.Generation}, validUntil: m.runValidUntil(l.sent),
		ackBy: lease.Never, drainBy: lease.Never, abandonAt: lease.Never, began: now,
		health: health{before: rec.Failures, recoveredAt: lease.Never}, recoversAfter: m.recoversAfter(&spec),
	}
	window := m.startWindow(timeout)
	if rec.State == daemon.Assigning {
		r.ackBy = l.end.Add(-m.t.StopTimeout) // earlier once the fence is stamped
	}
	if now >= r.ackBy || now >= r.validUntil {
		return false
	}
	m.runs.add(rec.Unit, r)
	delete(m.runs.endings, rec.Unit)
	m.starts.slots[rec.Unit] = &slot{began: now, window: window}
	m.runs.next = min(m.runs.next, r.deadline())
	m.emit(Start{Fence: rec.Fence(), Term: rec.Term, Spec: spec})
	return true
}

// onRunStamped handles the stamp of a run's fence. From then on the run has its own time to start. While it waits for the stamp, only the
// leader's deadline counts: to give the unit up because the store is slow would make more work for the store.
func (m *Member) onRunStamped(now lease.Instant, f daemon.Fence) {
	r, slot := m.runs.live[f.Unit], m.starts.slots[f.Unit]
	if r == nil || r.Generation != f.Generation || slot == nil || slot.stamped {
		return
	}
	slot.stamped = true
	if r.ackBy != lease.Never {
		r.ackBy = min(r.ackBy, now.Add(slot.window))
		m.runs.next = min(m.runs.next, r.deadline())
	}
}

// startBy returns until when a waiting unit may start. At that moment half of its window is left.
func (m *Member) startBy(l *listing, w *waiter) lease.Instant {
	if l.rec.State != daemon.Assigning {
		return lease.Never // resumed: only its validity limits it
	}
	return l.end.Add(-m.t.StopTimeout - m.startWindow(w.timeout)/2)
}

// postponeAt returns when to postpone a waiting unit: at half of its present timeout, because a busy node may be
// slow to report it, and at the latest when the unit may no longer start.
func (m *Member) postponeAt(l *listing, w *waiter) lease.Instant {
	if l.rec.State != daemon.Assigning {
		return lease.Never
	}
	return min(l.end.Add(-m.t.StopTimeout-l.rec.AcknowledgeTimeout/2), m.startBy(l, w))
}

// startWaiting starts waiting units while slots are free, and postpones others whose deadline is near.
func (m *Member) startWaiting(now lease.Instant) {
	s := &m.starts
	if m.stop.phase != stopNone {
		s.clear() // each unit is given back
	}
	free := s.hasFreeSlot(now)
	if len(s.waiting) == 0 || !free && now < s.nextPostponeAt {
		return
	}
	s.nextPostponeAt = lease.Never
	rest := s.waiting[:0]
	for _, u := range s.waiting {
		l, w := m.runs.listed[u], s.queued[u]
		if l == nil || m.runs.live[u] != nil || reconcile(&l.rec, nil, m.runs.ran[u]) != actionStart {
			delete(s.queued, u)
			continue
		}
		at := m.postponeAt(l, w)
		switch {
		case w.postponeReported != l.rec.Generation && now < m.startBy(l, w) && free && m.begin(now, l, w.timeout):
			delete(s.queued, u)
			free = s.hasFreeSlot(now)
			continue
		case w.postponeReported != l.rec.Generation && now < at:
			s.nextPostponeAt = min(s.nextPostponeAt, at)
		default:
			w.postponeReported = l.rec.Generation
			m.report(u, w.postponeReported, daemon.Postpone, storage.UnitReport{
				Reason:             "waits behind other starts of its node",
				AcknowledgeTimeout: min(2*l.rec.AcknowledgeTimeout, mostPostponed*w.timeout),
			})
		}
		rest = append(rest, u)
	}
	if s.waiting = rest; len(rest) == 0 {
		s.clear()
	}
}
