package member

import (
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/reconcile"
	"github.com/emitd/emitd/storage"
)

// starts paces the runs that this node begins. Many agents that start at once on a busy machine would all
// miss their acknowledge deadlines, and the node its heartbeats, so only a bounded number of runs is in
// its start phase; other units wait for their turn. A unit that waits is postponed in the store well
// before its deadline: its assignment gets a higher generation, and the acknowledge timeout begins anew,
// twice as long each time. The generation makes this safe: an expiry that the leader decided before finds
// another generation and is skipped, and this node starts a run only under the generation, and within the
// deadline, that the store told it.
type starts struct {
	waiting []daemon.Unit // in the order in which they came
	queued  map[daemon.Unit]*waiter
	slots   map[daemon.Unit]*slot // the runs in their start phase
	// limit is how many runs may be new in their start phase; with slow ones there may be maxSlow times as
	// many. While heartbeats are answered quickly it grows by one with each run that starts quickly, so it
	// doubles from one round of starts to the next, and with each that is slow, which then waits for
	// something else than this machine. While they are slow it shrinks by one with each slow start. It is
	// halved when a run misses its deadline, and when a heartbeat fails or nearly does: a machine that is
	// so busy that the node hardly comes to say that it lives must not be given more to do.
	limit    int
	halvedAt lease.Instant
	// busy says that the newest heartbeat failed; nothing begins before one is answered.
	// slow says that its answer took long.
	busy, slow bool
	// look is when the next waiting unit has to be postponed.
	look lease.Instant
}

// waiter is a unit that waits for its turn.
type waiter struct {
	timeout time.Duration // to acknowledge, before it was postponed
	asked   int64         // the generation whose postponement was asked for
}

// slot is a run in its start phase.
type slot struct {
	began  lease.Instant
	window time.Duration // in which the run must be acknowledged
	slow   bool          // a quarter of it is over
}

// The bounds of starts.limit, and where it begins.
const (
	fewestStarts = 4
	firstStarts  = 8
	mostStarts   = 256
	maxSlow      = 4
)

// mostPostponed bounds the timeout of a postponed assignment: this often the one it was made with.
const mostPostponed = 8

func (s *starts) init() {
	s.slots, s.limit = map[daemon.Unit]*slot{}, firstStarts
	s.clear()
}

// clear forgets who waits. Units that are listed again wait again.
func (s *starts) clear() {
	s.waiting, s.queued, s.look = nil, map[daemon.Unit]*waiter{}, lease.Never
}

// isFree reports whether another run may begin. A start that takes a quarter of its window is slow and
// gives its place to another: an agent that waits for something must not keep all others from starting.
func (s *starts) isFree(now lease.Instant) bool {
	if s.busy {
		return false
	}
	young := 0
	for _, slot := range s.slots {
		switch {
		case slot.slow:
		case now.Sub(slot.began) < slot.window/4:
			young++
		case s.slow:
			slot.slow = true
			s.limit = max(s.limit-1, fewestStarts)
		default:
			slot.slow = true
			s.limit = min(s.limit+1, mostStarts)
		}
	}
	return young < s.limit && len(s.slots) < maxSlow*s.limit
}

// next returns when time alone changes something: a waiting unit must be postponed, or a slow start gives
// its slot free.
func (s *starts) next() lease.Instant {
	if len(s.waiting) == 0 {
		return lease.Never
	}
	next := s.look
	for _, slot := range s.slots {
		if !s.busy && !slot.slow {
			next = min(next, slot.began.Add(slot.window/4))
		}
	}
	return next
}

// started notes that a run has started, and lets the limit grow if that was quick.
func (s *starts) started(now lease.Instant, u daemon.Unit) {
	if slot, ok := s.slots[u]; ok && now.Sub(slot.began) < slot.window/8 && !s.slow {
		s.limit = min(s.limit+1, mostStarts)
	}
	delete(s.slots, u)
}

// heardInTime notes that a heartbeat which began at sent was answered.
func (m *Member) heardInTime(now, sent lease.Instant) {
	s, took := &m.starts, now.Sub(sent)
	s.busy, s.slow = false, took > m.t.QueryTimeout/4
	if took > m.t.QueryTimeout/2 {
		s.halve(now, sent)
	}
}

// unheard notes that a heartbeat failed.
func (s *starts) unheard(now lease.Instant) {
	s.busy, s.slow = true, true
	s.halve(now, now)
}

// halve takes half of the slots away, for something that began at the given moment and was too slow. What
// began before the limit was halved last says nothing about the present one.
func (s *starts) halve(now, began lease.Instant) {
	if began >= s.halvedAt {
		s.limit, s.halvedAt = max(s.limit/2, fewestStarts), now
	}
}

// startWindow is how long a run with that acknowledge timeout may take to start.
func (m *Member) startWindow(timeout time.Duration) time.Duration {
	return timeout - m.t.Margin(timeout) - m.t.StopTimeout
}

// start begins the listed run, or has it wait for its turn.
func (m *Member) start(now lease.Instant, l *listing) {
	s, u := &m.starts, l.rec.Unit
	if m.stop.phase != stopNone {
		m.report(u, l.rec.Generation, daemon.Release, storage.UnitReport{Reason: "node stops"})
		return
	}
	if m.stranger(now, m.t.NodeRegistrationTTL) {
		return
	}
	w := s.queued[u]
	if w == nil {
		w = &waiter{timeout: l.rec.AcknowledgeTimeout}
		if len(s.waiting) == 0 && s.isFree(now) && m.begin(now, l, w.timeout) {
			return
		}
		s.queued[u] = w
		s.waiting = append(s.waiting, u)
	}
	s.look = min(s.look, m.postponeAt(l, w))
}

// begin starts the listed run. It reports false if the run could not be acknowledged in time any more, or
// has not been listed lately enough to be trusted.
func (m *Member) begin(now lease.Instant, l *listing, timeout time.Duration) bool {
	rec := &l.rec
	r := &run{
		Run: reconcile.Run{Generation: rec.Generation}, cancelAt: m.trusted(l.sent),
		ackBy: lease.Never, drainBy: lease.Never, abandonAt: lease.Never, began: now,
		health: health{before: rec.Failures, wellAt: lease.Never},
	}
	window := m.startWindow(timeout)
	if rec.State == daemon.Assigning {
		r.ackBy = min(l.end.Add(-m.t.StopTimeout), now.Add(window))
	}
	if now >= r.ackBy || now >= r.cancelAt {
		return false
	}
	m.runs.live[rec.Unit], m.runs.ran[rec.Unit] = r, rec.Generation
	delete(m.runs.endings, rec.Unit)
	m.starts.slots[rec.Unit] = &slot{began: now, window: window}
	m.runs.next = min(m.runs.next, r.deadline())
	m.emit(Start{Fence: rec.Fence(), Term: rec.Term, Spec: m.spec(rec.Unit.Daemon)})
	return true
}

// startBy returns until when a waiting unit may start: at least half of its window is left then.
func (m *Member) startBy(l *listing, w *waiter) lease.Instant {
	if l.rec.State != daemon.Assigning {
		return lease.Never // resumed: no deadline but that of trust
	}
	return l.end.Add(-m.t.StopTimeout - m.startWindow(w.timeout)/2)
}

// postponeAt returns when a waiting unit is to be postponed: at half of its present timeout, because a
// busy node may be slow to say so, and at the latest when it may not start any more.
func (m *Member) postponeAt(l *listing, w *waiter) lease.Instant {
	if l.rec.State != daemon.Assigning {
		return lease.Never
	}
	return min(l.end.Add(-m.t.StopTimeout-l.rec.AcknowledgeTimeout/2), m.startBy(l, w))
}

// startWaiting begins runs that waited for their turn, as far as slots are free, and postpones others
// whose deadline comes near.
func (m *Member) startWaiting(now lease.Instant) {
	s := &m.starts
	if m.stop.phase != stopNone {
		s.clear() // each is given back
	}
	free := s.isFree(now)
	if len(s.waiting) == 0 || !free && now < s.look {
		return
	}
	s.look = lease.Never
	rest := s.waiting[:0]
	for _, u := range s.waiting {
		l, w := m.runs.listed[u], s.queued[u]
		if l == nil || m.runs.live[u] != nil || reconcile.Decide(&l.rec, nil, m.runs.ran[u]) != reconcile.Start {
			delete(s.queued, u)
			continue
		}
		at := m.postponeAt(l, w)
		switch {
		case w.asked != l.rec.Generation && now < m.startBy(l, w) && free && m.begin(now, l, w.timeout):
			delete(s.queued, u)
			free = s.isFree(now)
			continue
		case w.asked != l.rec.Generation && now < at:
			s.look = min(s.look, at)
		default:
			w.asked = l.rec.Generation
			m.report(u, w.asked, daemon.Postpone, storage.UnitReport{
				Reason:             "waits for its turn to start",
				AcknowledgeTimeout: min(2*l.rec.AcknowledgeTimeout, mostPostponed*w.timeout),
			})
		}
		rest = append(rest, u)
	}
	s.waiting = rest
}
