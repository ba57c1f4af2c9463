package storagetest

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var guardStories = []story{
	{"a commit under any term but the present one changes nothing", 0, guardsTerm},
	{"without a term no commit is accepted", 0, guardsNoTerm},
	{"a commit under an expired term that nobody replaced is accepted", 0, acceptsExpiredTerm},
	{"a change whose row has moved is skipped, the others happen", 0, guardsRows},
	{"a change from a stale snapshot is skipped", 0, guardsStaleSnapshot},
	{"a leader cannot take the holder's steps", 0, guardsHoldersSteps},
	{"a dead node's units are taken only if its row still stands still", 0, guardsDeath},
	{"a node is declared dead only if its row still stands still", 0, guardsRemoval},
	{"a node removed and its units freed are one commit", 0, removesInOneCommit},
	{"decisions that change no row are told under the term", 0, emitsDecisions},
	{"judgements are told once, and heartbeats do not touch them", 0, marksNodes},
	{"a judgement is of the stamp it was made of", Clock, guardsDecisions},
}

func guardsTerm(w *world) {
	l, peers := w.cluster(2)
	r := l.bring(unit0, peers[0], daemon.Active)
	l.declare(unit1)
	p := peers[1]
	attempt := func(ref node.TermRef) {
		w.Helper()
		w.unchanged(func() {
			_, err := w.Store.Commit(w.ctx, storage.Commit{
				Term:  ref,
				Nodes: []storage.NodeChange{{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: p.seq}, State: node.Removed}},
				Changes: []storage.Change{
					{Unit: unit2},
					on(r, daemon.Revoke),
					{Unit: unit1, Step: daemon.Assign, State: daemon.Unassigned, To: peers[0].id},
				},
			})
			w.refused(err, storage.ErrTermLost)
			_, err = w.Store.Commit(w.ctx, storage.Commit{Term: ref})
			w.refused(err, storage.ErrTermLost)
		})
	}
	ref := l.term.Ref()
	for _, wrong := range []node.TermRef{
		{},
		{Number: ref.Number},
		{Number: ref.Number + 1, Node: ref.Node, Incarnation: ref.Incarnation},
		{Number: ref.Number - 1, Node: ref.Node, Incarnation: ref.Incarnation},
		{Number: ref.Number, Node: ref.Node, Incarnation: p.id.Incarnation},
		{Number: ref.Number, Node: p.id.ID, Incarnation: ref.Incarnation},
	} {
		attempt(wrong)
	}
	l.leave(storage.Leave{Resign: ref.Number})
	attempt(ref)
	next := p.lead()
	attempt(ref)
	attempt(node.TermRef{Number: next.Number, Node: ref.Node, Incarnation: ref.Incarnation})

	// The same process in a later term does not lead by its earlier term.
	p.leave(storage.Leave{Resign: next.Number})
	l.term = l.lead()
	attempt(ref)
	l.declare(unit2)
}

func guardsNoTerm(w *world) {
	p := w.join("node-a")
	w.unchanged(func() {
		for _, ref := range []node.TermRef{{}, {Node: p.id.ID, Incarnation: p.id.Incarnation}, {Number: 1, Node: p.id.ID, Incarnation: p.id.Incarnation}} {
			_, err := w.Store.Commit(w.ctx, storage.Commit{Term: ref, Changes: []storage.Change{{Unit: unit0}}})
			w.refused(err, storage.ErrTermLost)
		}
	})
}

func acceptsExpiredTerm(w *world) {
	p := w.join("node-a")
	l := leader{peer: p, term: p.beat(campaign(over)).Term}
	l.declare(unit0)
	w.equal("holder", l.assign(unit0, p).Holder, p.id)
}

func guardsRows(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	moved := l.assign(unit0, p)
	now := p.step(moved, daemon.Acknowledge)
	l.declare(unit1)
	out := l.commit(
		on(moved, daemon.Revoke),
		storage.Change{Unit: unit1, Step: daemon.Assign, State: daemon.Unassigned, To: p.id},
		on(now, daemon.Revoke, func(c *storage.Change) { c.Generation++ }),
		on(now, daemon.Revoke, func(c *storage.Change) { c.Generation-- }),
		on(now, daemon.Revoke, func(c *storage.Change) { c.State = "" }),
		storage.Change{Unit: unit2, Step: daemon.Revoke, State: daemon.Active, Generation: now.Generation},
		storage.Change{Unit: unit2},
	)
	for i, want := range []bool{false, true, false, false, false, false, true} {
		w.holds(out[i].Applied == want, "change %d: applied %v, want %v; %+v", i, out[i].Applied, want, out[i])
	}
	for _, i := range []int{0, 2, 3, 4} {
		w.equal("the row as it is", out[i].Record, now)
	}
	w.equal("a row that is not there", out[5].Record, daemon.Record{})
}

func guardsStaleSnapshot(w *world) {
	l, peers := w.cluster(2)
	a, b := peers[0], peers[1]
	r := l.bring(unit0, a, daemon.Active)
	// Since the leader looked, the unit was released, assigned elsewhere and runs there.
	a.step(r, daemon.Release)
	b.step(l.assign(unit0, b), daemon.Acknowledge)
	w.unchanged(func() {
		for _, c := range []storage.Change{on(r, daemon.Revoke), on(r, daemon.Expire), on(r, daemon.Expire, func(c *storage.Change) {
			c.Dead = &storage.NodeVersion{Incarnation: a.id.Incarnation, Seq: a.seq}
		}), {Unit: unit0}} {
			w.equal("applied", l.commit(c)[0].Applied, false)
		}
	})
	// The state is the same again, but in another run: the generation shows it.
	w.equal("state", w.unit(unit0).State, r.State)
}

func guardsHoldersSteps(w *world) {
	l, _ := w.cluster(0)
	for i, from := range []daemon.State{daemon.Assigning, daemon.Active, daemon.Revoking} {
		r := l.bring(daemon.Unit{Daemon: "acme:mine", Index: i}, l.peer, from)
		w.unchanged(func() {
			for _, s := range append([]daemon.Step{"explode"}, reportable...) {
				w.equal("outcome of "+string(s), l.commit(on(r, s))[0], storage.Outcome{Unit: r.Unit, Record: r})
			}
		})
	}
}

func guardsDeath(w *world) {
	l, peers := w.cluster(3)
	die := func(r daemon.Record, p *peer, seq uint64) bool {
		w.Helper()
		return l.commit(on(r, daemon.Expire, func(c *storage.Change) {
			c.Forced, c.Dead = true, &storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: seq}
		}))[0].Applied
	}
	a := peers[0]
	r := l.bring(unit0, a, daemon.Active)
	seen := a.seq
	for _, sign := range []func(){
		func() { a.beat() },
		func() { a.report() },
		func() { a.leave(storage.Leave{}) },
	} {
		sign()
		w.unchanged(func() { w.equal("freed although the node moved", die(r, a, seen), false) })
		seen = a.seq
	}
	w.equal("freed", die(r, a, a.seq), true)

	tombstone := peers[1]
	r = l.bring(unit1, tombstone, daemon.Active)
	seen = tombstone.seq
	tombstone.beat()
	l.declareDead(tombstone)
	w.equal("freed from a tombstone", die(r, tombstone, seen), true)

	gone := peers[2]
	r = l.bring(unit2, gone, daemon.Active)
	w.equal("freed from a row that is not there", die(r, w.unregistered("gone"), 1), true)
}

func guardsRemoval(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	for _, wrong := range []storage.NodeVersion{
		{Incarnation: p.id.Incarnation, Seq: p.seq - 1},
		{Incarnation: p.id.Incarnation, Seq: p.seq + 1},
		{Incarnation: p.id.Incarnation},
		{Incarnation: w.unregistered("nobody").id.Incarnation, Seq: p.seq},
	} {
		w.unchanged(func() { l.changeNode(storage.NodeChange{Guard: wrong, State: node.Removed, Reason: "silent"}) })
	}
	before := w.snapshot()
	l.declareDead(p)
	m := w.row(p)
	w.within("ended_at", m.EndedAt, before.Now, w.snapshot().Now)
	w.equal("end reason", m.EndReason, "silent")
	w.equal("seq", m.Seq, p.seq)
	e := w.history(before.Head)
	w.equal("events", len(e), 1)
	w.equal("event", e[0], daemon.Event{
		Seq: before.Head + 1, At: e[0].At, Kind: daemon.NodeRemoved,
		Node: p.id.Name, NodeID: p.id.ID, Incarnation: p.id.Incarnation, Reason: "silent",
	})
	for _, again := range []node.State{node.Removed, node.Late, node.Deaf, node.Live} {
		w.unchanged(func() {
			l.changeNode(storage.NodeChange{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: p.seq}, State: again, Reason: "again"})
		})
	}
}

func removesInOneCommit(w *world) {
	l, peers := w.cluster(2)
	a, b := peers[0], peers[1]
	r0, r1 := l.bring(unit0, a, daemon.Active), l.bring(unit1, a, daemon.Assigning)
	l.declare(unit2)
	head := w.snapshot().Head
	guard := storage.NodeVersion{Incarnation: a.id.Incarnation, Seq: a.seq}
	removal := storage.Commit{
		Term:  l.term.Ref(),
		Nodes: []storage.NodeChange{{Guard: guard, State: node.Removed, Reason: "silent"}},
		Changes: []storage.Change{
			on(r0, daemon.Expire, func(c *storage.Change) { c.Dead, c.Forced = &guard, true }),
			on(r1, daemon.Expire, func(c *storage.Change) { c.Dead, c.Forced = &guard, true }),
			{Unit: unit2, Step: daemon.Assign, State: daemon.Unassigned, To: b.id},
		},
	}
	out, err := l.via.Commit(w.ctx, removal)
	w.ok(err)
	for _, o := range out {
		w.equal("applied", o.Applied, true)
	}
	var kinds []daemon.EventKind
	for _, e := range w.history(head) {
		kinds = append(kinds, e.Kind)
	}
	w.equal("events, the cause first", kinds, []daemon.EventKind{daemon.NodeRemoved, daemon.AssignmentForced, daemon.AssignmentForced, daemon.AssignmentAssigned})
	w.equal("units of the dead node", w.unit(unit0).State, daemon.Deleted)
}

func marksNodes(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	guard := storage.NodeVersion{Incarnation: p.id.Incarnation} // seq does not count here
	mark := func(s node.State) {
		l.changeNode(storage.NodeChange{Guard: guard, State: s, Reason: "why"})
	}
	for _, c := range []struct {
		state node.State
		want  node.State
		kind  daemon.EventKind
	}{
		{node.Late, node.Late, daemon.NodeLate},
		{node.Late, node.Late, ""},
		{node.Deaf, node.Deaf, daemon.NodeDeaf},
		{node.Live, "", ""},
		{node.Live, "", ""},
		{node.Deaf, node.Deaf, daemon.NodeDeaf},
	} {
		head := w.snapshot().Head
		mark(c.state)
		m := w.row(p)
		w.equal("judged", m.LeaderState, c.want)
		w.equal("state", m.State, node.Live)
		w.equal("seq", m.Seq, p.seq)
		e := w.history(head)
		if c.kind == "" {
			w.equal("events", len(e), 0)
			continue
		}
		w.equal("events", len(e), 1)
		w.equal("kind", e[0].Kind, c.kind)
		w.equal("reason", e[0].Reason, "why")
		w.equal("node", e[0].Incarnation, p.id.Incarnation)
	}
	p.beat(advert(plain))
	w.equal("judged after a heartbeat", w.row(p).LeaderState, node.Deaf)
}

// guardsDecisions: a commit that arrives late or twice must not call a node late that has sent a
// heartbeat since its leader looked, nor call a node deaf that has received a reply since.
func guardsDecisions(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	stamp := map[node.State]func(node.Member) time.Time{
		node.Late: func(m node.Member) time.Time { return m.LastHeartbeatAt },
		node.Deaf: func(m node.Member) time.Time { return m.ConfirmedAt },
	}
	mark := func(state node.State, of node.Member) node.State {
		w.Helper()
		l.changeNode(storage.NodeChange{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation}, State: state, ObservedAt: stamp[state](of), Reason: "old"})
		return w.row(p).LeaderState
	}
	for _, state := range []node.State{node.Late, node.Deaf} {
		old := w.row(p)
		w.Advance(time.Second)
		p.beat(heard(p.seq))
		w.unchanged(func() { mark(state, old) })
		w.equal("judged by its newest stamp", mark(state, w.row(p)), state)
		l.changeNode(storage.NodeChange{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation}, State: node.Live})
	}

	// A node that sends heartbeats and receives no reply is still deaf, and not late.
	old := w.row(p)
	w.Advance(time.Second)
	old.ConfirmedAt = w.row(p).ConfirmedAt
	p.beat()
	w.unchanged(func() { mark(node.Late, old) })
	w.equal("judged while it beats", mark(node.Deaf, old), node.Deaf)
}

// emitsDecisions: events of a commit are written in order, before those of its changes, and only under the term.
func emitsDecisions(w *world) {
	l, peers := w.cluster(2)
	r := l.bring(unit0, peers[0], daemon.Active)
	events := []daemon.Event{
		{Kind: daemon.BrakeHeld, Reason: "6 of 10 nodes look dead", Detail: []byte(`{"dead": 6}`), Seq: 17, Term: 3, Node: "n1"},
		{Kind: daemon.BrakeReleased, Daemon: "acme:x", Reason: "the nodes are back"},
	}
	w.unchanged(func() {
		_, err := w.Store.Commit(w.ctx, storage.Commit{Term: node.TermRef{Number: l.term.Number + 1}, Events: events})
		w.refused(err, storage.ErrTermLost)
	})
	head := w.snapshot().Head
	_, err := w.Store.Commit(w.ctx, storage.Commit{Term: l.term.Ref(), Events: events, Changes: []storage.Change{on(r, daemon.Revoke)}})
	w.ok(err)
	page, err := w.Store.Events(w.ctx, head, 10)
	w.ok(err)
	w.equal("events", len(page.Events), 3)
	for i, want := range events {
		got := page.Events[i]
		w.equal("seq", got.Seq, head+1+int64(i))
		w.equal("kind", got.Kind, want.Kind)
		w.equal("term", got.Term, l.term.Number)
		w.equal("reason", got.Reason, want.Reason)
		w.equal("node", got.Node, want.Node)
		w.equal("daemon", got.Daemon, want.Daemon)
	}
	w.equal("the change's event", page.Events[2].Kind, daemon.AssignmentRevoking)
}
