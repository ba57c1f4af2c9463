package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
)

// leaderTerm is a live leadership context, as a process published it.
type leaderTerm struct {
	p     *process
	term  int64
	since time.Duration
}

// elected handles the beginning of a leadership context.
func (c *checks) elected(w *world, p *process, t node.Term) {
	switch {
	case p.watch.leading:
		w.violate("hooks", "p%02d was elected twice without having lost", p.index)
	case t.Leader.Incarnation != p.who.Incarnation:
		w.violate("I1", "p%02d leads term %d, which is of %s", p.index, t.Number, t.Leader.Incarnation)
	}
	p.watch.leading = true
	c.leaderTerms = append(c.leaderTerms, &leaderTerm{p, t.Number, w.now})
	c.together(w)
	w.queue.push(event{at: p.watch.leaseFrom + p.leaderTrust(), kind: evLeaderTrust, p: p, n: t.Number})
}

// together checks that no two contexts are live at once, unless a pause excuses it. After a
// failover that lost rows, a process that knew nothing of the old store may lead at once, while the
// old leader has not yet learned of the new store.
func (c *checks) together(w *world) {
	if len(c.leaderTerms) < 2 || c.recentFailover(w) {
		return
	}
	for i, a := range c.leaderTerms {
		for _, b := range c.leaderTerms[:i] {
			till := max(a.p.excuse(a.p.noticed(0)), b.p.excuse(b.p.noticed(0)))
			switch {
			case apart(a.p, b.p):
			case w.now >= till:
				w.violate("I1", "p%02d leads term %d since %v and p%02d term %d since %v", b.p.index, b.term, b.since, a.p.index, a.term, a.since)
			case till != forever:
				w.queue.push(event{at: till, kind: evOverlap, n: -1})
			}
		}
	}
}

// recentFailover reports whether the store lost its newest rows less than NodeRegistrationTTL ago.
// Its rows are then older than what the nodes did.
func (c *checks) recentFailover(w *world) bool {
	return c.failedOverAt != 0 && w.now < c.failedOverAt+w.t.NodeRegistrationTTL
}

// leaderTrust returns how long after the beginning of an answered renewal a leader may go on.
func (p *process) leaderTrust() time.Duration {
	t := p.t
	return slow(t.LeaseDuration-t.Margin(t.LeaseDuration)) + t.Wakeup
}

// checkLeaderTrust checks that a leader that still leads has been renewed.
func (c *checks) checkLeaderTrust(w *world, p *process, term int64) {
	for _, r := range c.leaderTerms {
		if r.p != p || r.term != term {
			continue
		}
		end := max(p.watch.leaseFrom+p.leaderTrust(), p.excuse(p.noticed(0)))
		switch {
		case w.now >= end:
			w.violate("I6", "p%02d leads term %d, last renewed by a call from %v", p.index, term, p.watch.leaseFrom)
		case end == forever && p.watch.pausedTill == forever:
			w.after(w.t.LeaseDuration, func() { c.checkLeaderTrust(w, p, term) })
		case end == forever:
			w.queue.push(event{at: max(p.watch.pausedTill, w.now) + time.Millisecond, kind: evLeaderTrust, p: p, n: term})
		default:
			w.queue.push(event{at: end, kind: evLeaderTrust, p: p, n: term})
		}
	}
}

// lost handles the end of a leadership context.
func (c *checks) lost(w *world, p *process, e member.LeadershipLost) {
	if !p.watch.leading {
		w.violate("hooks", "p%02d lost term %d without leading", p.index, e.Term.Number)
	}
	p.watch.leading, p.watch.mustLose = false, false
	c.endLeaderTerm(p)
}

func (c *checks) endLeaderTerm(p *process) {
	for i, r := range c.leaderTerms {
		if r.p == p {
			c.leaderTerms = append(c.leaderTerms[:i], c.leaderTerms[i+1:]...)
			return
		}
	}
}

// ended handles the end of a process.
func (c *checks) ended(w *world, p *process) {
	c.endLeaderTerm(p)
	p.watch.leading = false
	w.restartBound("process ended")
}

// stopped handles the end of a clean stop.
func (c *checks) stopped(w *world, p *process) {
	if p.watch.leading {
		w.violate("stop", "p%02d stopped while it leads", p.index)
	}
	for _, r := range p.runs {
		if r.phase == live && !r.excused(w) && !r.abandoned {
			w.violate("stop", "p%02d stopped while %s runs", p.index, r.fence)
		}
	}
}

// stopOverdue checks that a clean stop has ended in time.
func (c *checks) stopOverdue(w *world, p *process) {
	if p.state == dead || p.state == paused || p.watch.paused && p.watch.pausedTill > p.stopBy-w.stopBound() {
		return
	}
	w.violate("stop", "p%02d has not stopped within %v", p.index, w.stopBound())
}

// removed checks the declaration of a death: no heartbeat must have arrived for the whole TTL.
func (c *checks) removed(w *world, e *daemon.Event) {
	p := w.byInc[e.Incarnation]
	if strings.HasPrefix(e.Reason, "process has ended") {
		c.proven(w, e)
		return
	}
	if p == nil || c.forged || c.recentFailover(w) || c.applying != nil && c.applying.p == p {
		return
	}
	if quiet := w.now - p.watch.beatAt; quiet < quick(p.t.NodeRegistrationTTL-p.t.ClockStep) {
		w.violate("I6", "p%02d was declared dead %v after a heartbeat", p.index, quiet)
	}
}

// calledDeaf checks the declaration that a node is deaf: it must have confirmed no new reply for
// the whole TTL.
func (c *checks) calledDeaf(w *world, e *daemon.Event) {
	p := w.byInc[e.Incarnation]
	if p == nil || c.recentFailover(w) {
		return
	}
	if quiet := w.now - p.watch.heardAt; quiet < quick(p.t.NodeRegistrationTTL-p.t.ClockStep) {
		w.violate("I6", "p%02d was called deaf %v after it had heard something new", p.index, quiet)
	}
}

// anySaw reports whether a live process ever received a term of at least that number. It will
// report the number to the store, so the number is not lost. A process that uses a former primary
// reports to that one.
func (w *world) anySaw(number int64) bool {
	return slices.ContainsFunc(w.procs, func(p *process) bool {
		return p.state != dead && !p.host.onOld && p.watch.sawTerm >= number
	})
}

// failedOver handles a failover of the store.
func (c *checks) failedOver(w *world) {
	c.failedOverAt = w.now
	for _, p := range w.procs {
		p.watch.reported = highestSeen{}
	}
	c.terms.failedOver(c.model.term)
	c.grow(len(w.units))
	w.restartBound("failover")
	w.queue.push(event{at: w.now + w.t.NodeRegistrationTTL + 1, kind: evOverlap, n: -1})
}
