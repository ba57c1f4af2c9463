package storagetest

import (
	"encoding/json"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var assignStories = []story{
	{"a declared unit is unassigned", 0, declares},
	{"a declaration does not touch what is there", 0, declaresOnce},
	{"a unit is retired and declared again, with its generation", 0, retires},
	{"an assignment sets all fields of the row", 0, assignsAllFields},
	{"an assignment keeps the unit's failures and embargoes", 0, assignKeepsFailures},
	{"only a live member gets a unit", 0, assignsToLive},
	{"generations grow past the highest that any node has seen", 0, generationsPastSeen},
	{"generations grow over every end of an assignment", 0, generationsGrow},
	{"a unit is revoked from assigning and active, once", 0, revokesOnce},
	{"a unit is freed by its leader", 0, expires},
	{"an expiry may embargo the holder and retire the unit", 0, expiresWith},
	{"holders see only what they hold, all of it, sorted", 0, listsHoldings},
	{"what was taken away is not reported as held", 0, readsAfterWrite},
	{"changes of one unit in one commit are made in order", 0, changesInOrder},
	{"one commit takes 500 changes and not one more", 0, boundsCommits},
	{"an unknown state is kept, reported and left alone", StateWrites, keepsUnknownState},
}

func declares(w *world) {
	l, _ := w.cluster(0)
	before := w.snapshot()
	r := l.change(storage.Change{Unit: unit1, Reason: "declared"})
	w.within("since", r.Since, before.Now, w.snapshot().Now)
	w.equal("row", r, daemon.Record{Unit: unit1, State: daemon.Unassigned, Since: r.Since, Reason: "declared"})
	w.equal("row as read", w.unit(unit1), r)
	w.equal("head", w.snapshot().Head, before.Head) // a declaration is no event

	out := l.commit(storage.Change{Unit: unit2, Step: daemon.Assign, State: daemon.Unassigned, To: l.id})
	w.equal("outcome for a unit that is not declared", out[0], storage.Outcome{Unit: unit2})
	l.declare(unit0)
	units := w.snapshot().Units
	w.equal("units", len(units), 2)
	w.equal("order of units", units[0].Unit, unit0)
}

func declaresOnce(w *world) {
	l, peers := w.cluster(1)
	l.declare(unit1)
	r := l.bring(unit0, peers[0], daemon.Active)
	w.unchanged(func() {
		out := l.commit(storage.Change{Unit: unit0}, storage.Change{Unit: unit1})
		w.equal("outcome", out[0], storage.Outcome{Unit: unit0, Record: r})
		w.equal("applied", out[1].Applied, false)
	})
}

func retires(w *world) {
	l, peers := w.cluster(1)
	r := l.bring(unit0, peers[0], daemon.Deleted)
	head := w.snapshot().Head
	w.unchanged(func() {
		w.equal("applied with another generation", l.commit(storage.Change{Unit: unit0, State: r.State, Generation: r.Generation + 1, Retired: true})[0].Applied, false)
		w.equal("applied with another state", l.commit(storage.Change{Unit: unit0, State: daemon.Active, Generation: r.Generation, Retired: true})[0].Applied, false)
		w.equal("applied to a row that is not there", l.commit(storage.Change{Unit: unit1, State: r.State, Generation: 1, Retired: true})[0], storage.Outcome{Unit: unit1})
	})
	retired := l.change(storage.Change{Unit: unit0, State: r.State, Generation: r.Generation, Retired: true})
	w.equal("retired", retired.Retired, true)
	w.equal("generation", retired.Generation, r.Generation)
	w.equal("state", retired.State, r.State)
	w.holds(retired.Since.Equal(r.Since), "since moved without a change of state")

	w.equal("retired after a new declaration", l.change(storage.Change{Unit: unit0}).Retired, false)
	l.change(storage.Change{Unit: unit0, State: r.State, Generation: r.Generation, Retired: true})
	w.equal("retired after taking it back", l.change(storage.Change{Unit: unit0, State: r.State, Generation: r.Generation}).Retired, false)
	w.equal("head", w.snapshot().Head, head)
	next := l.assign(unit0, peers[0])
	w.holds(next.Generation > r.Generation, "generation %d after %d", next.Generation, r.Generation)
}

func assignsAllFields(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	l.declare(unit0)
	before := w.snapshot()
	r := l.change(storage.Change{
		Unit: unit0, Step: daemon.Assign, State: daemon.Unassigned, To: p.id,
		AcknowledgeTimeout: 31 * time.Second, DrainTimeout: 1500 * time.Millisecond,
		Reason: "least loaded", Detail: json.RawMessage(`{"runner_up":"node-1"}`),
	})
	w.within("assigned_at", r.AssignedAt, before.Now, w.snapshot().Now)
	w.equal("row", r, daemon.Record{
		Unit: unit0, State: daemon.Assigning, Holder: p.id, Generation: r.Generation, Term: l.term.Number,
		Since: r.AssignedAt, AssignedAt: r.AssignedAt, Reason: "least loaded",
		AcknowledgeTimeout: 31 * time.Second, DrainTimeout: 1500 * time.Millisecond,
	})
	w.holds(r.Generation >= l.term.Number, "generation %d is below the term %d", r.Generation, l.term.Number)
	w.equal("row as read", w.unit(unit0), r)
	e := w.history(before.Head)
	w.equal("events", len(e), 1)
	w.equal("event", e[0], daemon.Event{
		Seq: before.Head + 1, At: e[0].At, Kind: daemon.AssignmentAssigned,
		Node: p.id.Name, NodeID: p.id.ID, Incarnation: p.id.Incarnation,
		Daemon: unit0.Daemon, Unit: unit0, Term: l.term.Number, Generation: r.Generation,
		Reason: "least loaded", Detail: json.RawMessage(`{"runner_up":"node-1"}`),
	})
}

func assignKeepsFailures(w *world) {
	l, peers := w.cluster(2)
	r := l.bring(unit0, peers[0], daemon.Active)
	out := peers[0].report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Release, Error: "disk full", Failures: 5, Embargo: time.Minute})
	w.equal("failures", out[0].Record.Failures, 5)
	r = l.assign(unit0, peers[1])
	w.equal("failures after an assignment", r.Failures, 5)
	w.equal("error after an assignment", r.Error, "disk full")
	w.equal("embargoes after an assignment", r.Embargoes, out[0].Record.Embargoes)
	r = l.change(on(r, daemon.Revoke))
	w.equal("revoked_at", r.RevokedAt.IsZero(), false)
	r = l.change(on(r, daemon.Expire, func(c *storage.Change) { c.Forced = true }))
	w.equal("forced", r.Forced, true)
	r = l.assign(unit0, peers[1])
	w.equal("forced after an assignment", r.Forced, false)
	w.equal("revoked_at after an assignment", r.RevokedAt.IsZero(), true)
}

func assignsToLive(w *world) {
	l, peers := w.cluster(3)
	draining, left, dead := peers[0], peers[1], peers[2]
	draining.leave(storage.Leave{Drain: true})
	left.leave(storage.Leave{Deregister: true})
	l.declareDead(dead)
	late := w.join("late")
	l.changeNode(storage.NodeChange{Guard: storage.NodeVersion{Incarnation: late.id.Incarnation}, State: node.Late})
	l.declare(unit0, unit1)
	for _, p := range []*peer{draining, left, dead, w.unregistered("nobody")} {
		w.unchanged(func() {
			out := l.commit(storage.Change{Unit: unit0, Step: daemon.Assign, State: daemon.Unassigned, To: p.id})
			w.equal("applied", out[0].Applied, false)
			w.equal("record", out[0].Record, w.unit(unit0))
		})
	}
	// Late and deaf concern the plan, not the store: the store still assigns.
	w.equal("holder", l.assign(unit1, late).Holder, late.id)
}

func generationsPastSeen(w *world) {
	l, peers := w.cluster(2)
	p := peers[0]
	take := func(highest int64) daemon.Record {
		w.Helper()
		r := w.unit(unit0)
		if r.Unit.IsZero() {
			l.declare(unit0)
			r = w.unit(unit0)
		}
		out, err := l.via.Commit(w.ctx, storage.Commit{
			Term: l.term.Ref(), HighestGeneration: highest,
			Changes: []storage.Change{on(r, daemon.Assign, func(c *storage.Change) { c.To = p.id })},
		})
		w.ok(err)
		w.equal("applied", out[0].Applied, true)
		return out[0].Record
	}
	free := func() { l.change(on(w.unit(unit0), daemon.Expire)) }

	n := l.term.Number
	w.equal("first generation", take(0).Generation, n)
	free()
	w.equal("generation after the previous", take(0).Generation, n+1)
	free()
	w.equal("generation after the leader's highest", take(n+100).Generation, n+101)
	free()
	peers[1].beat(highest(0, n+200))
	w.equal("generation after a node's highest", take(0).Generation, n+201)
	free()
	peers[1].leave(storage.Leave{Deregister: true})
	_, err := p.via.Report(w.ctx, storage.Report{Node: p.id, Seq: p.next(), HighestGeneration: n + 300})
	w.ok(err)
	w.equal("generation after a report's highest", take(0).Generation, n+301)
	free()
	w.ok(w.Store.StampFence(w.ctx, daemon.Fence{Unit: unit0, Generation: n + 400}))
	w.ok(w.Store.StampFence(w.ctx, daemon.Fence{Unit: unit1, Generation: n + 999}))
	w.equal("generation after the fence of this unit", take(0).Generation, n+401)
}

func generationsGrow(w *world) {
	l, peers := w.cluster(2)
	var last int64
	check := func(r daemon.Record) daemon.Record {
		w.Helper()
		w.holds(r.Generation > last, "generation %d after %d", r.Generation, last)
		last = r.Generation
		return r
	}
	p := peers[0]
	check(l.bring(unit0, p, daemon.Deleted))
	check(p.step(l.assign(unit0, p), daemon.Release))
	check(l.change(on(l.assign(unit0, p), daemon.Expire)))
	check(p.step(p.step(l.assign(unit0, p), daemon.Acknowledge), daemon.Resume))
	r := check(p.step(w.unit(unit0), daemon.Resume))
	check(l.change(on(p.step(l.change(on(r, daemon.Revoke)), daemon.Confirm), daemon.Assign, func(c *storage.Change) { c.To = p.id })))
	p.leave(storage.Leave{Deregister: true})
	retired := w.unit(unit0)
	l.change(storage.Change{Unit: unit0, State: retired.State, Generation: retired.Generation, Retired: true})
	l.declare(unit0)
	check(l.assign(unit0, peers[1]))
	l.leave(storage.Leave{Resign: l.term.Number})
	l.term = l.lead()
	l.change(on(w.unit(unit0), daemon.Expire))
	r = check(l.assign(unit0, peers[1]))
	w.holds(r.Generation >= l.term.Number, "generation %d in term %d", r.Generation, l.term.Number)
}

func revokesOnce(w *world) {
	l, peers := w.cluster(1)
	for i, from := range []daemon.State{daemon.Assigning, daemon.Active} {
		u := daemon.Unit{Daemon: "acme:revoke", Index: i}
		r := l.bring(u, peers[0], from)
		before := w.snapshot()
		got := l.change(on(r, daemon.Revoke, func(c *storage.Change) { c.DrainTimeout = time.Hour }))
		w.within("revoked_at", got.RevokedAt, before.Now, w.snapshot().Now)
		want := r
		want.State, want.Since, want.RevokedAt, want.Reason = daemon.Revoking, got.RevokedAt, got.RevokedAt, "test"
		w.equal("row", got, want)
		e := w.history(before.Head)
		w.equal("events", len(e), 1)
		w.equal("kind", e[0].Kind, daemon.AssignmentRevoking)
		w.unchanged(func() {
			w.equal("a second revoke", l.commit(on(got, daemon.Revoke))[0], storage.Outcome{Unit: u, Record: got})
			w.equal("a revoke from the former state", l.commit(on(r, daemon.Revoke))[0], storage.Outcome{Unit: u, Record: got})
		})
	}
	for i, from := range []daemon.State{daemon.Unassigned, daemon.Deleted} {
		r := l.bring(daemon.Unit{Daemon: "acme:free", Index: i}, peers[0], from)
		w.unchanged(func() { w.equal("applied", l.commit(on(r, daemon.Revoke))[0].Applied, false) })
	}
}

func expires(w *world) {
	l, peers := w.cluster(1)
	for i, from := range []daemon.State{daemon.Assigning, daemon.Active, daemon.Revoking} {
		for j, forced := range []bool{false, true} {
			u := daemon.Unit{Daemon: "acme:expire", Index: 2*i + j}
			r := l.bring(u, peers[0], from)
			head := w.snapshot().Head
			got := l.change(on(r, daemon.Expire, func(c *storage.Change) { c.Forced = forced }))
			want := r
			want.State, want.Since, want.Reason, want.Forced = daemon.Deleted, got.Since, "test", forced
			w.equal("row", got, want)
			e := w.history(head)
			w.equal("events", len(e), 1)
			kind := daemon.AssignmentDeleted
			if forced {
				kind = daemon.AssignmentForced
			}
			w.equal("kind", e[0].Kind, kind)
			w.equal("term of the event", e[0].Term, l.term.Number)
			w.unchanged(func() { w.equal("applied again", l.commit(on(got, daemon.Expire))[0].Applied, false) })
		}
	}
}

func expiresWith(w *world) {
	l, peers := w.cluster(1)
	r := l.bring(unit0, peers[0], daemon.Assigning)
	before := w.snapshot().Now
	r = l.change(on(r, daemon.Expire, func(c *storage.Change) { c.Embargo, c.Retired = time.Minute, true }))
	w.equal("retired", r.Retired, true)
	w.equal("embargoes", len(r.Embargoes), 1)
	e := r.Embargoes[0]
	w.within("end of the embargo", e.Until, before.Add(time.Minute), w.snapshot().Now.Add(time.Minute))
	w.equal("embargo", e, daemon.Embargo{Incarnation: peers[0].id.Incarnation, Node: peers[0].id.Name, Until: e.Until, Length: time.Minute, Strikes: 1, Reason: "test"})
	r = l.assign(unit0, peers[0])
	r = l.change(on(r, daemon.Expire))
	w.equal("retired after an expiry that does not say so", r.Retired, true)
	w.equal("embargoes after an expiry without one", len(r.Embargoes), 1)
}

func listsHoldings(w *world) {
	l, peers := w.cluster(2)
	a, b := peers[0], peers[1]
	states := []daemon.State{daemon.Revoking, daemon.Assigning, daemon.Deleted, daemon.Active}
	for i := range 12 {
		l.bring(daemon.Unit{Daemon: "acme:hold", Index: 11 - i}, peers[i%2], states[(i/2)%4])
	}
	l.declare(unit0)
	var wantA, wantB []daemon.Record
	for _, r := range w.snapshot().Units {
		switch {
		case r.HeldBy(a.id.Incarnation):
			wantA = append(wantA, r)
		case r.HeldBy(b.id.Incarnation):
			wantB = append(wantB, r)
		}
	}
	w.equal("number held", len(wantA), 5)
	w.equal("units of one", a.beat().Units, wantA)
	w.equal("units of the other", b.beat().Units, wantB)
	w.equal("units of another process with that ID", len(func() *storage.Reply {
		twin := a.again()
		return twin.beat(advert(plain), ttl(0))
	}().Units), 0)
}

func readsAfterWrite(w *world) {
	l, peers := w.cluster(2)
	r := l.assign(unit0, peers[0])
	w.equal("units", len(peers[0].beat().Units), 1)
	l.change(on(r, daemon.Expire))
	w.equal("units after they were taken away", len(peers[0].beat().Units), 0)
	r = l.assign(unit0, peers[1])
	w.equal("units of the former holder", len(peers[0].beat().Units), 0)
	w.equal("units of the new holder", peers[1].beat().Units, []daemon.Record{r})
}

func changesInOrder(w *world) {
	l, peers := w.cluster(2)
	to := func(p *peer) func(*storage.Change) { return func(c *storage.Change) { c.To = p.id } }
	out := l.commit(storage.Change{Unit: unit0}, storage.Change{Unit: unit0, Step: daemon.Assign, State: daemon.Unassigned, To: peers[0].id})
	w.equal("applied", out[1].Applied, true)
	r := out[1].Record
	gone := r
	gone.State = daemon.Deleted
	out = l.commit(on(r, daemon.Expire), on(r, daemon.Revoke), on(gone, daemon.Assign, to(peers[1])))
	w.equal("expired", out[0].Applied, true)
	w.equal("revoked as it was before", out[1], storage.Outcome{Unit: unit0, Record: out[0].Record})
	w.equal("assigned again", out[2].Applied, true)
	w.equal("row", w.unit(unit0), out[2].Record)
	w.equal("holder", out[2].Record.Holder, peers[1].id)
}

func boundsCommits(w *world) {
	l, peers := w.cluster(1)
	var declare, assign []storage.Change
	for i := range storage.MaxChanges {
		u := daemon.Unit{Daemon: "acme:many", Index: i}
		declare = append(declare, storage.Change{Unit: u})
		assign = append(assign, storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: peers[0].id})
	}
	w.unchanged(func() {
		_, err := l.try(append(declare, storage.Change{Unit: unit0})...)
		w.holds(err != nil, "a commit of %d changes was accepted", len(declare)+1)
	})
	for _, changes := range [][]storage.Change{declare, assign} {
		for i, o := range l.commit(changes...) {
			w.equal("unit of the outcome", o.Unit, changes[i].Unit)
			w.equal("applied", o.Applied, true)
		}
	}
	w.equal("units", len(peers[0].beat().Units), storage.MaxChanges)
}

func keepsUnknownState(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.bring(unit0, p, daemon.Active)
	other := l.assign(unit1, p)
	w.WriteState(w, unit0, "hibernating")
	want := r
	want.State = "hibernating"
	w.equal("row", w.unit(unit0), want)
	w.unchanged(func() {
		for _, s := range []daemon.Step{daemon.Assign, daemon.Revoke, daemon.Expire} {
			out := l.commit(on(want, s, func(c *storage.Change) { c.To = p.id }))
			w.equal("outcome of "+string(s), out[0], storage.Outcome{Unit: unit0, Record: want})
		}
	})
	var units []storage.UnitReport
	for _, s := range reportable {
		units = append(units, storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: s})
	}
	units = append(units, storage.UnitReport{Unit: unit1, Generation: other.Generation, Step: daemon.Acknowledge})
	out := p.report(units...)
	for i, s := range reportable {
		w.equal("outcome of "+string(s), out[i], storage.Outcome{Unit: unit0, Record: want})
	}
	w.equal("a neighbour's report", out[len(out)-1].Applied, true)
	w.equal("units in the reply", len(p.beat().Units), 2)
	p.leave(storage.Leave{Drain: true})
	w.equal("row after a drain", w.unit(unit0), want)
	w.equal("state of the neighbour after a drain", w.unit(unit1).State, daemon.Revoking)
	p.leave(storage.Leave{Deregister: true})
	w.equal("row after its holder has left", w.unit(unit0), want)
}
