package sim

import (
	"time"

	"github.com/emitd/emitd/internal/coordinator/member"
)

// resource is what the runs of a unit work on: a counter in the store. Each run reads it once,
// after its fence stamp, and then writes the next higher value each time, under its fence. A run
// that overwrites a value it has not read loses an acknowledged effect.
type resource struct {
	value      int64
	generation int64 // of the run whose effect was accepted last
}

// readResource reads the resource, if the store is reachable.
func (r *run) readResource() {
	w := r.p.w
	if w.reachable(r.p) && !r.read {
		r.read, r.value = true, r.u.resource.value
	}
}

func (w *world) reachable(p *process) bool {
	return !p.host.cutOff && !p.host.deaf && !w.server.down && !p.host.onOld && !p.watch.strayed
}

// effect sends one effect and plans the next. Some effects are in flight for a while, and arrive
// whatever became of the run.
func (r *run) effect(epoch int64) {
	w := r.p.w
	if epoch != r.epoch || r.phase != live {
		return
	}
	r.schedule(w.between(w.t.HeartbeatInterval/2, 4*w.t.HeartbeatInterval), evEffect)
	switch {
	case r.busy || !w.reachable(r.p):
	case !r.read:
		r.readResource()
	case w.rng.Uint32()&7 == 0:
		r.busy, r.sentTo = true, w.server.failovers
		w.queue.push(event{at: w.now + w.upTo(2*w.t.HeartbeatInterval), kind: evEffectArrive, run: r, n: r.value + 1})
	default:
		r.sentTo = w.server.failovers
		w.effectArrives(r, r.value+1)
	}
}

// effectArrives handles an effect at the resource: the write of value under the run's fence.
func (w *world) effectArrives(r *run, value int64) {
	r.busy = false
	if w.server.down || r.p.host.onOld || r.strayed {
		r.read = false
		return
	}
	w.externalEffect(r)
	if err := w.server.store.Fence(r.fence); err != nil {
		w.stats.Refused++
		return
	}
	if !r.read || r.sentTo != w.server.failovers {
		return // its connection ended with the server it was made to
	}
	w.stats.Effects++
	w.check.accepted(w, r.u, r.fence.Generation, value)
	r.u.resource = resource{value: value, generation: r.fence.Generation}
	r.value = value
}

// externalEffect is an effect on a resource outside of the store. That resource survives every
// failover and refuses generations lower than it has seen. The node is informed of a refusal.
func (w *world) externalEffect(r *run) {
	if r.fence.Generation >= r.u.externalGeneration {
		r.u.externalGeneration = r.fence.Generation
		return
	}
	if r.p.state == running {
		r.p.later(time.Millisecond, member.FenceHeld{Generation: r.u.externalGeneration})
	}
}
