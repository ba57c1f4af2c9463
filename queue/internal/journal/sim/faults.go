package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
)

// fault decides what goes wrong with a request that arrives at the bucket.
func (w *world) fault(c mem.Call) mem.Fault {
	if w.faultsEnded {
		return mem.Fault{}
	}
	switch n := w.rng.IntN(1000); {
	case n < 30:
		return mem.Fault{Kind: mem.LostReply}
	case n < 50:
		return mem.Fault{Kind: mem.LostRequest}
	case n < 75:
		if c.Op == mem.Create || c.Op == mem.Replace || c.Op == mem.Delete {
			w.totals.Late++
		}
		return mem.Fault{Kind: mem.Late, Delay: time.Millisecond + w.between(0, time.Minute)}
	case n < 85:
		return mem.Fault{Kind: mem.Conflict}
	case n < 95:
		return mem.Fault{Kind: mem.Throttled, Delay: w.between(0, time.Second)}
	case n < 105:
		return mem.Fault{Kind: mem.Refused}
	case n < 108:
		return mem.Fault{Kind: mem.TornRead}
	}
	return mem.Fault{}
}

// latency returns the latency of a request or a reply: 5 to 60 ms, and sometimes very long.
func (w *world) latency() time.Duration {
	if !w.faultsEnded && w.chance(5) {
		return w.between(time.Second, 90*time.Second)
	}
	return w.between(5*time.Millisecond, 60*time.Millisecond)
}

// appoint plays the leader: it starts a new owner, in one of the ways in which that happens, and
// schedules itself again.
func (w *world) appoint() {
	if w.faultsEnded {
		return
	}
	old := w.current
	if old != nil && !old.owns && !old.ended && w.now < old.since+20*time.Second && !w.chance(50) {
		w.after(w.between(100*time.Millisecond, time.Second), w.appoint) // the current takeover needs time
		return
	}
	w.brokers = slices.DeleteFunc(w.brokers, func(b *broker) bool { return b.ended })
	switch n := w.rng.IntN(100); {
	case old == nil || old.ended:
		w.replace()
	case n < 25: // a clean hand-over: the next owner is appointed when the old one has closed
		old.close()
		w.after(w.between(50*time.Millisecond, time.Second), w.replace)
	case n < 50: // kill -9
		old.crash()
		w.replace()
	case n < 75: // paused, and continued later, as an owner that does not know of its successor
		old.pausedUntil = w.now + w.between(50*time.Millisecond, 3*time.Minute)
		w.replace()
	case n < 85: // the old owner does not know of its successor
		w.replace()
	case n < 93: // restarted in place: same process, same generation; the old run may linger
		if w.chance(500) {
			old.crash()
		}
		w.current = w.start(old.generation, old.name)
	default: // two owners at once
		w.replace()
		w.after(w.between(0, 100*time.Millisecond), w.replace)
	}
	w.after(w.between(100*time.Millisecond, 4*time.Second), w.appoint)
}

// replace appoints an owner with the next generation. A faulty leader sometimes uses a generation
// twice.
func (w *world) replace() {
	if w.faultsEnded {
		return
	}
	if w.generation == 0 || !w.chance(30) {
		w.generation++
	}
	w.current = w.start(w.generation, fmt.Sprintf("p%d", w.rng.IntN(1_000_000)))
	b, soon := w.current, w.between(0, 500*time.Millisecond)
	switch n := w.rng.IntN(1000); {
	case n < 40: // stopped at once, during its takeover
		b.pausedUntil = w.now + w.between(0, 2*time.Minute)
	case n < 80:
		w.after(soon, func() { b.pausedUntil = w.now + w.between(0, 2*time.Minute) })
	case n < 120:
		w.after(soon, b.crash)
	}
}
