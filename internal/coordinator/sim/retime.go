package sim

import (
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
)

// otherTimings returns the probability that a restarted process has other timings than the one before it.
func (w *world) otherTimings() float64 {
	if w.cfg.Faults&Retime == 0 || w.cfg.Shorter == (lease.Timing{}) {
		return 0
	}
	return 0.2
}

// switchTimings gives the next process of the machine the other timings.
func (h *host) switchTimings(w *world) {
	w.stats.Retimed++
	if h.t == w.t {
		h.t = w.cfg.Shorter
	} else {
		h.t = w.t
	}
}

// retime restarts the processes one after the other, each with the other timings. Most stop cleanly, some are
// killed. The pause between two is short, or long enough for the cluster to settle with both.
func (d *director) retime() {
	w := d.w
	pause := w.upTo(2 * w.t.HeartbeatInterval)
	if w.chance(0.3) {
		pause = w.upTo(2 * w.t.NodeRegistrationTTL)
	}
	target := w.t
	if w.chance(0.5) {
		target = w.cfg.Shorter
	}
	d.retimeNext(w.hosts, target, pause)
}

// retimeNext restarts the process of the first machine, and then those of the others.
func (d *director) retimeNext(rest []*host, target lease.Timing, pause time.Duration) {
	w := d.w
	if len(rest) == 0 {
		d.end(0, func() {})
		return
	}
	h := rest[0]
	next := func() { d.retimeNext(rest[1:], target, pause) }
	if h.proc == nil || h.t == target || h.standing {
		next()
		return
	}
	if old := h.proc; w.chance(0.8) {
		old.stop()
	} else {
		old.kill()
	}
	w.after(pause, func() { d.startRetimed(h, target, w.now+w.stopBound(), next) })
}

// startRetimed starts the machine's next process once the former has ended, at the latest at the given moment.
func (d *director) startRetimed(h *host, target lease.Timing, latest time.Duration, next func()) {
	w := d.w
	switch {
	case h.proc.state != dead && w.now < latest:
		w.after(time.Second, func() { d.startRetimed(h, target, latest, next) })
		return
	case h.proc.state == dead && !h.standing:
		if h.t != target {
			h.switchTimings(w)
		}
		w.start(h)
	}
	next()
}
