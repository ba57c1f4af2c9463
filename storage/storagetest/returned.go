package storagetest

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// returned reports that abandoned runs have returned.
func returned(runs ...daemon.Fence) edit {
	return func(b *storage.Heartbeat) { b.ReturnedRuns = append(b.ReturnedRuns, runs...) }
}

// abandon makes a process abandon a unit for a minute, after it was assigned, and returns the row.
func (l leader) abandon(u daemon.Unit, p *peer) daemon.Record {
	l.w.Helper()
	r := l.assign(u, p)
	return p.report(storage.UnitReport{Unit: u, Generation: r.Generation, Step: daemon.Abandon, Reason: "ignored its context", Embargo: time.Minute})[0].Record
}

// fail makes a process release a unit with an embargo, after it was assigned, and returns the row.
func (l leader) fail(u daemon.Unit, p *peer, d time.Duration) daemon.Record {
	l.w.Helper()
	r := l.assign(u, p)
	return p.report(storage.UnitReport{Unit: u, Generation: r.Generation, Step: daemon.Release, Reason: "failed", Error: "boom", Embargo: d})[0].Record
}

func liftsReturned(w *world) {
	l, peers := w.cluster(2)
	p, other := peers[0], peers[1]
	row := l.abandon(unit0, p)
	w.equal("embargoes", len(row.Embargoes), 1)
	w.equal("the run it is of", row.Embargoes[0].AbandonedGeneration, row.Generation)

	head := w.snapshot().Head
	p.beat(returned(daemon.Fence{Unit: unit0, Generation: row.Generation}))
	row.Embargoes = nil
	w.equal("the row after the return", w.unit(unit0), row)
	w.equal("head", w.snapshot().Head, head)
	// Reported again, it changes nothing.
	p.beat(returned(daemon.Fence{Unit: unit0, Generation: row.Generation}))
	w.equal("the row after the second telling", w.unit(unit0), row)

	// The embargo ends although another process holds the unit by now. The report works together
	// with everything else that a heartbeat contains: here an election, exit evidence and an
	// advert.
	row = l.abandon(unit0, p)
	held := l.assign(unit0, other)
	w.equal("the embargo stays with the unit", len(held.Embargoes), 1)
	reply := p.beat(advert(plain), campaign(long), ended(l.peer), members, after(0), returned(daemon.Fence{Unit: unit0, Generation: row.Generation}))
	w.equal("verdict", reply.Verdict, storage.Elect)
	held.Embargoes = nil
	w.equal("the row that another holds", w.unit(unit0), held)

	// A process that never registered before may also report, and several runs fit into one
	// heartbeat.
	other.beat(returned(daemon.Fence{Unit: unit0, Generation: 1}, daemon.Fence{Unit: unit1, Generation: 1}, daemon.Fence{Unit: unit0, Generation: 2}))
	w.equal("the row after the word about nothing", w.unit(unit0), held)
}

func liftsReturnedAlone(w *world) {
	l, peers := w.cluster(2)
	p, other := peers[0], peers[1]
	failed := l.fail(unit0, p, time.Hour).Embargoes[0]
	first := l.abandon(unit0, p)
	l.abandon(unit1, p)
	l.abandon(unit0, other)
	second := l.abandon(unit0, p)
	w.equal("embargoes", len(second.Embargoes), 3)
	of := func(u daemon.Unit, q *peer) (out []daemon.Embargo) {
		for _, e := range w.unit(u).Embargoes {
			if e.Incarnation == q.id.Incarnation {
				out = append(out, e)
			}
		}
		return out
	}
	mine := of(unit0, p)
	w.equal("that of the failure", mine[0], failed)
	w.equal("strikes of the abandonments", mine[1].Strikes, 2)
	w.equal("the newest run", mine[1].AbandonedGeneration, second.Generation)

	w.equal("generations grow", second.Generation > first.Generation, true)
	p.beat(returned(daemon.Fence{Unit: unit0, Generation: first.Generation}))
	w.equal("the return of an earlier run", of(unit0, p), mine)
	w.unregistered("x").beat(advert(plain), returned(daemon.Fence{Unit: unit0, Generation: second.Generation}))
	w.equal("the word of another process", of(unit0, p), mine)
	p.beat(returned(daemon.Fence{Unit: unit0, Generation: second.Generation}))
	w.equal("what is left", of(unit0, p), []daemon.Embargo{failed})
	w.equal("that of another process", len(of(unit0, other)), 1)
	w.equal("that of another unit", len(of(unit1, p)), 1)
	// The next embargo starts anew.
	w.equal("strikes", l.abandon(unit0, p).Embargoes[1].Strikes, 1)
}

func refusesReturn(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	row := l.abandon(unit0, p)
	back := returned(daemon.Fence{Unit: unit0, Generation: row.Generation})
	w.unchanged(func() {
		_, err := p.try(seq(p.seq), back)
		w.refused(err, storage.ErrStaleSeq)
		_, err = w.unregistered("x").try(back)
		w.refused(err, storage.ErrNotRegistered)
	})
	p.leave(storage.Leave{Deregister: true})
	_, err := p.try(back)
	w.refused(err, storage.ErrNotRegistered)
	w.equal("the row", w.unit(unit0).Embargoes, row.Embargoes)
}
