package storagetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

var wakeStories = []story{
	{"a watch ends with its context", Wakes, endsWatch},
	{"a node is told of what it gets", Wakes, wakesHolder},
	{"everybody is told of a free term", Wakes, wakesCandidates},
	{"the leader is told of reports", Wakes, wakesLeader},
	{"the leader is told of commands, which its next heartbeat reads", Wakes, wakesForCommand},
}

// watch collects wake-ups until the test ends.
func (w *world) watch() <-chan storage.WakeUp {
	w.Helper()
	waker, ok := w.Second.(storage.Watcher)
	w.holds(ok, "the second handle is no storage.Watcher")
	ctx, cancel := context.WithCancel(w.ctx)
	wakeUps, done := make(chan storage.WakeUp, 1024), make(chan error, 1)
	go func() {
		done <- waker.Watch(ctx, func(wakeUp storage.WakeUp) {
			select {
			case wakeUps <- wakeUp:
			default:
			}
		})
	}()
	w.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("watch returned %v, want its context's error", err)
		}
	})
	return wakeUps
}

// awaitWakeUp repeats act until a wanted wake-up arrives. A wake-up may be lost, so one act is not enough. A
// store that never sends one is broken.
func (w *world) awaitWakeUp(wakeUps <-chan storage.WakeUp, wanted func(storage.WakeUp) bool, act func()) {
	w.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	again := time.NewTicker(briefly)
	defer again.Stop()
	act()
	for {
		select {
		case wakeUp := <-wakeUps:
			if wanted(wakeUp) {
				return
			}
		case <-again.C:
			act()
		case <-deadline.C:
			w.Fatal("no wake-up came")
		}
	}
}

// concerns reports whether a wake-up is for the node.
func (p *peer) concerns(wakeUp storage.WakeUp) bool {
	return len(wakeUp.Nodes) == 0 || slices.Contains(wakeUp.Nodes, p.id.Incarnation)
}

// passes reports whether a wake-up makes the node, which leads, make a pass.
func (p *peer) passes(wakeUp storage.WakeUp) bool {
	return p.concerns(wakeUp) && (len(wakeUp.Nodes) == 0 || wakeUp.Leader)
}

// beats reports whether a wake-up makes the node send a heartbeat, also if it leads.
func (p *peer) beats(wakeUp storage.WakeUp) bool {
	return p.concerns(wakeUp) && (!wakeUp.Leader || len(wakeUp.Nodes) != 1)
}

func endsWatch(w *world) {
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	waker, ok := w.Store.(storage.Watcher)
	w.holds(ok, "the store is no storage.Watcher")
	err := waker.Watch(ctx, func(storage.WakeUp) {})
	w.refused(err, context.Canceled)
	w.watch()
}

func wakesHolder(w *world) {
	l, peers := w.cluster(1)
	wakeUps := w.watch()
	w.awaitWakeUp(wakeUps, peers[0].concerns, func() {
		if r := w.unit(unit0); r.State != "" && !r.State.IsFree() {
			l.change(on(r, daemon.Expire))
		}
		l.assign(unit0, peers[0])
	})
}

func wakesCandidates(w *world) {
	l, peers := w.cluster(1)
	wakeUps := w.watch()
	w.awaitWakeUp(wakeUps, peers[0].concerns, func() {
		if !w.snapshot().Term.Held() {
			l.term = l.lead()
		}
		l.leave(storage.Leave{Resign: l.term.Number})
	})
}

func wakesLeader(w *world) {
	l, peers := w.cluster(1)
	l.declare(unit0)
	wakeUps := w.watch()
	w.awaitWakeUp(wakeUps, l.passes, func() { peers[0].step(l.assign(unit0, peers[0]), daemon.Release) })
}

// wakesForCommand: a pass of the leader does not read commands, so a command needs a wake-up for a
// heartbeat. The first wake-up may be the one with which a watch begins.
func wakesForCommand(w *world) {
	l, _ := w.cluster(1)
	wakeUps, n := w.watch(), 0
	for range 2 {
		w.awaitWakeUp(wakeUps, l.beats, func() {
			n++
			_, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, n), Kind: daemon.CommandResign})
			w.ok(err)
		})
	}
}
