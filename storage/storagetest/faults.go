package storagetest

import (
	"context"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var faultStories = []story{
	{"a registration whose reply was lost", 0, losesRegistration},
	{"an election whose reply was lost", 0, losesElection},
	{"a take-over whose reply was lost", 0, losesTakeOver},
	{"a commit whose reply was lost", 0, losesCommit},
	{"a report whose reply was lost", 0, losesReport},
	{"a resumption whose reply was lost", 0, losesResume},
	{"a resignation whose reply was lost", 0, losesResignation},
	{"a deregistration whose reply was lost", 0, losesDeregistration},
	{"a command whose reply was lost", 0, losesCommand},
	{"a stamp whose reply was lost", 0, losesStamp},
	{"a lock whose reply was lost", Locks, losesLock},
	{"a store that became another one says so and since when", IdentityChange, isReplaced},
	{"what was decided from another store is refused", IdentityChange, refusesOtherStore},
	{"a call whose context has ended changes nothing", 0, respectsContext},
}

// lose makes a call whose reply is lost.
func (w *world) lose(call func() error) {
	w.Helper()
	if w.LoseReply == nil {
		w.ok(call())
		return
	}
	err := w.LoseReply(call)
	w.holds(err != nil, "the reply was not lost")
}

// loseBeat sends a heartbeat whose reply is lost.
func (p *peer) loseBeat(edits ...edit) {
	p.w.Helper()
	p.w.lose(func() error {
		_, err := p.try(edits...)
		return err
	})
}

func losesRegistration(w *world) {
	p := w.unregistered("node-a")
	p.loseBeat(advert(plain))
	w.unchanged(func() {
		_, err := p.try(advert(plain), seq(p.seq))
		w.refused(err, storage.ErrStaleSeq)
	})
	p.beat(advert(plain))
	w.equal("events", w.snapshot().Head, int64(1))
	w.equal("seq", w.row(p).Seq, p.seq)
}

func losesElection(w *world) {
	p := w.join("node-a")
	head := w.snapshot().Head
	p.loseBeat(campaign(long))
	won := w.snapshot().Term
	r := p.beat(campaign(long))
	w.equal("verdict", r.Verdict, storage.Renew)
	w.equal("term", r.Term, won)
	w.equal("events", len(w.history(head)), 1)
	(leader{peer: p, term: r.Term}).declare(unit0)
}

func losesTakeOver(w *world) {
	a, b := w.join("node-a"), w.join("node-b")
	old := a.beat(campaign(over)).Term
	b.loseBeat(campaign(long), seen(old.Number, 0))
	won := w.snapshot().Term
	w.equal("leader", won.Leader, b.id)
	w.equal("verdict of the old holder", a.beat(renew(old.Number, long)).Verdict, storage.Refuse)
	r := b.beat(campaign(long), seen(old.Number, 0))
	w.equal("verdict", r.Verdict, storage.Renew)
	w.equal("term", r.Term, won)
}

func losesCommit(w *world) {
	l, peers := w.cluster(1)
	moved := l.bring(unit0, peers[0], daemon.Active)
	l.declare(unit1)
	commit := storage.Commit{Term: l.term.Ref(), Changes: []storage.Change{
		on(moved, daemon.Revoke),
		{Unit: unit1, Step: daemon.Assign, State: daemon.Unassigned, To: peers[0].id},
		{Unit: unit2},
	}}
	w.lose(func() error {
		_, err := w.Store.Commit(w.ctx, commit)
		return err
	})
	after := w.snapshot().Units
	w.unchanged(func() {
		out, err := w.Store.Commit(w.ctx, commit)
		w.ok(err)
		for i, o := range out {
			w.equal("outcome of the repetition", o, storage.Outcome{Unit: commit.Changes[i].Unit, Record: after[i]})
		}
	})
	w.equal("state", after[0].State, daemon.Revoking)
	w.equal("state", after[1].State, daemon.Assigning)
}

func losesReport(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.assign(unit0, p)
	head := w.snapshot().Head
	report := storage.Report{Node: p.id, Seq: p.next(), Units: []storage.UnitReport{{Unit: unit0, Generation: r.Generation, Step: daemon.Acknowledge}}}
	w.lose(func() error {
		_, err := w.Store.Report(w.ctx, report)
		return err
	})
	w.unchanged(func() {
		_, err := w.Store.Report(w.ctx, report)
		w.refused(err, storage.ErrStaleSeq)
	})
	w.equal("applied", p.report(report.Units...)[0].Applied, true)
	w.equal("events", len(w.history(head)), 1)
	w.equal("units that the next heartbeat lists", p.beat().Units, []daemon.Record{w.unit(unit0)})
}

func losesResume(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.bring(unit0, p, daemon.Active)
	resume := storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Resume}
	w.lose(func() error {
		_, err := w.Store.Report(w.ctx, storage.Report{Node: p.id, Seq: p.next(), Units: []storage.UnitReport{resume}})
		return err
	})
	now := w.unit(unit0)
	w.equal("generation", now.Generation, r.Generation+1)
	w.equal("outcome of the repetition", p.report(resume)[0], storage.Outcome{Unit: unit0, Record: now})
	w.equal("units that the next heartbeat lists", p.beat().Units, []daemon.Record{now})
}

func losesResignation(w *world) {
	l, peers := w.cluster(1)
	l.bring(unit0, l.peer, daemon.Active)
	leave := storage.Leave{Resign: l.term.Number, Drain: true, DrainTimeout: time.Second, Reason: node.Shutdown}
	w.lose(func() error { return l.tryLeave(leave) })
	next := peers[0].lead()
	head, row := w.snapshot().Head, w.unit(unit0)
	l.leave(leave)
	w.equal("term", w.snapshot().Term, next)
	w.equal("head", w.snapshot().Head, head)
	w.equal("unit", w.unit(unit0), row)
}

func losesDeregistration(w *world) {
	p := w.join("node-a")
	leave := storage.Leave{Deregister: true, Reason: node.Shutdown}
	w.lose(func() error { return p.tryLeave(leave) })
	again := leave
	again.Seq = p.seq
	w.unchanged(func() { w.refused(p.tryLeave(again), storage.ErrStaleSeq) })
	head := w.snapshot().Head
	p.leave(leave)
	w.equal("head", w.snapshot().Head, head)
}

func losesCommand(w *world) {
	w.join("node-a")
	c := storage.Command{ID: uuid(4, 1), Kind: daemon.CommandResign, Actor: "alice"}
	w.lose(func() error {
		_, err := w.Store.Submit(w.ctx, c)
		return err
	})
	w.unchanged(func() {
		got, err := w.Store.Submit(w.ctx, c)
		w.ok(err)
		w.equal("actor", got.Actor, "alice")
	})
}

func losesStamp(w *world) {
	w.lose(func() error { return w.Store.StampFence(w.ctx, fence(5)) })
	w.ok(w.Store.StampFence(w.ctx, fence(5)))
	w.stale(w.Store.StampFence(w.ctx, fence(4)), fence(4), 5)
}

func losesLock(w *world) {
	w.lose(func() error {
		_, err := w.locker().Acquire(w.ctx, "lock", owner(1), long, storage.Lock{})
		return err
	})
	held, err := w.locker().Acquire(w.ctx, "lock", owner(2), long, storage.Lock{})
	w.refused(err, storage.ErrLocked)
	again, err := w.locker().Acquire(w.ctx, "lock", owner(1), long, storage.Lock{})
	w.ok(err)
	w.equal("number", again.Number, held.Number)
	w.lose(func() error { return w.locker().Release(w.ctx, again) })
	w.refused(w.locker().Release(w.ctx, again), storage.ErrLockLost)
}

func isReplaced(w *world) {
	l, peers := w.cluster(1)
	r := l.bring(unit0, peers[0], daemon.Active)
	before := peers[0].beat()
	w.equal("another store since", before.StoreSince.IsZero(), true)
	w.ChangeIdentity(w)
	replaced := w.snapshot()
	w.holds(replaced.StoreID != before.StoreID, "the store is still called %q", replaced.StoreID)
	first := peers[0].beat()
	w.equal("store id", first.StoreID, replaced.StoreID)
	w.within("another store since", first.StoreSince, replaced.Now, first.Now)
	// The rows are unchanged, and the time stays that of the first heartbeat.
	w.equal("units", first.Units, []daemon.Record{r})
	w.equal("term", first.Term, l.term)
	if w.Advance != nil {
		w.Advance(time.Minute)
	}
	for _, p := range []*peer{peers[0], l.peer} {
		w.holds(p.beat().StoreSince.Equal(first.StoreSince), "the time of the change moved")
	}
	w.ChangeIdentity(w)
	second := l.beat()
	w.holds(second.StoreID != first.StoreID, "the store is still called %q", second.StoreID)
	w.holds(!second.StoreSince.Before(first.StoreSince), "since %v, before that since %v", second.StoreSince, first.StoreSince)
}

// refusesOtherStore sends reports and commits that would be accepted if they named the right store:
// directly after the change, before a heartbeat has found it, and later.
func refusesOtherStore(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.assign(unit0, p)
	report := storage.Report{Node: p.id, Units: []storage.UnitReport{{Unit: unit0, Generation: r.Generation, Step: daemon.Acknowledge}}}
	commit := storage.Commit{
		Term: l.term.Ref(), Changes: []storage.Change{on(r, daemon.Revoke), {Unit: unit1}},
		Nodes: []storage.NodeChange{{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation}, State: node.Late, Reason: "silent"}},
	}
	send := func(store string) ([]storage.Outcome, error) {
		report.Seq, report.StoreID = p.next(), store
		return p.via.Report(w.ctx, report)
	}
	change := func(store string) ([]storage.Outcome, error) {
		commit.StoreID = store
		return l.via.Commit(w.ctx, commit)
	}
	read := p.beat().StoreID
	w.ChangeIdentity(w)
	for _, found := range []bool{false, true} {
		if found {
			w.holds(p.beat().StoreID != read, "the store is still called %q", read)
		}
		w.unchanged(func() {
			_, err := send(read)
			w.refused(err, storage.ErrStoreChanged)
			_, err = change(read)
			w.refused(err, storage.ErrStoreChanged)
		})
	}
	present := l.beat().StoreID
	out, err := send(present)
	w.ok(err)
	w.equal("applied", out[0].Applied, true)
	out, err = change(present)
	w.ok(err)
	w.equal("applied", out[1].Applied, true)
}

func respectsContext(w *world) {
	l, peers := w.cluster(1)
	r := l.assign(unit0, peers[0])
	ended, cancel := context.WithCancel(w.ctx)
	cancel()
	p := peers[0]
	w.unchanged(func() {
		for name, call := range map[string]func() error{
			"heartbeat": func() error {
				_, err := w.Store.Heartbeat(ended, storage.Heartbeat{Node: p.id, Seq: 1000})
				return err
			},
			"report": func() error {
				_, err := w.Store.Report(ended, storage.Report{Node: p.id, Seq: 1000, Units: []storage.UnitReport{{Unit: unit0, Generation: r.Generation, Step: daemon.Acknowledge}}})
				return err
			},
			"leave": func() error {
				return w.Store.Leave(ended, storage.Leave{Node: l.id, Seq: 1000, Resign: l.term.Number, Deregister: true})
			},
			"commit": func() error {
				_, err := w.Store.Commit(ended, storage.Commit{Term: l.term.Ref(), Changes: []storage.Change{on(r, daemon.Expire)}})
				return err
			},
			"snapshot": func() error { _, err := w.Store.Snapshot(ended); return err },
			"events":   func() error { _, err := w.Store.Events(ended, 0, 10); return err },
			"stamp":    func() error { return w.Store.StampFence(ended, r.Fence()) },
			"submit":   func() error { _, err := w.Store.Submit(ended, storage.Command{ID: uuid(4, 1)}); return err },
		} {
			w.holds(call() != nil, "%s with an ended context returned no error", name)
		}
	})
	lower := r.Fence()
	lower.Generation--
	w.ok(w.Store.StampFence(w.ctx, lower)) // the stamp above did not happen
}
