package storagetest

import (
	"errors"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var endedStories = []story{
	{"the proof that a process has ended marks its row", 0, marksEnded},
	{"the proof that the leader has ended vacates its term", 0, vacatesEnded},
	{"who proves it may be elected in the same step", 0, electsByProof},
	{"the proof frees no term of another process", 0, keepsOthersTerm},
	{"a refused heartbeat proves nothing", 0, refusesProof},
	{"an id of a process that has ended is free", 0, freesID},
}

func marksEnded(w *world) {
	_, peers := w.cluster(3)
	a, b, left := peers[0], peers[1], peers[2]
	left.leave(storage.Leave{Deregister: true})
	head := w.snapshot().Head
	r := a.beat(ended(b, a, left, w.unregistered("x")), members)
	for _, m := range r.Members {
		w.equal("told at once of "+m.Name, m.ExitProven, m.Incarnation == b.id.Incarnation)
	}
	w.equal("marked", w.row(b).ExitProven, true)
	w.equal("the one who looked", w.row(a).ExitProven, false)
	w.equal("a tombstone", w.row(left).ExitProven, false)
	w.equal("seq of the ended", w.row(b).Seq, b.seq)
	w.equal("head", w.snapshot().Head, head)
}

func vacatesEnded(w *world) {
	l, peers := w.cluster(1)
	a := peers[0]
	head := w.snapshot().Head
	r := a.beat(ended(l.peer))
	w.equal("verdict", r.Verdict, storage.Refuse)
	w.equal("held", r.Term.Held(), false)
	w.equal("number", r.Term.Number, l.term.Number)
	e := w.history(head)
	w.equal("events", len(e), 1)
	w.equal("event", e[0], daemon.Event{
		Seq: head + 1, At: e[0].At, Kind: daemon.LeaderLost, Node: l.id.Name, NodeID: l.id.ID, Incarnation: l.id.Incarnation,
		Term: l.term.Number, TermOrdinal: l.term.Ordinal, Reason: string(node.ProcessEnded),
	})
	// A message that the ended process sent before may still arrive: it renews nothing.
	w.equal("a late renewal", l.beat(renew(l.term.Number, long)).Verdict, storage.Refuse)
	_, err := l.try(storage.Change{Unit: unit0})
	w.refused(err, storage.ErrTermLost)
	// Reported again, it changes nothing.
	head = w.snapshot().Head
	a.beat(ended(l.peer))
	w.equal("head", w.snapshot().Head, head)
}

func electsByProof(w *world) {
	l, peers := w.cluster(1)
	a := peers[0]
	head := w.snapshot().Head
	r := a.beat(campaign(long), ended(l.peer))
	w.equal("verdict", r.Verdict, storage.Elect)
	w.equal("leader", r.Term.Leader, a.id)
	w.holds(r.Term.Number > l.term.Number, "number %d is not above %d", r.Term.Number, l.term.Number)
	e := w.history(head)
	w.equal("events", len(e), 2)
	w.equal("first", e[0].Kind, daemon.LeaderLost)
	w.equal("reason", e[0].Reason, string(node.ProcessEnded))
	w.equal("second", e[1].Kind, daemon.LeaderElected)
}

func keepsOthersTerm(w *world) {
	l, peers := w.cluster(2)
	a, b := peers[0], peers[1]
	r := a.beat(campaign(long), seen(l.term.Number, 0), ended(b))
	w.equal("verdict", r.Verdict, storage.Refuse)
	w.equal("leader", r.Term.Leader, l.id)
	w.equal("held", r.Term.Held(), true)
	w.equal("a renewal", l.beat(renew(l.term.Number, long)).Verdict, storage.Renew)
	// After another node has been elected, exit evidence about the former leader changes nothing.
	next := a.replaceLeader(l.term)
	r = b.beat(ended(l.peer))
	w.equal("term", r.Term.Ref(), next.Ref())
	w.equal("held after the change", r.Term.Held(), true)
	// A leader does not vacate its own term.
	r = a.beat(renew(next.Number, long), ended(a))
	w.equal("verdict for itself", r.Verdict, storage.Renew)
}

func refusesProof(w *world) {
	l, peers := w.cluster(1)
	a := peers[0]
	w.unchanged(func() {
		_, err := a.try(seq(a.seq), ended(l.peer))
		w.refused(err, storage.ErrStaleSeq)
		_, err = w.unregistered("x").try(ended(l.peer))
		w.refused(err, storage.ErrNotRegistered)
	})
}

func freesID(w *world) {
	host := node.Host{BootID: "b", PID: 7, Start: "100", Lock: "/run/x"}
	first := w.join("node-a", advert(daemon.Advert{Traits: node.Traits{Host: host}}))
	second := first.again()
	_, err := second.try(advert(plain), ttl(long))
	var inUse *storage.IDInUseError
	w.holds(errors.As(err, &inUse), "%v is no *IDInUseError", err)
	w.equal("its host", inUse.Host, host)
	_, err = second.try(advert(plain), ttl(long), ended(w.unregistered("x")))
	w.refused(err, storage.ErrIDInUse)
	second.beat(advert(plain), ttl(long), ended(first))
	w.equal("the first is marked", w.row(first).ExitProven, true)
	w.equal("state of the second", w.row(second).State, node.Live)
}
