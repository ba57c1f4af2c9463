package sim

import (
	"slices"
	"time"

	"github.com/emitd/emitd/coordinator/member"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Processes of one machine can prove that another one there has ended. What the shell around a member
// does is done here: it knows its neighbours from member lists, looks at them now and then, and tells the
// member of those that have ended until a list shows that the store knows.

// lookEvery is how long a process may take to find that a neighbour has ended.
func (w *world) lookEvery() time.Duration { return min(250*time.Millisecond, w.t.HeartbeatInterval/4) }

// meet takes a member list.
func (p *process) meet(members []node.Member) {
	boot := p.host.advert.Traits.Host.BootID
	if boot == "" || members == nil {
		return
	}
	p.neighbours = p.neighbours[:0]
	for i := range members {
		m := &members[i]
		if q := p.w.byInc[m.Incarnation]; q != nil && q != p && m.Present() && !m.Witnessed && m.Host.BootID == boot {
			p.neighbours = append(p.neighbours, q)
		}
	}
	p.lookSoon()
}

// lookSoon lets the process look at its neighbours, if one of them has ended.
func (p *process) lookSoon() {
	if p.looking || !slices.ContainsFunc(p.neighbours, func(q *process) bool { return q.state == dead }) {
		return
	}
	p.looking = true
	p.w.after(p.w.upTo(p.w.lookEvery()), p.look)
}

// look tells the member of the neighbours that have ended.
func (p *process) look() {
	p.looking = false
	if p.state == running {
		var ended []node.Incarnation
		for _, q := range p.neighbours {
			if q.state == dead {
				ended = append(ended, q.who.Incarnation)
			}
		}
		if len(ended) > 0 {
			p.step(member.Witness{Ended: ended})
		}
	}
	if p.state != dead {
		p.lookSoon() // until a list shows that the store knows, also after a pause
	}
}

// noticedBy lets the neighbours of a process that has ended find out.
func (w *world) noticedBy(ended *process) {
	if ended.host.advert.Traits.Host.BootID == "" {
		return
	}
	for _, p := range w.procs {
		if p.state != dead && slices.Contains(p.neighbours, ended) {
			p.lookSoon()
		}
	}
}

// proven checks that only the end of a process that has ended is taken for proven.
func (c *checks) proven(w *world, e *daemon.Event) {
	if p := w.byInc[e.Incarnation]; p != nil && p.state != dead {
		w.violate("A8", "%s of p%02d for its proven end, which has not ended", e.Kind, p.index)
	}
}
