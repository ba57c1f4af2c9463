package sim

import (
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
)

// The longest times for which an embargo may keep a unit from a process: after a failure, and after an abandoned
// run.
const (
	longestEmbargo   = 10 * time.Minute
	longestAbandoned = time.Minute
)

// keptFor returns for how long embargoes go on to keep the unit from every process that is able to run it. If none does
// any more, the result is not positive: that long ago the first of them ended. It is -forever if no embargo has kept the
// unit from one of them, and if there is none.
//
// An embargo after a failure counts for its length, at most longestEmbargo, whatever the store's clock shows. An embargo after
// an abandoned run does not count by itself, but the run does until it has returned.
func keptFor(u *unit, r *daemon.Record, able []*process, now time.Time) time.Duration {
	if len(able) == 0 {
		return -forever
	}
	first := forever
	for _, p := range able {
		until := -forever
		for _, e := range r.Embargoes {
			left := e.Until.Sub(now)
			if e.Incarnation == p.who.Incarnation && e.AbandonedGeneration == 0 && left <= min(e.Length, longestEmbargo) {
				until = left
			}
		}
		if p.abandons(u) {
			until = forever
		}
		first = min(first, until)
	}
	return first
}

// excuseByEmbargo finds the units that need not run because of embargoes, and the round that may follow.
//
// While embargoes keep a unit from every process that is able to run it, it cannot run. Once the first of them has ended, it
// has the time in which any free unit must run, and no more. The loads were made even without the unit. So when it
// runs, one more round is due, and nothing may move after that. All this is checked again when the time is over.
func (c *checks) excuseByEmbargo(w *world, snap *daemon.Snapshot, rows []*daemon.Record, members []*process, held map[*process]int) {
	for i, u := range w.units {
		c.heldBack[i] = false
		if rows[i] == nil || rows[i].Retired || u.work.flaky() {
			continue
		}
		kept := keptFor(u, rows[i], w.able(u, rows[i], members, held), snap.Now)
		if kept == forever || kept == -forever {
			c.heldBack[i] = kept == forever // see checkReturn
			continue
		}
		left := kept + w.placing()
		switch {
		case kept > 0 || left > 0 && w.notRunning(u, rows[i]) != "":
			c.heldBack[i] = true
			c.recheckAfter(w, left)
		case left+w.roundAfterEmbargo() > 0: // it runs again since a moment ago
			c.roundBegins(w, left+w.roundAfterEmbargo())
		}
	}
}

// tried reports whether a unit that embargoes held back is tried again. It counts in the load of its process, but the round
// comes only when it runs.
func (c *checks) tried(w *world, snap *daemon.Snapshot) bool {
	return slices.ContainsFunc(snap.Units, func(r daemon.Record) bool {
		u, ok := w.unitAt[r.Unit]
		return ok && !r.State.IsFree() && c.heldBack[u]
	})
}

// roundAfterEmbargo returns how long after a unit runs again the round that follows has ended. The unit must first have run for
// daemon.FailuresResetAfter, so that one that comes and goes moves no other.
func (w *world) roundAfterEmbargo() time.Duration {
	return daemon.FailuresResetAfter + 2*w.t.HeartbeatInterval + w.round()
}

// onItsWay reports whether a round that an embargo's end has caused moves the unit. Where agents fail or give units up, one may
// have ended at any time. The unit must run when the round is over.
func (c *checks) onItsWay(w *world, unit int) bool {
	left := c.movedAt[unit] + w.round() - w.now
	if c.movedAt[unit] == 0 || left <= 0 || w.now >= c.roundUntil && !w.restless() {
		return false
	}
	c.recheckAfter(w, left)
	return true
}

// roundBegins notes that a round may be under way for that long.
func (c *checks) roundBegins(w *world, d time.Duration) {
	c.roundUntil = max(c.roundUntil, w.now+d)
	c.recheckAfter(w, d)
}

// recheckAfter checks once more after d, and after the round that may be under way then, that the cluster is well, if nothing was
// broken meanwhile.
func (c *checks) recheckAfter(w *world, d time.Duration) {
	at := c.disturbedAt
	w.after(d, func() {
		switch {
		case !c.settled || c.disturbedAt != at || c.recheckedAt == w.now:
		case w.now < c.roundUntil:
			c.recheckAfter(w, c.roundUntil-w.now)
		default:
			c.recheckedAt = w.now
			w.stats.Embargoes++
			c.checkWellBy(w, "I5")
		}
	})
}
