package storagetest

import (
	"errors"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var registerStories = []story{
	{"a node that registers has a row, an event and a complete reply", 0, registers},
	{"a heartbeat without an advert from nobody is refused", 0, registersOnlyWithAdvert},
	{"late and repeated sequence numbers change nothing", 0, refusesOldSeq},
	{"a member that advertises anew is changed without an event", 0, advertisesAnew},
	{"equal adverts are kept once", 0, sharesAdverts},
	{"a second process with a live node's ID is refused", 0, refusesSecondProcess},
	{"a node of another cluster is refused and changes nothing", 0, refusesOtherCluster},
	{"a cluster is renamed by who knows its name, while no node is live", 0, renames},
	{"an ID is free again after its process left, died or fell silent", 0, reusesID},
	{"two nodes may share a name", 0, sharesName},
	{"a node that the leader removed comes back with an event", 0, returns},
	{"a node that deregistered never comes back", 0, staysGone},
	{"heard_at is stamped when heard grows", 0, stampsHeard},
	{"the highest numbers seen only grow", 0, keepsHighest},
	{"the member list comes when asked for, sorted, with tombstones", 0, listsMembers},
	{"names of every kind survive", 0, keepsNames},
}

func registers(w *world) {
	p := w.unregistered("node-a")
	before := w.snapshot()
	w.equal("nodes of an empty store", len(before.Nodes), 0)
	w.equal("head of an empty store", before.Head, int64(0))

	r := p.beat(advert(plain), heard(0), after(0), highest(5, 6))
	w.equal("seq", r.Seq, p.seq)
	w.equal("verdict", r.Verdict, storage.Refuse)
	w.equal("term held", r.Term.Held(), false)
	w.equal("units", len(r.Units), 0)
	w.equal("head", r.Head, int64(1))
	w.equal("store id", r.StoreID, before.StoreID)
	w.holds(r.StoreID != "", "the store has no identity")
	w.equal("another store since", r.StoreSince.IsZero(), true)
	w.holds(r.Members == nil, "members came without being asked for")

	m := w.row(p)
	w.equal("identity", m.Identity, p.id)
	w.equal("state", m.State, node.Live)
	w.equal("traits", m.Traits, plain.Traits)
	w.equal("seq in the row", m.Seq, p.seq)
	w.equal("highest term", m.HighestTerm, int64(5))
	w.equal("highest generation", m.HighestGeneration, int64(6))
	w.equal("end", m.EndedAt.IsZero(), true)
	w.within("registered_at", m.RegisteredAt, before.Now, r.Now)
	w.within("last_heartbeat_at", m.LastHeartbeatAt, before.Now, r.Now)
	w.within("heard_at", m.ConfirmedAt, before.Now, r.Now)

	w.equal("events", len(r.Events), 1)
	e := r.Events[0]
	w.within("time of the event", e.At, before.Now, r.Now)
	w.equal("event", e, daemon.Event{
		Seq: 1, At: e.At, Kind: daemon.NodeRegistered, Node: p.id.Name, NodeID: p.id.ID, Incarnation: p.id.Incarnation,
	})
}

func registersOnlyWithAdvert(w *world) {
	p := w.unregistered("node-a")
	w.unchanged(func() {
		_, err := p.try(campaign(long))
		w.refused(err, storage.ErrNotRegistered)
	})
	w.unchanged(func() {
		_, err := w.Store.Report(w.ctx, storage.Report{Node: p.id, Seq: p.next()})
		w.refused(err, storage.ErrNotRegistered)
	})
	w.unchanged(func() {
		w.refused(p.tryLeave(storage.Leave{Deregister: true}), storage.ErrNotRegistered)
	})
}

func refusesOldSeq(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.assign(unit0, p)
	p.beat(seq(10))
	for _, old := range []uint64{1, 9, 10} {
		w.unchanged(func() {
			_, err := p.try(seq(old), heard(9), highest(1<<50, 1<<50), campaign(long), unchanged, seen(l.term.Number, 0), ended(l.peer))
			w.refused(err, storage.ErrStaleSeq)
			_, err = p.try(seq(old), advert(daemon.Advert{Traits: node.Traits{Version: "v9"}}))
			w.refused(err, storage.ErrStaleSeq)
			_, err = w.Store.Report(w.ctx, storage.Report{
				Node: p.id, Seq: old, HighestGeneration: 1 << 50,
				Units: []storage.UnitReport{{Unit: unit0, Generation: r.Generation, Step: daemon.Acknowledge}},
			})
			w.refused(err, storage.ErrStaleSeq)
			w.refused(p.tryLeave(storage.Leave{Seq: old, Drain: true, Deregister: true}), storage.ErrStaleSeq)
		})
	}
	// One sequence for all three kinds of call.
	p.seq = 10
	p.report()
	w.equal("seq after a report", w.row(p).Seq, uint64(11))
	p.leave(storage.Leave{Drain: true})
	w.equal("seq after a leave", w.row(p).Seq, uint64(12))
	w.unchanged(func() {
		_, err := p.try(seq(12))
		w.refused(err, storage.ErrStaleSeq)
	})
}

func advertisesAnew(w *world) {
	p := w.join("node-a")
	registered := w.row(p)
	changed := daemon.Advert{
		Traits: node.Traits{Version: "v2", Address: "10.0.0.1:7070", Capacity: 9, Group: "billing", NoDaemons: true, Host: node.Host{BootID: "boot", PID: 42, Start: "123", Lock: "/run/lock"}},
		Kinds:  []daemon.Kind{"emit:queue", "acme:mail"},
	}
	r := p.beat(advert(changed), after(0))
	w.equal("events", len(r.Events), 1)
	m := w.row(p)
	w.equal("traits", m.Traits, changed.Traits)
	w.holds(m.RegisteredAt.Equal(registered.RegisteredAt), "registered_at moved from %v to %v", registered.RegisteredAt, m.RegisteredAt)
	w.holds(m.Advert != registered.Advert, "the hash of another advert is the same")
	w.equal("runs emit:queue", w.snapshot().Advert(m).RunsKind("emit:queue"), true)

	p.leave(storage.Leave{Drain: true})
	p.beat(advert(plain))
	w.equal("state of a draining node that advertised", w.row(p).State, node.Draining)
}

func sharesAdverts(w *world) {
	one := daemon.Advert{Kinds: []daemon.Kind{"b", "a"}, Specs: []daemon.Spec{{ID: "b"}, {ID: "a", Instances: 3, Requires: map[string]string{"disk": "ssd"}}}}
	two := daemon.Advert{Kinds: []daemon.Kind{"a", "b"}, Specs: []daemon.Spec{one.Specs[1], one.Specs[0]}, Traits: node.Traits{Version: "v7"}}
	a, b, c := w.join("a", advert(one)), w.join("b", advert(two)), w.join("c")
	snap := w.snapshot()
	w.equal("hash of an equal advert", w.row(b).Advert, w.row(a).Advert)
	w.holds(w.row(c).Advert != w.row(a).Advert, "the hash of another advert is the same")
	w.equal("adverts in the snapshot", len(snap.Adverts), 2)
	for _, p := range []*peer{a, b} {
		w.equal("advert", string(snap.Advert(w.row(p)).Encode()), string(one.Encode()))
	}
	w.equal("advert", string(snap.Advert(w.row(c)).Encode()), string(plain.Encode()))
	w.equal("traits of one", w.row(a).Version, "")
	w.equal("traits of the other", w.row(b).Version, "v7")
}

func refusesSecondProcess(w *world) {
	first := w.join("node-a")
	second := first.again()
	w.unchanged(func() {
		_, err := second.try(advert(plain))
		w.refused(err, storage.ErrIDInUse)
		var inUse *storage.IDInUseError
		w.holds(errors.As(err, &inUse), "%v is no *IDInUseError", err)
		w.equal("holder", inUse.Holder, first.id)
		w.equal("id", inUse.ID, first.id.ID)
		w.holds(inUse.SeenAt.Equal(w.row(first).LastHeartbeatAt), "seen at %v, last heartbeat %v", inUse.SeenAt, w.row(first).LastHeartbeatAt)
	})
	// The first process is not disturbed, even if it registers again.
	first.beat(advert(plain))
}

// of is what a node of a cluster advertises.
func of(cluster string) edit {
	a := plain
	a.Traits.Cluster = cluster
	return advert(a)
}

func refusesOtherCluster(w *world) {
	w.equal("name of an empty store", w.snapshot().Cluster, "")
	nameless := w.join("nameless")
	w.equal("name after a node without one", w.snapshot().Cluster, "")
	first := w.join("first", of("production"))
	w.equal("name", w.snapshot().Cluster, "production")
	w.equal("name in the node's row", w.row(first).Cluster, "production")

	staging := w.unregistered("staging")
	refused := func(p *peer, edits ...edit) {
		w.Helper()
		w.unchanged(func() {
			_, err := p.try(append(edits, of("staging"))...)
			w.refused(err, storage.ErrOtherCluster)
			var other *storage.OtherClusterError
			w.holds(errors.As(err, &other), "%v is no *OtherClusterError", err)
			w.equal("the names", *other, storage.OtherClusterError{Store: "production", Node: "staging"})
		})
	}
	refused(staging)
	refused(staging, campaign(long)) // nor is it elected
	refused(first)                   // a member that suddenly names another cluster
	refused(first.again())           // ErrOtherCluster comes before ErrIDInUse
	w.unchanged(func() {
		_, err := first.try(seq(1), of("staging"))
		w.refused(err, storage.ErrStaleSeq)
	})

	staging.beat(of("production"))
	nameless.beat(advert(plain))
	first.leave(storage.Leave{Deregister: true})
	w.equal("name after the first node has left", w.snapshot().Cluster, "production")
}

func renames(w *world) {
	r, ok := w.Store.(storage.Renamer)
	w.holds(ok, "the store is no storage.Renamer")
	p := w.join("node-a", of("production"))
	rename := func(from, to string, ttl time.Duration) error { return r.RenameCluster(w.ctx, from, to, ttl) }
	w.unchanged(func() {
		w.refused(rename("production", "billing", long), storage.ErrNodesLive)
		w.refused(rename("staging", "billing", long), storage.ErrOtherCluster)
	})
	p.leave(storage.Leave{Deregister: true})
	w.unchanged(func() { w.refused(rename("staging", "billing", long), storage.ErrOtherCluster) })
	w.ok(rename("production", "billing", long))
	w.equal("name", w.snapshot().Cluster, "billing")
	_, err := w.unregistered("old").try(of("production"))
	w.refused(err, storage.ErrOtherCluster)
	w.join("new", of("billing"))
	w.ok(rename("billing", "invoices", 0)) // its last heartbeat is older than that
}

func reusesID(w *world) {
	l, _ := w.cluster(0)
	silent := w.join("silent")
	silent.again().beat(advert(plain), ttl(0)) // its last heartbeat is older than its TTL

	left := w.join("left")
	left.leave(storage.Leave{Deregister: true})
	left.again().beat(advert(plain))

	dead := w.join("dead")
	l.declareDead(dead)
	heir := dead.again()
	heir.beat(advert(plain))
	w.unchanged(func() {
		_, err := dead.try(advert(plain))
		w.refused(err, storage.ErrIDInUse)
	})
	w.equal("identity of the heir", w.row(heir).Identity, heir.id)
}

func sharesName(w *world) {
	a, b := w.join("twin"), w.join("twin")
	a.beat()
	b.beat()
	w.equal("rows", len(w.snapshot().Nodes), 2)
	w.holds(w.row(a).ID != w.row(b).ID, "two nodes have one ID")
}

func returns(w *world) {
	l, peers := w.cluster(2)
	p := peers[0]
	p.beat(seq(5), heard(4))
	p.seq = 5
	l.changeNode(storage.NodeChange{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation}, State: node.Late})
	peers[1].beat(ended(p))
	l.declareDead(p)
	w.unchanged(func() {
		_, err := p.try(seq(6))
		w.refused(err, storage.ErrNotRegistered)
		_, err = p.try(seq(5), advert(plain))
		w.refused(err, storage.ErrStaleSeq)
		_, err = w.Store.Report(w.ctx, storage.Report{Node: p.id, Seq: 6})
		w.refused(err, storage.ErrNotRegistered)
		w.refused(p.tryLeave(storage.Leave{Seq: 6, Drain: true}), storage.ErrNotRegistered)
	})
	head := w.snapshot().Head
	r := p.beat(seq(6), advert(plain), after(head))
	w.equal("events", len(r.Events), 1)
	w.equal("kind", r.Events[0].Kind, daemon.NodeRegistered)
	w.equal("reason", r.Events[0].Reason, "returned")
	m := w.row(p)
	w.equal("state", m.State, node.Live)
	w.equal("end reason", m.EndReason, "")
	w.equal("ended", m.EndedAt.IsZero(), true)
	w.equal("judged", m.LeaderState, node.State(""))
	w.equal("witnessed", m.ExitProven, false)
	w.equal("heard", m.ConfirmedSeq, uint64(4))
	w.holds(r.Now.Sub(m.RegisteredAt) <= r.Now.Sub(m.LastHeartbeatAt)+rounding, "registered_at %v is not of the return at %v", m.RegisteredAt, r.Now)
}

func staysGone(w *world) {
	p := w.join("node-a")
	p.leave(storage.Leave{Deregister: true, Reason: node.Shutdown})
	m := w.row(p)
	w.equal("state", m.State, node.Removed)
	w.equal("end reason", m.EndReason, "shutdown")
	w.equal("ended", m.EndedAt.IsZero(), false)
	w.unchanged(func() {
		_, err := p.try(advert(plain), seq(p.seq+100))
		w.refused(err, storage.ErrStaleSeq)
		_, err = p.try(seq(p.seq + 100))
		w.refused(err, storage.ErrNotRegistered)
	})

	// A tombstone that the leader made is sealed in the same way by the process's own word.
	l, peers := w.cluster(1)
	l.declareDead(peers[0])
	peers[0].leave(storage.Leave{Deregister: true})
	w.unchanged(func() {
		_, err := peers[0].try(advert(plain), seq(peers[0].seq+100))
		w.refused(err, storage.ErrStaleSeq)
	})
}

func stampsHeard(w *world) {
	p := w.join("node-a")
	at := w.row(p).ConfirmedAt
	before := w.snapshot().Now
	r := p.beat(heard(1))
	m := w.row(p)
	w.equal("heard", m.ConfirmedSeq, uint64(1))
	w.within("heard_at", m.ConfirmedAt, before, r.Now)
	w.holds(!m.ConfirmedAt.Before(at), "heard_at went back")
	at = m.ConfirmedAt
	for _, h := range []uint64{1, 0} {
		p.beat(heard(h))
		m = w.row(p)
		w.equal("heard", m.ConfirmedSeq, uint64(1))
		w.holds(m.ConfirmedAt.Equal(at), "heard_at moved without news")
	}
}

func keepsHighest(w *world) {
	p := w.join("node-a", highest(100, 200))
	want := func(term, generation int64) {
		w.Helper()
		m := w.row(p)
		w.equal("highest term", m.HighestTerm, term)
		w.equal("highest generation", m.HighestGeneration, generation)
	}
	p.beat(highest(50, 300))
	want(100, 300)
	p.beat(highest(150, 10))
	want(150, 300)
	p.beat(advert(plain))
	want(150, 300)
	for i, n := range []int64{400, 0} {
		_, err := w.Store.Report(w.ctx, storage.Report{Node: p.id, Seq: p.next(), HighestGeneration: n})
		w.ok(err)
		w.holds(w.row(p).HighestGeneration == 400, "report %d: highest generation is %d, want 400", i, w.row(p).HighestGeneration)
	}
}

func listsMembers(w *world) {
	l, peers := w.cluster(3)
	l.declareDead(peers[1])
	peers[2].leave(storage.Leave{Deregister: true})
	r := peers[0].beat(members)
	snap := w.snapshot()
	w.equal("members", r.Members, snap.Nodes)
	w.equal("number of members", len(r.Members), 4)
	for i := 1; i < len(r.Members); i++ {
		w.holds(r.Members[i-1].Incarnation < r.Members[i].Incarnation, "members are not sorted by incarnation")
	}
	w.holds(peers[0].beat().Members == nil, "members came without being asked for")
}

// hostile are texts that break naive quoting, encoding or length limits.
var hostile = []string{
	`O'Brien "the host" \ ; DROP TABLE node; --`,
	"узел-一-🛰️-é",
	"%s $1 ? :name @p {} ${x} `tick`",
	"tab\tnewline\nreturn\r",
	strings.Repeat("n", 253),
	strings.Repeat("長", 200),
	" leading and trailing ",
	`{"a,b",NULL} (x) \" "" \\`,
}

func keepsNames(w *world) {
	l, _ := w.cluster(0)
	for i, text := range hostile {
		a := daemon.Advert{
			Traits: node.Traits{Version: text, Address: text, Capacity: 1, Labels: map[string]string{text: text}, Host: node.Host{BootID: text, Lock: text}},
			Specs:  []daemon.Spec{{ID: "acme:x", Requires: map[string]string{text: text}}},
		}
		p := w.join(text, advert(a))
		m := w.row(p)
		w.equal("name", m.Name, text)
		w.equal("traits", m.Traits, a.Traits)
		w.equal("advert", string(w.snapshot().Advert(m).Encode()), string(a.Encode()))

		u := daemon.Unit{Daemon: "acme:names", Index: i}
		r := l.assign(u, p)
		w.equal("name of the holder", r.Holder.Name, text)
		w.equal("name of the holder in the reply", p.beat().Units[0].Holder.Name, text)
		out := p.report(storage.UnitReport{Unit: u, Generation: r.Generation, Step: daemon.Release, Reason: text, Error: text})
		w.equal("error", out[0].Record.Error, text)
		w.equal("reason", w.unit(u).Reason, text)
		last := w.history(w.snapshot().Head - 1)[0]
		w.equal("name in the event", last.Node, text)
		w.equal("reason in the event", last.Reason, text)
	}
	longest := daemon.ID("a" + strings.Repeat("b._:/-9z", 16)[:127])
	w.ok(longest.Validate())
	u := daemon.Unit{Daemon: longest, Index: daemon.MaxInstances - 1}
	r := l.assign(u, l.peer)
	w.equal("unit", w.unit(u).Unit, u)
	w.ok(w.Store.StampFence(w.ctx, r.Fence()))
	w.equal("units in the reply", len(l.beat().Units), 1)
}
