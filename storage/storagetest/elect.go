package storagetest

import (
	"encoding/json"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var electStories = []story{
	{"whoever stands for a free term gets it", 0, electsOnEmpty},
	{"nobody who does not stand is elected", 0, electsOnlyCandidates},
	{"a live term is refused and its holder told", 0, refusesLiveTerm},
	{"an expired term goes to a candidate that saw exactly it", 0, replacesExpired},
	{"a term watched for a whole lease is replaced whatever the store's clock says", 0, replacesUnchanged},
	{"the holder renews its term", 0, renews},
	{"nobody else renews it", 0, renewsOnlyOwn},
	{"the holder renews an expired term that nobody replaced", 0, renewsExpired},
	{"an election whose reply was lost is kept", 0, keepsLostElection},
	{"a term that was published as lost is replaced at once, never kept", 0, replacesOwnLost},
	{"a replaced holder touches nothing", 0, leavesSuccessorAlone},
	{"a node that never leads is refused", 0, neverLeads},
	{"one ID, two processes: one holder", 0, electsProcess},
	{"numbers grow past whatever anybody has seen", 0, numbersPastSeen},
	{"numbers grow over resignation and expiry", 0, numbersGrow},
	{"a follower touches no row but its own", 0, followerTouchesOwnRow},
	{"passes are stamped when they grow", 0, stampsPasses},
}

func electsOnEmpty(w *world) {
	p := w.join("node-a")
	before := w.snapshot()
	r := p.beat(campaign(long))
	w.equal("verdict", r.Verdict, storage.Elect)
	w.equal("leader", r.Term.Leader, p.id)
	w.equal("ordinal", r.Term.Ordinal, int64(1))
	w.equal("held", r.Term.Held(), true)
	w.equal("renewals", r.Lease.Renewals, int64(0))
	w.holds(r.Term.Number >= before.Now.UnixMilli() && r.Term.Number <= r.Now.UnixMilli()+1, "number %d is not of the store's clock, %d", r.Term.Number, r.Now.UnixMilli())
	w.within("elected_at", r.Term.ElectedAt, before.Now, r.Now)
	w.within("expires_at", r.Lease.ExpiresAt, before.Now.Add(long), r.Now.Add(long))
	snap := w.snapshot()
	w.equal("term as read", snap.Term, r.Term)
	w.equal("lease as read", snap.Lease, r.Lease)

	e := w.history(before.Head)
	w.equal("events", len(e), 1)
	w.equal("event", e[0], daemon.Event{
		Seq: before.Head + 1, At: e[0].At, Kind: daemon.LeaderElected, Node: p.id.Name, NodeID: p.id.ID, Incarnation: p.id.Incarnation,
		Term: r.Term.Number, TermOrdinal: 1,
	})
}

func electsOnlyCandidates(w *world) {
	p := w.join("node-a")
	for _, edits := range [][]edit{nil, {renew(1, long)}, {unchanged, seen(0, 0)}} {
		w.equal("verdict", p.beat(edits...).Verdict, storage.Refuse)
	}
	w.equal("term", w.snapshot().Term, node.Term{})
}

func refusesLiveTerm(w *world) {
	l, peers := w.cluster(1)
	before := w.snapshot()
	for _, edits := range [][]edit{
		{campaign(long)},
		{campaign(long), seen(l.term.Number, 0)},
		{campaign(long), seen(l.term.Number, 1), unchanged},
		{campaign(long), seen(l.term.Number-1, 0), unchanged},
	} {
		r := peers[0].beat(edits...)
		w.equal("verdict", r.Verdict, storage.Refuse)
		w.equal("term that the candidate is told", r.Term, before.Term)
		w.equal("lease that the candidate is told", r.Lease, before.Lease)
	}
	after := w.snapshot()
	w.equal("term", after.Term, before.Term)
	w.equal("lease", after.Lease, before.Lease)
	w.equal("head", after.Head, before.Head)
}

func replacesExpired(w *world) {
	a, b := w.join("node-a"), w.join("node-b")
	a.lead()
	old := a.beat(renew(w.snapshot().Term.Number, over))
	w.equal("verdict", old.Verdict, storage.Renew)
	for _, s := range []edit{seen(old.Term.Number, 0), seen(old.Term.Number-1, 1), seen(0, 0)} {
		w.equal("verdict of a candidate that saw something else", b.beat(campaign(long), s).Verdict, storage.Refuse)
	}
	head := w.snapshot().Head
	r := b.beat(campaign(long), seen(old.Term.Number, old.Lease.Renewals))
	w.equal("verdict", r.Verdict, storage.Elect)
	w.equal("leader", r.Term.Leader, b.id)
	w.equal("ordinal", r.Term.Ordinal, old.Term.Ordinal+1)
	w.equal("renewals", r.Lease.Renewals, int64(0))
	w.holds(r.Term.Number > old.Term.Number, "number %d after %d", r.Term.Number, old.Term.Number)

	e := w.history(head)
	w.equal("events", len(e), 2)
	w.equal("when the lease ended", leaseEnd(w, e[0]), old.Lease.ExpiresAt)
	w.equal("first event", e[0], daemon.Event{
		Seq: head + 1, At: e[0].At, Kind: daemon.LeaderLost, Node: a.id.Name, NodeID: a.id.ID, Incarnation: a.id.Incarnation,
		Term: old.Term.Number, TermOrdinal: old.Term.Ordinal, Reason: string(node.Expired), Detail: e[0].Detail,
	})
	w.equal("second event", e[1].Kind, daemon.LeaderElected)
	w.equal("node of the second event", e[1].Incarnation, b.id.Incarnation)
}

// leaseEnd returns from an event when the lease was over of a term that was not resigned.
func leaseEnd(w *world, e daemon.Event) time.Time {
	w.Helper()
	var d storage.LostDetail
	w.ok(json.Unmarshal(e.Detail, &d))
	return d.LeaseEndedAt
}

func replacesUnchanged(w *world) {
	l, peers := w.cluster(1)
	l.beat(renew(l.term.Number, long))
	w.equal("verdict with a renewal missed", peers[0].beat(campaign(long), seen(l.term.Number, 0), unchanged).Verdict, storage.Refuse)
	head := w.snapshot().Head
	r := peers[0].beat(campaign(long), seen(l.term.Number, 1), unchanged)
	w.equal("verdict", r.Verdict, storage.Elect)
	// By the store's clock the lease would have continued: the election ends it.
	e := w.history(head)
	w.equal("when the lease ended", leaseEnd(w, e[0]), e[0].At)
}

func renews(w *world) {
	l, _ := w.cluster(0)
	first := w.snapshot()
	for i := int64(1); i <= 3; i++ {
		before := w.snapshot()
		r := l.beat(renew(l.term.Number, 2*long))
		w.equal("verdict", r.Verdict, storage.Renew)
		w.equal("term", r.Term, first.Term)
		w.equal("renewals", r.Lease.Renewals, i)
		w.within("expires_at", r.Lease.ExpiresAt, before.Now.Add(2*long), r.Now.Add(2*long))
	}
	w.equal("head", w.snapshot().Head, first.Head) // a renewal is no event
}

func renewsOnlyOwn(w *world) {
	l, peers := w.cluster(1)
	before := w.snapshot()
	for _, p := range peers {
		w.equal("verdict of another", p.beat(renew(l.term.Number, long)).Verdict, storage.Refuse)
	}
	for _, n := range []int64{0, l.term.Number - 1, l.term.Number + 1} {
		w.equal("verdict of another number", l.beat(renew(n, long)).Verdict, storage.Refuse)
	}
	after := w.snapshot()
	w.equal("term", after.Term, before.Term)
	w.equal("lease", after.Lease, before.Lease)
}

func renewsExpired(w *world) {
	p := w.join("node-a")
	t := p.beat(campaign(over)).Term
	w.equal("verdict", p.beat(renew(t.Number, over)).Verdict, storage.Renew)
	r := p.beat(renew(t.Number, long))
	w.equal("verdict", r.Verdict, storage.Renew)
	w.equal("term", r.Term, t)
	w.holds(r.Lease.ExpiresAt.After(r.Now), "the lease is still over")
}

func keepsLostElection(w *world) {
	p := w.join("node-a")
	t := p.beat(campaign(over)).Term // its reply is lost
	r := p.beat(campaign(long))
	w.equal("verdict", r.Verdict, storage.Renew)
	w.equal("term", r.Term, t)
	w.equal("verdict with an older loss", p.beat(campaign(long), lostThrough(t.Number-1)).Verdict, storage.Renew)
}

func replacesOwnLost(w *world) {
	l, _ := w.cluster(0)
	head := w.snapshot().Head
	w.equal("verdict of a renewal", l.beat(renew(l.term.Number, long), lostThrough(l.term.Number)).Verdict, storage.Refuse)
	r := l.beat(campaign(long), lostThrough(l.term.Number))
	w.equal("verdict", r.Verdict, storage.Elect)
	w.equal("leader", r.Term.Leader, l.id)
	w.equal("ordinal", r.Term.Ordinal, l.term.Ordinal+1)
	w.holds(r.Term.Number > l.term.Number, "number %d after %d", r.Term.Number, l.term.Number)
	e := w.history(head)
	w.equal("events", len(e), 2)
	w.equal("kind of the first", e[0].Kind, daemon.LeaderLost)
	w.equal("reason of the first", e[0].Reason, string(node.Replaced))
	w.equal("term of the first", e[0].Term, l.term.Number)
	w.equal("when the lease ended", leaseEnd(w, e[0]), e[0].At)
	_, err := l.try()
	w.refused(err, storage.ErrTermLost)
}

func leavesSuccessorAlone(w *world) {
	l, peers := w.cluster(1)
	now := peers[0].replaceLeader(l.term)
	before := w.snapshot()
	w.equal("verdict of the old holder", l.beat(renew(l.term.Number, 5*long), passes(9)).Verdict, storage.Refuse)
	w.equal("verdict of the old holder, standing", l.beat(campaign(5*long)).Verdict, storage.Refuse)
	l.leave(storage.Leave{Resign: l.term.Number})
	l.leave(storage.Leave{Resign: now.Number})
	after := w.snapshot()
	w.equal("term", after.Term, before.Term)
	w.equal("lease", after.Lease, before.Lease)
	w.equal("head", after.Head, before.Head)
}

func neverLeads(w *world) {
	p := w.join("node-a", advert(daemon.Advert{Traits: node.Traits{NeverLead: true}}))
	w.equal("verdict", p.beat(campaign(long)).Verdict, storage.Refuse)
	w.equal("verdict of a heartbeat that registers", w.unregistered("node-b").beat(advert(daemon.Advert{Traits: node.Traits{NeverLead: true}}), campaign(long)).Verdict, storage.Refuse)
	w.equal("held", w.snapshot().Term.Held(), false)
	w.equal("verdict of another", w.join("node-c").beat(campaign(long)).Verdict, storage.Elect)
}

func electsProcess(w *world) {
	a := w.join("node-a")
	t := a.lead()
	b := a.again()
	b.beat(advert(plain), ttl(0))
	for _, edits := range [][]edit{{campaign(long)}, {renew(t.Number, long)}, {campaign(long), lostThrough(t.Number)}} {
		w.equal("verdict of the other process", b.beat(edits...).Verdict, storage.Refuse)
	}
	b.leave(storage.Leave{Resign: t.Number})
	w.equal("held", w.snapshot().Term.Held(), true)
	w.equal("verdict of the holder", a.beat(renew(t.Number, long)).Verdict, storage.Renew)
}

func numbersPastSeen(w *world) {
	future := w.snapshot().Now.Add(100 * 365 * 24 * time.Hour).UnixMilli()
	a, b := w.join("node-a"), w.join("node-b")
	r := a.beat(campaign(long), highest(future, 0))
	w.equal("number after the claimant's highest", r.Term.Number, future+1)
	b.beat(highest(future+500, 0))
	a.leave(storage.Leave{Resign: r.Term.Number})
	w.equal("number after another's highest", a.beat(campaign(long)).Term.Number, future+501)
	a.leave(storage.Leave{Resign: future + 501})
	a.leave(storage.Leave{Deregister: true})
	w.equal("number after the previous", b.beat(campaign(long)).Term.Number, future+502)
	b.leave(storage.Leave{Resign: future + 502})
	c := w.join("node-c", highest(future+900, 0))
	c.leave(storage.Leave{Deregister: true})
	w.equal("number after a tombstone's highest", b.beat(campaign(long)).Term.Number, future+901)
}

func numbersGrow(w *world) {
	a, b := w.join("node-a"), w.join("node-b")
	last := a.lead()
	for i := range 10 {
		p, q := a, b
		if i%2 == 1 {
			p, q = b, a
		}
		var next node.Term
		if i < 5 {
			p.leave(storage.Leave{Resign: last.Number})
			next = q.lead()
		} else {
			r := p.beat(renew(last.Number, over))
			next = q.beat(campaign(long), seen(last.Number, r.Lease.Renewals)).Term
		}
		w.holds(next.Number > last.Number, "number %d after %d", next.Number, last.Number)
		w.equal("ordinal", next.Ordinal, last.Ordinal+1)
		last = next
	}
}

func followerTouchesOwnRow(w *world) {
	l, peers := w.cluster(2)
	l.bring(unit0, peers[0], daemon.Active)
	before := w.snapshot()
	p := peers[0]
	p.beat(campaign(long), heard(1), highest(9, 9), after(0), members)
	after := w.snapshot()
	for i := range before.Nodes {
		if before.Nodes[i].Incarnation == p.id.Incarnation {
			before.Nodes[i] = after.Nodes[i]
		}
	}
	before.Now = after.Now
	w.equal("everything but the own row", after, before)
}

func stampsPasses(w *world) {
	l, _ := w.cluster(0)
	n := l.term.Number
	w.equal("last_pass_at before the first pass", l.beat(renew(n, long)).Lease.LastPassAt.IsZero(), true)
	before := w.snapshot().Now
	r := l.beat(renew(n, long), passes(3))
	w.equal("pass_seq", r.Lease.PassSeq, uint64(3))
	w.within("last_pass_at", r.Lease.LastPassAt, before, r.Now)
	at := r.Lease.LastPassAt
	for _, p := range []uint64{3, 2, 0} {
		r = l.beat(renew(n, long), passes(p))
		w.equal("pass_seq", r.Lease.PassSeq, uint64(3))
		w.holds(r.Lease.LastPassAt.Equal(at), "last_pass_at moved without a pass")
	}
	successor := w.join("node-b")
	successor.replaceLeader(l.term)
	w.equal("pass_seq of a new term", w.snapshot().Lease.PassSeq, uint64(0))
	w.equal("last_pass_at of a new term", w.snapshot().Lease.LastPassAt.IsZero(), true)
}
