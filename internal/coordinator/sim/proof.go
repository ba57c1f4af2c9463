package sim

import (
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
)

// Processes on one machine can have exit evidence of each other. This file replaces what the shell around a
// member does. A process knows its neighbours from member lists and checks them now and then. It reports those
// that have ended to the member until a list shows that the store knows.

// exitCheckEvery returns how long a process may take to find that a neighbour has ended.
func (w *world) exitCheckEvery() time.Duration {
	return min(250*time.Millisecond, w.t.HeartbeatInterval/4)
}

// setNeighbours handles a member list.
func (p *process) setNeighbours(members []node.Member) {
	boot := p.host.advert.Traits.Host.BootID
	if boot == "" || members == nil {
		return
	}
	p.neighbours = p.neighbours[:0]
	for i := range members {
		m := &members[i]
		if q := p.w.byInc[m.Incarnation]; q != nil && q != p && m.Present() && !m.ExitProven && m.Host.BootID == boot {
			p.neighbours = append(p.neighbours, q)
		}
	}
	p.checkNeighboursSoon()
}

// checkNeighboursSoon makes the process check its neighbours, if one of them has ended.
func (p *process) checkNeighboursSoon() {
	if p.checkDue || !slices.ContainsFunc(p.neighbours, func(q *process) bool { return q.state == dead }) {
		return
	}
	p.checkDue = true
	p.w.after(p.w.upTo(p.w.exitCheckEvery()), p.checkNeighbours)
}

// checkNeighbours reports the neighbours that have ended to the member.
func (p *process) checkNeighbours() {
	p.checkDue = false
	if p.state == running {
		var ended []node.Incarnation
		for _, q := range p.neighbours {
			if q.state == dead {
				ended = append(ended, q.who.Incarnation)
			}
		}
		if len(ended) > 0 {
			p.step(member.ExitEvidence{Ended: ended})
		}
	}
	if p.state != dead {
		p.checkNeighboursSoon() // until a list shows that the store knows, also after a pause
	}
}

// noticedBy makes the neighbours of a process that has ended check it.
func (w *world) noticedBy(ended *process) {
	if ended.host.advert.Traits.Host.BootID == "" {
		return
	}
	for _, p := range w.procs {
		if p.state != dead && slices.Contains(p.neighbours, ended) {
			p.checkNeighboursSoon()
		}
	}
}

// proven checks that exit evidence is accepted only for processes that have ended.
func (c *checks) proven(w *world, e *daemon.Event) {
	if p := w.byInc[e.Incarnation]; p != nil && p.state != dead {
		w.violate("A8", "%s of p%02d for its proven end, which has not ended", e.Kind, p.index)
	}
}
