package storagetest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

var keyStories = []story{
	{"keys are added and removed in one step with one event", Keys, changesKeys},
	{"a repeated change changes nothing", Keys, changesKeysAgain},
	{"keys that cannot be names are refused, and nothing is changed", Keys, refusesKeys},
	{"a key whose unit is held goes on until it is free", Keys, removesHeldKey},
	{"only a change of keys retires a key", Keys, leaderKeepsKeys},
	{"units of daemons with one name in two groups are apart", Keys, keepsGroupsApart},
	{"keys of any printable text come back as they were", Keys | States, keepsKeys},
	{"a change by a run needs its fence", Keys, changesKeysFenced},
	{"a sweep deletes removed keys, and nothing else", Keys | States, sweepsKeys},
	{"a sweep of keys needs the sweeper's fence", Keys, sweepsKeysFenced},
	{"a key that was swept and comes back gets a higher generation", Keys, sweptKeyReturns},
}

func (w *world) keys() storage.KeyStore {
	w.Helper()
	s, ok := w.Store.(storage.KeyStore)
	w.holds(ok, "the store is no storage.KeyStore")
	return s
}

// tenants is the keyed daemon of most stories.
const tenants = daemon.ID("acme:tenants")

func tenant(key string) daemon.Unit { return daemon.Unit{Daemon: tenants, Key: key} }

// addKeys adds keys; n of them must be new.
func (w *world) addKeys(n int, keys ...string) {
	w.Helper()
	counts, err := w.keys().ChangeKeys(w.ctx, storage.KeyChange{Daemon: tenants, Add: keys})
	w.ok(err)
	w.equal("added and removed", counts, storage.KeyCounts{Added: n})
}

// removeKeys removes keys; n of them must have been there.
func (w *world) removeKeys(n int, keys ...string) {
	w.Helper()
	counts, err := w.keys().ChangeKeys(w.ctx, storage.KeyChange{Daemon: tenants, Remove: keys})
	w.ok(err)
	w.equal("added and removed", counts, storage.KeyCounts{Removed: n})
}

func changesKeys(w *world) {
	w.addKeys(2, "b", "a")
	counts, err := w.keys().ChangeKeys(w.ctx, storage.KeyChange{
		Daemon: tenants, Add: []string{"c", "a"}, Remove: []string{"b", "unknown"}, Actor: "alice", Reason: "it moved",
	})
	w.ok(err)
	w.equal("added and removed", counts, storage.KeyCounts{Added: 1, Removed: 1})
	var got []string
	for _, r := range w.snapshot().Units {
		w.equal("state", r.State, daemon.Unassigned)
		w.equal("generation", r.Generation, int64(0))
		w.holds(!r.Since.IsZero() && r.Reason != "", "the row has no time or reason: %+v", r)
		got = append(got, fmt.Sprint(r.Unit, " ", r.Retired))
	}
	w.equal("units", strings.Join(got, ", "), "acme:tenants~a false, acme:tenants~b true, acme:tenants~c false")
	events := w.history(0)
	w.equal("events", len(events), 2)
	e := events[1]
	w.equal("kind", e.Kind, daemon.UnitsChanged)
	w.equal("daemon, unit and reason", fmt.Sprint(e.Daemon, " ", e.Unit.IsZero(), " ", e.Reason), "acme:tenants true it moved")
	var detail struct {
		Actor          string
		Added, Removed int
		AddedKeys      []string `json:"added_keys"`
		RemovedKeys    []string `json:"removed_keys"`
	}
	w.ok(json.Unmarshal(e.Detail, &detail))
	w.equal("detail", fmt.Sprint(detail), "{alice 1 1 [c] [b]}")
}

func changesKeysAgain(w *world) {
	w.addKeys(2, "a", "b")
	w.removeKeys(1, "b")
	w.unchanged(func() {
		w.addKeys(0, "a")
		w.removeKeys(0, "b", "c")
		w.addKeys(0)
	})
	w.addKeys(1, "b")
	w.equal("retired", w.unit(tenant("b")).Retired, false)
}

func refusesKeys(w *world) {
	w.addKeys(1, "a")
	many := make([]string, storage.MaxKeyChanges+1)
	for i := range many {
		many[i] = fmt.Sprint("key-", i)
	}
	w.unchanged(func() {
		for _, c := range []storage.KeyChange{
			{Daemon: tenants, Add: []string{"good", ""}},
			{Daemon: tenants, Add: []string{"good", strings.Repeat("x", 1<<20)}},
			{Daemon: tenants, Add: []string{"good", "new\nline"}},
			{Daemon: tenants, Add: []string{"good", "bad\xff"}},
			{Daemon: tenants, Add: []string{"good", " space"}},
			{Daemon: tenants, Add: []string{"good", "good"}},
			{Daemon: tenants, Add: []string{"good"}, Remove: []string{"good"}},
			{Daemon: tenants, Remove: []string{"a", "\x00"}},
			{Daemon: tenants, Add: many},
			{Daemon: "Bad ID", Add: []string{"good"}},
			{Daemon: daemon.ID(strings.Repeat("x", 1<<20)), Add: []string{"good"}},
		} {
			counts, err := w.keys().ChangeKeys(w.ctx, c)
			w.holds(err != nil && len(err.Error()) < 1000, "%d keys of %.20q: %.1000v, want a short error", len(c.Add), c.Daemon, err)
			w.equal("added and removed", counts, storage.KeyCounts{})
		}
	})
}

func removesHeldKey(w *world) {
	l, peers := w.cluster(1)
	w.addKeys(1, "a")
	r := l.bring(tenant("a"), peers[0], daemon.Active)
	w.equal("holder", r.Holder, peers[0].id)
	w.removeKeys(1, "a")
	now := w.unit(tenant("a"))
	r.Retired = true
	w.equal("the row after the removal", now, r)
	reply := peers[0].beat()
	w.equal("units of the holder", len(reply.Units), 1)
	r = l.change(on(now, daemon.Revoke))
	w.addKeys(1, "a") // it comes back while it drains
	now = w.unit(tenant("a"))
	w.equal("retired, state and generation", fmt.Sprint(now.Retired, now.State, now.Generation), fmt.Sprint(false, daemon.Revoking, r.Generation))
	r = peers[0].step(now, daemon.Confirm)
	again := l.assign(tenant("a"), peers[0])
	w.holds(again.Generation > r.Generation, "the generation is %d after %d", again.Generation, r.Generation)
}

func leaderKeepsKeys(w *world) {
	l, peers := w.cluster(1)
	w.addKeys(2, "a", "b")
	w.removeKeys(1, "b")
	for _, key := range []string{"a", "b"} {
		r := w.unit(tenant(key))
		l.commit(storage.Change{Unit: r.Unit, Generation: r.Generation, State: r.State, Retired: !r.Retired})
		w.equal("retired", w.unit(tenant(key)).Retired, r.Retired)
	}
	l.commit(storage.Change{Unit: tenant("b")})
	w.equal("retired", w.unit(tenant("b")).Retired, true)
	r := l.bring(tenant("a"), peers[0], daemon.Active)
	r = l.change(on(r, daemon.Expire, func(c *storage.Change) { c.Retired = true }))
	w.equal("retired", r.Retired, false)
}

func keepsGroupsApart(w *world) {
	l, peers := w.cluster(1)
	var units []daemon.Unit
	for _, id := range []daemon.ID{tenants, tenants.In("billing"), tenants.In("shop")} {
		counts, err := w.keys().ChangeKeys(w.ctx, storage.KeyChange{Daemon: id, Add: []string{"k"}})
		w.ok(err)
		w.equal("added", counts.Added, 1)
		units = append(units, daemon.Unit{Daemon: id}, daemon.Unit{Daemon: id, Key: "k"})
	}
	for i, u := range units {
		r := l.bring(u, peers[0], daemon.Active)
		w.ok(w.Store.StampFence(w.ctx, r.Fence()))
		last := w.history(w.snapshot().Head - 1)[0]
		w.equal("event", fmt.Sprint(last.Daemon, " ", last.Unit), fmt.Sprint(u.Daemon, " ", u))
		w.equal("units of the holder", len(peers[0].beat().Units), i+1)
	}
	_, err := w.keys().ChangeKeys(w.ctx, storage.KeyChange{Daemon: tenants.In("shop"), Remove: []string{"k"}})
	w.ok(err)
	for i, r := range w.snapshot().Units {
		w.equal("unit", r.Unit, units[i])
		w.equal("removed", r.Retired, i == len(units)-1)
	}
}

func keepsKeys(w *world) {
	l, peers := w.cluster(1)
	keys := []string{"7", "a b", "a/0", "a@7", "a~b", "ünï→", `"quoted" 'k' \ {x} $1 %s`, strings.Repeat("k", daemon.MaxKey)}
	w.addKeys(len(keys), keys...)
	w.addKeys(0, keys...)
	l.declare(daemon.Unit{Daemon: tenants}, daemon.Unit{Daemon: tenants, Index: 7}, daemon.Unit{Daemon: "acme:tenants-2"})
	w.equal("units", len(w.snapshot().Units), len(keys)+3)
	for i := 1; i < len(keys)+3; i++ {
		a, b := w.snapshot().Units[i-1].Unit, w.snapshot().Units[i].Unit
		w.holds(a.Compare(b) < 0, "%s comes before %s", a, b)
	}
	for _, key := range keys {
		r := l.bring(tenant(key), peers[0], daemon.Active)
		w.equal("unit", r.Unit, tenant(key))
		w.ok(w.Store.StampFence(w.ctx, r.Fence()))
		w.ok(w.save(r.Fence(), 1, key, daemon.Event{Kind: "test.saved"}))
		w.left(r.Fence(), 1, key)
		last := w.history(w.snapshot().Head - 1)[0]
		w.equal("event", fmt.Sprint(last.Kind, " ", last.Daemon, " ", last.Unit), fmt.Sprint("test.saved ", tenants, " ", tenant(key)))
		if w.InTx != nil {
			w.ok(w.InTx(w.ctx, r.Fence(), func(context.Context) error { return nil }))
		}
	}
	held := peers[0].beat().Units
	w.equal("units of the holder", len(held), len(keys))
}

func changesKeysFenced(w *world) {
	l, peers := w.cluster(1)
	r := l.bring(unit0, peers[0], daemon.Active)
	change := storage.KeyChange{Daemon: tenants, Add: []string{"a"}, Fence: r.Fence()}
	stale := func(held int64) {
		w.Helper()
		w.unchanged(func() {
			_, err := w.keys().ChangeKeys(w.ctx, change)
			w.stale(err, change.Fence, held)
		})
	}
	stale(0) // not stamped yet
	w.ok(w.Store.StampFence(w.ctx, r.Fence()))
	counts, err := w.keys().ChangeKeys(w.ctx, change)
	w.ok(err)
	w.equal("added", counts.Added, 1)
	change.Add = []string{"b"}
	next := r.Fence()
	next.Generation++
	w.ok(w.Store.StampFence(w.ctx, next))
	stale(next.Generation)
}

func sweepsKeys(w *world) {
	l, peers := w.cluster(1)
	w.addKeys(6, "a", "b", "c", "d", "e", "f")
	l.declare(daemon.Unit{Daemon: tenants, Index: 1})
	l.change(storage.Change{Unit: daemon.Unit{Daemon: tenants, Index: 1}, State: daemon.Unassigned, Retired: true})
	r := l.bring(tenant("a"), peers[0], daemon.Active)
	w.ok(w.Store.StampFence(w.ctx, r.Fence()))
	w.ok(w.save(r.Fence(), 1, "a"))
	w.removeKeys(4, "a", "b", "c", "d")
	f := w.sweeper()
	sweep := func(want int, left string) {
		w.Helper()
		n, err := w.keys().SweepUnits(w.ctx, f, over, 2)
		w.ok(err)
		w.equal("swept", n, want)
		var got []string
		for _, r := range w.snapshot().Units {
			got = append(got, r.Unit.Key)
		}
		w.equal("left", strings.Join(got, ","), left)
	}
	n, err := w.keys().SweepUnits(w.ctx, f, long, 100)
	w.ok(err)
	w.equal("swept of those removed a moment ago", n, 0)
	n, err = w.keys().SweepUnits(w.ctx, f, over, 0)
	w.ok(err)
	w.equal("swept with a limit of 0", n, 0)
	sweep(2, ",a,d,e,f")
	sweep(1, ",a,e,f") // a is still held
	w.equal("revision of the state", w.state(tenant("a")).Revision, int64(1))
	r = l.change(on(w.unit(tenant("a")), daemon.Revoke))
	peers[0].step(r, daemon.Confirm)
	sweep(1, ",e,f")
	w.equal("revision of the state", w.state(tenant("a")).Revision, int64(0))
	w.stale(w.save(r.Fence(), 2, "too late"), r.Fence(), 0)
	sweep(0, ",e,f")
}

func sweepsKeysFenced(w *world) {
	w.addKeys(1, "a")
	w.removeKeys(1, "a")
	f := w.sweeper()
	lower := f
	lower.Generation--
	for _, refused := range []daemon.Fence{lower, {}, {Unit: tenant("a"), Generation: f.Generation}} {
		w.unchanged(func() {
			_, err := w.keys().SweepUnits(w.ctx, refused, over, 100)
			w.refused(err, daemon.ErrStale)
		})
	}
}

// sweptKeyReturns: the row and the fence of a key are deleted, and so are all nodes that know its generation. The key comes
// back in the same term, and its generation is higher nevertheless. So is that of a fence stamp above its row.
func sweptKeyReturns(w *world) {
	l, peers := w.cluster(1)
	w.addKeys(2, "a", "b")
	r := l.bring(tenant("a"), peers[0], daemon.Active)
	for range 3 { // the generations are far above the term
		r = peers[0].step(r, daemon.Resume)
	}
	w.ok(w.Store.StampFence(w.ctx, r.Fence()))
	stamped := daemon.Fence{Unit: tenant("b"), Generation: r.Generation + 100}
	w.ok(w.Store.StampFence(w.ctx, stamped))
	w.removeKeys(2, "a", "b")
	r = l.change(on(w.unit(tenant("a")), daemon.Revoke))
	peers[0].step(r, daemon.Confirm)
	f := w.sweeper()
	n, err := w.keys().SweepUnits(w.ctx, f, over, 100)
	w.ok(err)
	w.equal("swept", n, 2)
	w.addKeys(2, "a", "b")
	for _, key := range []string{"a", "b"} {
		again := l.assign(tenant(key), peers[0])
		w.holds(again.Generation > stamped.Generation, "the generation of %s is %d after %d", key, again.Generation, stamped.Generation)
		w.ok(w.Store.StampFence(w.ctx, again.Fence()))
	}
	w.stale(w.Store.StampFence(w.ctx, r.Fence()), r.Fence(), w.unit(tenant("a")).Generation)
}
