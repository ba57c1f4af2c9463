package storagetest

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

var sweepStories = []story{
	{"old tombstones are removed, within the limit", Sweeps, sweepsNodes},
	{"adverts go with their last node", Sweeps, sweepsAdverts},
	{"adverts go once no node has them, even if no node is gone", Sweeps, sweepsFormerAdverts},
	{"events beyond a number are removed from the beginning", Sweeps, sweepsEvents},
	{"old events and fulfilled commands are removed", Sweeps, sweepsOldEvents},
	{"the newest events stay, however old they are said to be", Sweeps, keepsTheNewestEvents},
	{"locks that are over are removed", Sweeps | Locks, sweepsLocks},
	{"a sweep needs the sweeper's fence", Sweeps | Locks, sweepsFenced},
	{"a swept node may register anew", Sweeps, registersAfterSweep},
}

func (w *world) sweep() storage.Sweeper {
	w.Helper()
	s, ok := w.Store.(storage.Sweeper)
	w.holds(ok, "the store is no storage.Sweeper")
	return s
}

func sweepsNodes(w *world) {
	l, peers := w.cluster(5)
	f := w.sweeper()
	for _, p := range []*peer{peers[3], peers[1]} {
		p.leave(storage.Leave{Deregister: true})
	}
	l.declareDead(peers[4])
	head := w.snapshot().Head
	n, err := w.sweep().SweepNodes(w.ctx, f, long, 100)
	w.ok(err)
	w.equal("young tombstones removed", n, 0)
	w.equal("rows", len(w.snapshot().Nodes), 6)
	total := 0
	for _, want := range []int{2, 1, 0} {
		n, err := w.sweep().SweepNodes(w.ctx, f, over, 2)
		w.ok(err)
		w.equal("removed", n, want)
		total += n
	}
	w.equal("rows", len(w.snapshot().Nodes), 6-total)
	for _, m := range w.snapshot().Nodes {
		w.equal("present", m.Present(), true)
	}
	w.equal("head", w.snapshot().Head, head)
}

func sweepsAdverts(w *world) {
	a, b := w.join("a"), w.join("b")
	c := w.join("c", advert(daemon.Advert{Kinds: []daemon.Kind{"only:c"}}))
	a.leave(storage.Leave{Deregister: true})
	c.leave(storage.Leave{Deregister: true})
	_, err := w.sweep().SweepNodes(w.ctx, w.sweeper(), over, 100)
	w.ok(err)
	w.equal("advert of the one that stays", string(w.snapshot().Advert(w.row(b)).Encode()), string(plain.Encode()))
	again := w.join("d", advert(daemon.Advert{Kinds: []daemon.Kind{"only:c"}}))
	w.equal("an advert that comes back", w.snapshot().Advert(w.row(again)).RunsKind("only:c"), true)
}

// sweepsFormerAdverts: a node that changes what it advertises leaves texts behind, which go although no tombstone does.
func sweepsFormerAdverts(w *world) {
	p := w.join("a")
	for i := range 10 {
		p.beat(advert(daemon.Advert{Kinds: []daemon.Kind{daemon.Kind(fmt.Sprint("acme:k", i))}}))
	}
	n, err := w.sweep().SweepNodes(w.ctx, w.sweeper(), over, 100)
	w.ok(err)
	w.equal("removed", n, 0)
	snap := w.snapshot()
	w.equal("adverts", len(snap.Adverts), 1)
	w.equal("the one that it has now", snap.Advert(w.row(p)).RunsKind("acme:k9"), true)
	p.beat(advert(plain))
	w.equal("one that comes back", w.snapshot().Advert(w.row(p)).RunsKind("acme:reports"), true)
}

func sweepsEvents(w *world) {
	for i := range 10 {
		w.join(fmt.Sprintf("node-%d", i))
	}
	f := w.sweeper()
	for _, c := range []struct{ keep, limit, removed, oldest int }{
		{100, 100, 0, 1}, {8, 1, 1, 2}, {8, 100, 1, 3}, {8, 100, 0, 3}, {3, 2, 2, 5}, {3, 100, 3, 8}, {0, 100, 3, 0},
	} {
		n, err := w.sweep().SweepEvents(w.ctx, f, storage.Retention{Age: long, MaxEvents: c.keep}, c.limit)
		w.ok(err)
		w.equal("removed", n, c.removed)
		page, err := w.Store.Events(w.ctx, 0, 100)
		w.ok(err)
		w.equal("oldest", page.Oldest, int64(c.oldest))
		w.equal("head", page.Head, int64(10))
		for i, e := range page.Events {
			w.equal("number", e.Seq, int64(c.oldest+i))
		}
	}
}

func keepsTheNewestEvents(w *world) {
	for i := range 10 {
		w.join(fmt.Sprintf("node-%d", i))
	}
	f := w.sweeper()
	for _, c := range []struct {
		keep    storage.Retention
		limit   int
		removed int
	}{
		{storage.Retention{Age: over, MaxEvents: 100, MinEvents: 100}, 100, 0},
		{storage.Retention{Age: over, MaxEvents: 100, MinEvents: 8}, 1, 1},
		{storage.Retention{Age: over, MaxEvents: 100, MinEvents: 8}, 100, 1},
		{storage.Retention{Age: over, MaxEvents: 6, MinEvents: 8}, 100, 2}, // the upper bound wins
		{storage.Retention{Age: over, MaxEvents: 100}, 100, 6},
	} {
		n, err := w.sweep().SweepEvents(w.ctx, f, c.keep, c.limit)
		w.ok(err)
		w.equal("removed", n, c.removed)
	}
}

func sweepsOldEvents(w *world) {
	l, _ := w.cluster(0)
	f := w.sweeper()
	for i := range 3 {
		_, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, i), Kind: "other"})
		w.ok(err)
	}
	l.leave(storage.Leave{Command: uuid(4, 1)})
	n, err := w.sweep().SweepEvents(w.ctx, f, storage.Retention{Age: long, MaxEvents: 100}, 100)
	w.ok(err)
	w.equal("young ones removed", n, 0)
	n, err = w.sweep().SweepEvents(w.ctx, f, storage.Retention{Age: over, MaxEvents: 100}, 100)
	w.ok(err)
	w.equal("removed", n, 6) // five events and one command
	w.equal("open commands", len(w.snapshot().Commands), 2)
	c, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: "anew"})
	w.ok(err)
	w.equal("a command with a swept ID", c.Kind, daemon.CommandKind("anew"))
}

// sweepsLocks: of six locks that are over for long by the store's clock, only the three that were
// released are swept.
func sweepsLocks(w *world) {
	for i := range 6 {
		l, err := w.locker().Acquire(w.ctx, fmt.Sprint("lock-", i), owner(i), over, storage.Lock{})
		w.ok(err)
		if i%2 == 0 {
			w.ok(w.locker().Release(w.ctx, l))
		}
	}
	f := w.sweeper()
	for _, want := range []struct {
		age time.Duration
		n   int
	}{{long, 0}, {over, 2}, {over, 1}, {over, 0}} {
		n, err := w.sweep().SweepLocks(w.ctx, f, want.age, 2)
		w.ok(err)
		w.equal("removed", n, want.n)
	}
	for i := range 6 {
		_, err := w.locker().Acquire(w.ctx, fmt.Sprint("lock-", i), owner(33), long, storage.Lock{})
		if i%2 == 0 {
			w.ok(err)
		} else {
			w.refused(err, storage.ErrLocked)
		}
	}
}

func sweepsFenced(w *world) {
	p := w.join("node-a")
	p.leave(storage.Leave{Deregister: true})
	lock, err := w.locker().Acquire(w.ctx, "lock", owner(1), over, storage.Lock{})
	w.ok(err)
	w.ok(w.locker().Release(w.ctx, lock))
	f := w.sweeper()
	lower := f
	lower.Generation--
	for _, refused := range []daemon.Fence{lower, {}, {Unit: unit0, Generation: f.Generation}} {
		w.unchanged(func() {
			_, err := w.sweep().SweepNodes(w.ctx, refused, over, 100)
			w.refused(err, daemon.ErrStale)
			_, err = w.sweep().SweepEvents(w.ctx, refused, storage.Retention{Age: over, MaxEvents: 0}, 100)
			w.refused(err, daemon.ErrStale)
			_, err = w.sweep().SweepLocks(w.ctx, refused, over, 100)
			w.refused(err, daemon.ErrStale)
		})
	}
	next := f
	next.Generation++
	w.ok(w.Store.StampFence(w.ctx, next))
	_, err = w.sweep().SweepNodes(w.ctx, f, over, 100)
	w.refused(err, daemon.ErrStale)
	n, err := w.sweep().SweepNodes(w.ctx, next, over, 100)
	w.ok(err)
	w.equal("removed", n, 1)
}

func registersAfterSweep(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	l.assign(unit0, p)
	l.declareDead(p)
	_, err := w.sweep().SweepNodes(w.ctx, w.sweeper(), over, 100)
	w.ok(err)
	_, err = p.try()
	w.refused(err, storage.ErrNotRegistered)
	head := w.snapshot().Head
	r := p.beat(advert(plain))
	// The row and the event are new; the units still listed for the process are still its own.
	w.equal("units", len(r.Units), 1)
	e := w.history(head)
	w.equal("events", len(e), 1)
	w.equal("reason", e[0].Reason, "")
}
