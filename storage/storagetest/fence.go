package storagetest

import (
	"context"
	"errors"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

var fenceStories = []story{
	{"a stamp claims the unit from every lower generation", 0, stamps},
	{"each unit has a fence of its own", 0, stampsApart},
	{"only the run that stamped last may act", Tx, fencesEffects},
	{"a run is refused right after its successor has stamped", Tx, fencesSuccessor},
	{"a fence outlives its assignment", Tx, fenceOutlives},
	{"a stamp waits for a transaction that holds the fence", Tx, stampWaits},
	{"a stamp that waits ends with its context and leaves no trace", Tx, stampGivesUp},
	{"the fence is held by nobody after a failed transaction", Tx, releasesAfterFailure},
	{"heartbeats, reports and commits pass a held fence", Tx, fenceBlocksNoOther},
}

// fence is a fence of unit0.
func fence(generation int64) daemon.Fence { return daemon.Fence{Unit: unit0, Generation: generation} }

// stale ends the story unless err is a StaleError with these numbers.
func (w *world) stale(err error, f daemon.Fence, held int64) {
	w.Helper()
	w.refused(err, daemon.ErrStale)
	var stale *daemon.StaleError
	w.holds(errors.As(err, &stale), "%v is no *daemon.StaleError", err)
	w.equal("refused fence", *stale, daemon.StaleError{Fence: f, HeldGeneration: held})
}

// effect runs an effect in a transaction that holds the fence.
func (w *world) effect(f daemon.Fence) error {
	return w.InTx(w.ctx, f, func(context.Context) error { return nil })
}

func stamps(w *world) {
	head := w.snapshot().Head
	w.ok(w.Store.StampFence(w.ctx, fence(5)))
	w.ok(w.Store.StampFence(w.ctx, fence(5)))
	w.stale(w.Store.StampFence(w.ctx, fence(4)), fence(4), 5)
	w.ok(w.Store.StampFence(w.ctx, fence(9)))
	w.stale(w.Second.StampFence(w.ctx, fence(5)), fence(5), 9)
	w.stale(w.Store.StampFence(w.ctx, fence(8)), fence(8), 9)
	w.ok(w.Second.StampFence(w.ctx, fence(9)))
	w.equal("head", w.snapshot().Head, head)
	w.equal("units", len(w.snapshot().Units), 0) // a fence declares nothing
}

func stampsApart(w *world) {
	w.ok(w.Store.StampFence(w.ctx, fence(9)))
	for _, u := range []daemon.Unit{unit1, {Daemon: "acme:reports/0"}, {Daemon: "acme"}} {
		f := daemon.Fence{Unit: u, Generation: 1}
		w.ok(w.Store.StampFence(w.ctx, f))
		f.Generation = 0
		w.stale(w.Store.StampFence(w.ctx, f), f, 1)
	}
	w.ok(w.Store.StampFence(w.ctx, fence(9)))
}

func fencesEffects(w *world) {
	w.refused(w.effect(fence(3)), daemon.ErrStale) // no run has stamped
	w.ok(w.Store.StampFence(w.ctx, fence(3)))
	w.ok(w.effect(fence(3)))
	w.ok(w.Store.StampFence(w.ctx, fence(5)))
	w.stale(w.effect(fence(3)), fence(3), 5)
	w.stale(w.effect(fence(4)), fence(4), 5)
	w.ok(w.effect(fence(5)))
	w.stale(w.effect(fence(6)), fence(6), 5) // has not stamped: stamp, then read
	ran := false
	err := w.InTx(w.ctx, fence(4), func(context.Context) error { ran = true; return nil })
	w.refused(err, daemon.ErrStale)
	w.equal("the refused effect ran", ran, false)
}

func fencesSuccessor(w *world) {
	l, peers := w.cluster(2)
	old := l.bring(unit0, peers[0], daemon.Active)
	w.ok(w.Store.StampFence(w.ctx, old.Fence()))
	w.ok(w.effect(old.Fence()))
	l.change(on(old, daemon.Expire))
	now := l.assign(unit0, peers[1])
	w.ok(w.effect(old.Fence())) // reassigned, not stamped yet
	w.ok(w.Second.StampFence(w.ctx, now.Fence()))
	w.stale(w.effect(old.Fence()), old.Fence(), now.Generation)
	w.ok(w.effect(now.Fence()))
	w.stale(w.Store.StampFence(w.ctx, old.Fence()), old.Fence(), now.Generation)
}

func fenceOutlives(w *world) {
	l, peers := w.cluster(1)
	r := l.assign(unit0, peers[0])
	w.ok(w.Store.StampFence(w.ctx, r.Fence()))
	r = peers[0].step(r, daemon.Release)
	l.change(storage.Change{Unit: unit0, State: r.State, Generation: r.Generation, Retired: true})
	w.ok(w.effect(r.Fence()))
	lower := daemon.Fence{Unit: unit0, Generation: r.Generation - 1}
	w.stale(w.Store.StampFence(w.ctx, lower), lower, r.Generation)
}

// holdFence opens a transaction that holds the fence until release is called. release returns what
// the transaction returned.
func (w *world) holdFence(f daemon.Fence, result error) (release func() error) {
	w.Helper()
	entered, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- w.InTx(w.ctx, f, func(context.Context) error {
			close(entered)
			<-leave
			return result
		})
	}()
	select {
	case <-entered:
	case err := <-done:
		w.Fatalf("transaction of %s: %v", f, err)
	case <-w.ctx.Done():
		w.Fatalf("transaction of %s did not begin", f)
	}
	return func() error {
		close(leave)
		return <-done
	}
}

func stampWaits(w *world) {
	w.ok(w.Store.StampFence(w.ctx, fence(3)))
	release := w.holdFence(fence(3), nil)
	stamped := make(chan error, 1)
	go func() { stamped <- w.Second.StampFence(w.ctx, fence(5)) }()
	// A test cannot wait for something that must not happen. It gets the time of many reads to
	// happen.
	for range 50 {
		w.snapshot()
	}
	select {
	case err := <-stamped:
		w.Fatalf("stamped (%v) while a transaction held the fence", err)
	default:
	}
	w.ok(release())
	w.ok(<-stamped)
	w.stale(w.effect(fence(3)), fence(3), 5)
}

func stampGivesUp(w *world) {
	w.ok(w.Store.StampFence(w.ctx, fence(3)))
	release := w.holdFence(fence(3), nil)
	ctx, cancel := context.WithTimeout(w.ctx, briefly)
	defer cancel()
	err := w.Second.StampFence(ctx, fence(5))
	w.holds(err != nil && !errors.Is(err, daemon.ErrStale), "a stamp that waited beyond its context returned %v", err)
	w.ok(release())
	w.ok(w.effect(fence(3)))
	w.ok(w.Second.StampFence(w.ctx, fence(5)))
}

func releasesAfterFailure(w *world) {
	w.ok(w.Store.StampFence(w.ctx, fence(3)))
	boom := errors.New("boom")
	w.refused(w.holdFence(fence(3), boom)(), boom)
	w.refused(w.effect(fence(2)), daemon.ErrStale)
	w.ok(w.Second.StampFence(w.ctx, fence(4)))
	w.ok(w.effect(fence(4)))
}

func fenceBlocksNoOther(w *world) {
	l, peers := w.cluster(1)
	r := l.bring(unit0, peers[0], daemon.Active)
	w.ok(w.Store.StampFence(w.ctx, r.Fence()))
	if w.SerialWriters {
		return // the transaction makes every other writer wait: see SerialWriters
	}
	release := w.holdFence(r.Fence(), nil)
	peers[0].beat()
	l.beat(renew(l.term.Number, long))
	r = peers[0].step(r, daemon.Resume)
	r = l.change(on(r, daemon.Revoke))
	peers[0].step(r, daemon.Confirm)
	l.assign(unit0, peers[0])
	w.ok(release())
}
