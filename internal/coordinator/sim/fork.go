package sim

import (
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// fork is a former primary that lives on after a standby was promoted. It accepts the writes of the machines that
// use it until it is fenced. Until then there are two clusters. Each keeps its promises among its own processes;
// between the two nothing is promised. Once the former primary is fenced, its processes use the new one. The new
// primary accepts nothing that was decided from the former, and gives out no number below those that they have
// seen.
type fork struct {
	store  *memory.Store
	id     string
	model  model
	terms  terms
	issued []int64
}

// primaries promotes a standby while the former primary lives on, and fences that after a while.
func (d *director) primaries() {
	w := d.w
	busy := w.server.fork != nil || w.server.image != nil || w.cfg.Store.NoClock ||
		slices.ContainsFunc(w.procs, func(p *process) bool { return p.state != dead && (p.host.standing || p.watch.unaware) })
	if busy {
		d.end(0, func() {})
		return
	}
	w.saveImage()
	gap := w.upTo(time.Second)
	if w.chance(0.5) {
		gap = w.upTo(w.t.NodeRegistrationTTL)
	}
	w.after(gap, w.split)
	d.end(gap+d.lasting(), w.fence)
}

// split makes the saved image the new primary. Some machines still use the former one.
func (w *world) split() {
	s := &w.server
	if s.image == nil || s.fork != nil {
		return // another failover has used the image
	}
	f := &fork{id: storeID(s.failovers), model: w.check.model.clone(), issued: slices.Clone(w.check.issued)}
	f.terms.highest = f.model.term
	ahead := time.Duration(0)
	if w.chance(0.5) {
		ahead = w.upTo(time.Hour) // of the new primary's clock
	}
	f.store = memory.Open(memory.Config{
		StoreID: f.id, KeepEvents: 1000,
		Now:     func() time.Time { return s.clock.now(w.now).Add(ahead) },
		OnEvent: func(e daemon.Event) { f.event(w, &e) },
		OnWake:  func(wakeUp storage.WakeUp) { w.wakeSide(wakeUp, true) },
	})
	f.store.Restore(s.store.Clone())
	s.fork = f
	w.stats.Forks++
	old := 0
	for _, h := range w.hosts {
		if h.onOld = w.chance(0.5); h.onOld {
			old++
		}
	}
	if old == 0 {
		w.hosts[w.rng.IntN(len(w.hosts))].onOld = true
	}
	w.failover()
	// The new primary may give out generations again that only the former one knows. A resource outside of the
	// stores that has seen such a generation refuses the new primary's runs until they are above it. Nothing
	// promises when that is.
	c := &w.check
	for i := range c.model.units {
		known := c.model.units[i].generation
		c.issued[i] = min(c.issued[i], known)
		if c.owners[i].generation > known {
			c.owners[i] = owner{process: -1}
		}
		w.units[i].externalGeneration = min(w.units[i].externalGeneration, known)
	}
}

// fence ends the former primary: its processes use the new one from now on.
func (w *world) fence() {
	if w.server.fork == nil {
		return
	}
	w.server.fork = nil
	w.note(line{what: "fenced", proc: -1, unit: -1})
	for _, p := range w.procs {
		if !p.host.onOld || p.state == dead {
			continue
		}
		p.watch.strayed, p.watch.paused = true, true
		w.check.unaware(w, p)
		for _, r := range p.runs {
			r.read, r.strayed = false, true
		}
	}
	for _, h := range w.hosts {
		h.onOld = false
	}
}

// storeOf returns the store that the process uses.
func (w *world) storeOf(p *process) *memory.Store {
	if p.host.onOld {
		return w.server.fork.store
	}
	return w.server.store
}

// apart reports whether the two processes currently belong to different clusters.
func apart(a, b *process) bool { return a.host.onOld != b.host.onOld }

// event handles an event of the former primary.
func (f *fork) event(w *world, e *daemon.Event) {
	u := -1
	if !e.Unit.IsZero() {
		u = w.unitAt[e.Unit]
	}
	w.note(line{what: "former: " + string(e.Kind), more: e.Reason, proc: -1, unit: int32(u), a: e.Generation, b: e.Term})
	err := f.model.event(e, u)
	switch e.Kind {
	case daemon.LeaderElected:
		w.stats.Split++
		if err == nil {
			err = f.terms.elected(e.Term)
		}
	case daemon.AssignmentAssigned, daemon.AssignmentResumed, daemon.AssignmentPostponed:
		w.stats.Split++
		if err == nil {
			err = checkIssued(&f.issued[u], e)
		}
	}
	if err != nil {
		w.violate(err.rule, "of the former primary: %s", err.what)
	}
}

// after checks a call that the former primary has applied.
func (f *fork) after(w *world, cl *call) {
	res := &cl.result
	if res.Err != nil {
		return
	}
	err := decided(cl, f.id)
	if res.Reply != nil && err == nil {
		err = f.model.checkUnits(res.Reply.Units, cl.p.who.Incarnation, w.unitAt)
	}
	if err != nil {
		w.violate(err.rule, "of the former primary: %s", err.what)
	}
}

// highestSeen are the highest numbers seen anywhere that a process has reported in its row.
type highestSeen struct{ term, generation int64 }

// above checks that a number which the store gives out is above all numbers that live processes have reported to
// it.
func (c *checks) above(w *world, e *daemon.Event) {
	for _, h := range w.hosts {
		for _, p := range [...]*process{h.proc, h.twin} {
			switch {
			case p == nil || p.state == dead:
			case e.Kind == daemon.LeaderElected && e.Term <= p.watch.reported.term:
				w.violate("I1", "term %d was elected although p%02d had told of %d", e.Term, p.index, p.watch.reported.term)
			case e.Kind != daemon.LeaderElected && e.Generation <= p.watch.reported.generation:
				w.violate("I3", "%s was given generation %d although p%02d had told of %d", e.Unit, e.Generation, p.index, p.watch.reported.generation)
			}
		}
	}
}
