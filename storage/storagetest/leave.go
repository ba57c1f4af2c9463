package storagetest

import (
	"encoding/json"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var leaveStories = []story{
	{"a resigned term is free at once", 0, resigns},
	{"only the exact term is resigned", 0, resignsExactly},
	{"a delayed resignation of an old term touches nothing", 0, resignsLate},
	{"a draining node's units are revoked in the same step", 0, drains},
	{"draining again extends nothing", 0, drainsOnce},
	{"a node that deregisters frees what it holds, by force", 0, deregisters},
	{"resigning and draining are one step", 0, resignsAndDrains},
	{"all at once: term, units and row", 0, leavesEntirely},
	{"repeating what already is so is harmless", 0, leavesAgain},
	{"who asked for it stands in the event", 0, leavesOnCommand},
}

func resigns(w *world) {
	l, peers := w.cluster(1)
	before := w.snapshot()
	l.leave(storage.Leave{Resign: l.term.Number, Reason: node.Resigned})
	after := w.snapshot()
	w.equal("vacant", after.Term.Vacant, true)
	w.equal("held", after.Term.Held(), false)
	w.equal("number", after.Term.Number, l.term.Number)
	w.equal("leader as the term remembers it", after.Term.Leader, l.id)
	e := w.history(before.Head)
	w.equal("events", len(e), 1)
	w.equal("event", e[0], daemon.Event{
		Seq: before.Head + 1, At: e[0].At, Kind: daemon.LeaderLost, Node: l.id.Name, NodeID: l.id.ID, Incarnation: l.id.Incarnation,
		Term: l.term.Number, TermOrdinal: 1, Reason: "resigned",
	})
	w.equal("verdict of a renewal", l.beat(renew(l.term.Number, long)).Verdict, storage.Refuse)
	head := w.snapshot().Head
	r := peers[0].beat(campaign(long))
	w.equal("verdict of the next", r.Verdict, storage.Elect)
	w.equal("ordinal", r.Term.Ordinal, int64(2))
	w.equal("vacant", r.Term.Vacant, false)
	w.equal("events", len(w.history(head)), 1) // nobody loses a vacant term
}

func resignsExactly(w *world) {
	l, peers := w.cluster(1)
	for _, wrong := range []int64{l.term.Number + 1, l.term.Number - 1, 1} {
		l.leave(storage.Leave{Resign: wrong})
	}
	peers[0].leave(storage.Leave{Resign: l.term.Number})
	snap := w.snapshot()
	w.equal("term", snap.Term, l.term)
	w.equal("kind of the newest event", w.history(snap.Head - 1)[0].Kind, daemon.NodeRegistered)
}

func resignsLate(w *world) {
	l, peers := w.cluster(1)
	old := l.term
	peers[0].replaceLeader(old)
	l.leave(storage.Leave{Resign: old.Number})
	w.equal("leader", w.snapshot().Term.Leader, peers[0].id)
	// The former holder leads again: its earlier resignation concerns its earlier term.
	peers[0].leave(storage.Leave{Resign: w.snapshot().Term.Number})
	again := l.lead()
	l.leave(storage.Leave{Resign: old.Number})
	w.equal("term", w.snapshot().Term, again)
}

func drains(w *world) {
	l, peers := w.cluster(2)
	p := peers[0]
	own := l.bring(unit0, p, daemon.Active)
	w.equal("drain timeout of the assignment", own.DrainTimeout, 20*time.Second)
	l.declare(unit1)
	plain := l.change(storage.Change{Unit: unit1, Step: daemon.Assign, State: daemon.Unassigned, To: p.id})
	revoking := l.bring(unit2, p, daemon.Revoking)
	other := l.bring(daemon.Unit{Daemon: "acme:other"}, peers[1], daemon.Active)
	before := w.snapshot()
	p.leave(storage.Leave{Drain: true, DrainTimeout: 7 * time.Second, Reason: node.Shutdown})

	w.equal("state of the node", w.row(p).State, node.Draining)
	got := w.unit(unit0)
	w.within("revoked_at", got.RevokedAt, before.Now, w.snapshot().Now)
	want := own
	want.State, want.Since, want.RevokedAt, want.Reason = daemon.Revoking, got.RevokedAt, got.RevokedAt, "shutdown"
	w.equal("a unit with a drain timeout of its own", got, want)
	got = w.unit(unit1)
	want = plain
	want.State, want.Since, want.RevokedAt, want.Reason, want.DrainTimeout = daemon.Revoking, got.RevokedAt, got.RevokedAt, "shutdown", 7*time.Second
	w.equal("a unit without", got, want)
	w.equal("a unit that was revoked before", w.unit(unit2), revoking)
	w.equal("another node's unit", w.unit(other.Unit), other)

	e := w.history(before.Head)
	w.equal("events", len(e), 2)
	for i, u := range []daemon.Unit{unit0, unit1} {
		w.equal("kind", e[i].Kind, daemon.AssignmentRevoking)
		w.equal("unit", e[i].Unit, u)
		w.equal("reason", e[i].Reason, "shutdown")
	}
	w.equal("units that the node still holds", len(p.beat().Units), 3)
	for _, r := range p.beat().Units {
		p.step(r, daemon.Confirm)
	}
}

func drainsOnce(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	l.bring(unit0, p, daemon.Active)
	p.leave(storage.Leave{Drain: true, DrainTimeout: time.Second})
	w.unchangedUnit(unit0, func() {
		p.leave(storage.Leave{Drain: true, DrainTimeout: time.Hour, Reason: "again"})
		w.equal("state of the node", w.row(p).State, node.Draining)
	})
}

func deregisters(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	held := []daemon.Record{
		l.bring(unit0, p, daemon.Assigning), l.bring(unit1, p, daemon.Active), l.bring(unit2, p, daemon.Revoking),
	}
	ended := l.bring(daemon.Unit{Daemon: "acme:ended"}, p, daemon.Deleted)
	before := w.snapshot()
	p.leave(storage.Leave{Deregister: true, Reason: node.Shutdown})
	for _, r := range held {
		got := w.unit(r.Unit)
		r.State, r.Since, r.Reason, r.Forced = daemon.Deleted, got.Since, "shutdown", true
		w.equal("row", got, r)
	}
	w.equal("a unit that had ended", w.unit(ended.Unit), ended)
	m := w.row(p)
	w.equal("state", m.State, node.Removed)
	w.equal("end reason", m.EndReason, "shutdown")
	w.within("ended_at", m.EndedAt, before.Now, w.snapshot().Now)
	e := w.history(before.Head)
	w.equal("events", len(e), 4)
	for i, r := range held {
		w.equal("kind", e[i].Kind, daemon.AssignmentForced)
		w.equal("unit", e[i].Unit, r.Unit)
	}
	w.equal("last event", e[3].Kind, daemon.NodeRemoved)
	w.equal("reason of the last", e[3].Reason, "shutdown")
}

func resignsAndDrains(w *world) {
	l, _ := w.cluster(1)
	l.bring(unit0, l.peer, daemon.Active)
	head := w.snapshot().Head
	l.leave(storage.Leave{Resign: l.term.Number, Drain: true, DrainTimeout: time.Second, Reason: node.Shutdown})
	e := w.history(head)
	w.equal("events", len(e), 2)
	w.equal("first", e[0].Kind, daemon.LeaderLost)
	w.equal("reason of the first", e[0].Reason, "shutdown")
	w.equal("second", e[1].Kind, daemon.AssignmentRevoking)
	w.equal("term of the second", e[1].Term, l.term.Number)
	w.equal("held", w.snapshot().Term.Held(), false)
}

func leavesEntirely(w *world) {
	l, _ := w.cluster(0)
	l.bring(unit0, l.peer, daemon.Active)
	head := w.snapshot().Head
	l.leave(storage.Leave{Resign: l.term.Number, Drain: true, Deregister: true, Reason: node.Shutdown})
	var kinds []daemon.EventKind
	for _, e := range w.history(head) {
		kinds = append(kinds, e.Kind)
	}
	w.equal("events", kinds, []daemon.EventKind{daemon.LeaderLost, daemon.AssignmentForced, daemon.NodeRemoved})
	w.equal("state of the unit", w.unit(unit0).State, daemon.Deleted)
}

func leavesAgain(w *world) {
	l, _ := w.cluster(0)
	all := storage.Leave{Resign: l.term.Number, Drain: true, Deregister: true, Reason: node.Shutdown}
	l.leave(all)
	snap := w.snapshot()
	tombstone := w.row(l.peer)
	for range 2 {
		l.leave(all)
	}
	got := w.row(l.peer)
	tombstone.Seq = l.seq
	w.equal("tombstone", got, tombstone)
	w.equal("term", w.snapshot().Term, snap.Term)
	w.equal("head", w.snapshot().Head, snap.Head)
	w.refused(l.tryLeave(storage.Leave{Drain: true}), storage.ErrNotRegistered)
}

func leavesOnCommand(w *world) {
	l, _ := w.cluster(0)
	c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: daemon.CommandResign, Actor: "alice", Term: l.term.Number})
	w.ok(err)
	head := w.snapshot().Head
	l.leave(storage.Leave{Resign: l.term.Number, Reason: node.Resigned, Command: c.ID, Actor: "alice"})
	e := w.history(head)
	w.equal("events", len(e), 1)
	w.equal("detail", e[0].Detail, json.RawMessage(`{"command":"`+c.ID+`","actor":"alice"}`))
}
