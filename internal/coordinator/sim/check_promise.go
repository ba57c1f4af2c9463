package sim

import (
	"cmp"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// The checks in this file look at what a process does, not at the consequences. Some rules keep a distance: a
// margin, or a whole lease after the store was replaced. A process that breaks such a rule usually does no
// visible harm: in most histories no two leaders or runs overlap.

// noteStore notes, before a reply is delivered, whether the store is another one than the process knew, or became
// another one shortly before the process began.
func (c *checks) noteStore(w *world, p *process, r *storage.Reply) {
	seen := &p.watch
	switch known := seen.store != ""; {
	case known && seen.store != r.StoreID:
		seen.changedAt, seen.mustLose = w.now, seen.leading
	case !known && !r.StoreSince.IsZero() && r.Now.Sub(r.StoreSince) < p.t.NodeRegistrationTTL:
		seen.changedAt = w.now
	}
	seen.store = r.StoreID
}

// checkLedAfterChange checks, after a step, that a leader which learned of another store no longer leads.
func (c *checks) checkLedAfterChange(w *world, p *process) {
	if p.watch.mustLose {
		w.violate("store identity", "p%02d goes on leading in %s, which it did not lead before", p.index, p.watch.store)
	}
}

// learnedWithin reports whether the process learned less than d ago that the store is another one.
func (p *process) learnedWithin(d time.Duration) bool {
	at := p.watch.changedAt
	return at != 0 && p.w.now-at < quick(d)
}

// checkCall checks a call that a process is about to make to the store.
func (c *checks) checkCall(w *world, p *process, call *member.Call) {
	if call.Heartbeat != nil && call.Heartbeat.TermRequest.Campaign && p.learnedWithin(p.t.LeaseDuration) {
		w.violate("store identity", "p%02d stands %v after it heard that the store is another one", p.index, w.now-p.watch.changedAt)
	}
	if !p.learnedWithin(p.t.NodeRegistrationTTL) {
		return
	}
	if call.Commit != nil {
		for i := range call.Commit.Changes {
			if call.Commit.Changes[i].Step == daemon.Assign {
				w.violate("store identity", "p%02d assigns %s %v after it heard that the store is another one",
					p.index, call.Commit.Changes[i].Unit, w.now-p.watch.changedAt)
			}
		}
	}
	if call.Report != nil {
		for i := range call.Report.Units {
			if call.Report.Units[i].Step == daemon.Resume {
				w.violate("store identity", "p%02d resumes %s %v after it heard that the store is another one",
					p.index, call.Report.Units[i].Unit, w.now-p.watch.changedAt)
			}
		}
	}
}

// first checks that a leadership whose validity is over is ended before any other effect.
func (c *checks) first(w *world, p *process, effects []member.Effect) {
	for i, e := range effects {
		if lost, ok := e.(member.LeadershipLost); ok && lost.Reason == node.ValidityEnded && i > 0 {
			w.violate("E4", "p%02d does %T before it tells that term %d is lost", p.index, effects[0], lost.Term.Number)
		}
	}
}

// revocation is the newest revoke of a unit.
type revocation struct {
	generation int64
	at         time.Duration
}

// deadlines checks that an event does not take a unit from its holder too early.
func (c *checks) deadlines(w *world, e *daemon.Event, u int) {
	switch e.Kind {
	case daemon.NodeDeaf:
		c.deafBy[e.Incarnation] = c.applying
	case daemon.AssignmentRevoking:
		c.revoked[u] = revocation{e.Generation, w.now}
		if strings.HasPrefix(e.Reason, "node deaf") && c.deafBy[e.Incarnation] == c.applying {
			w.violate("A8", "%s is taken back from %s in the step that calls it deaf", e.Unit, e.Incarnation)
		}
	case daemon.AssignmentForced:
		r := c.revoked[u]
		if !strings.HasPrefix(e.Reason, "not drained within") || r.generation != e.Generation {
			return
		}
		p := w.byInc[e.Incarnation]
		if waited := w.now - r.at; p != nil && waited < quick(w.forcedAfter(p, w.units[u]))-p.t.ClockStep {
			w.violate("A6", "%s is taken from its holder %v after it was asked back", e.Unit, waited)
		}
	}
}

// drainTimeout returns the least drain timeout of a unit.
func (w *world) drainTimeout(u *unit) time.Duration {
	least := w.t.DrainTimeout
	if w.otherTimings() > 0 {
		least = w.cfg.Shorter.DrainTimeout
	}
	return cmp.Or(u.work.Spec.DrainTimeout, least)
}

// forcedAfter returns the time promised to a holder that does not report: the whole drain timeout and
// StopTimeout, two timers that are late by the latency of waking up, and the difference of the clocks.
func (w *world) forcedAfter(p *process, u *unit) time.Duration {
	t, d := p.t, w.drainTimeout(u)
	return max(d+t.StopTimeout+2*(d/1000+t.Wakeup+t.ClockStep), t.NodeRegistrationTTL)
}

// checkDrainCancelled checks a reply that shows a process that its unit was revoked. When others may count the drain
// timeout as over, the run must have been cancelled, if it has not returned.
func (c *checks) checkDrainCancelled(w *world, p *process, r *daemon.Record) {
	u := w.unitAt[r.Unit]
	c.grow(len(w.units))
	revoked := c.revoked[u]
	if r.State != daemon.Revoking || revoked.generation != r.Generation {
		return
	}
	run := p.find(r.Fence())
	if run == nil || run.watched {
		return
	}
	run.watched = true
	due := max(revoked.at+slow(r.DrainTimeout), w.now+p.t.Wakeup+time.Millisecond)
	w.after(due-w.now, func() {
		if p.state != running || p.stopping || run.phase == over || run.cancelled || p.watch.paused && p.watch.pausedTill >= revoked.at {
			return
		}
		w.violate("A5", "p%02d lets %s run on, %v after it was asked back", p.index, run.fence, w.now-revoked.at)
	})
}
