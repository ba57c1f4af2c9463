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

// watch collects hints until the test ends.
func (w *world) watch() <-chan storage.Hint {
	w.Helper()
	waker, ok := w.Second.(storage.Watcher)
	w.holds(ok, "the second handle is no storage.Watcher")
	ctx, cancel := context.WithCancel(w.ctx)
	hints, done := make(chan storage.Hint, 1024), make(chan error, 1)
	go func() {
		done <- waker.Watch(ctx, func(hint storage.Hint) {
			select {
			case hints <- hint:
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
	return hints
}

// hinted repeats act until a wanted hint arrives. A hint may be lost, so one act is not enough. A
// store that never sends one is broken.
func (w *world) hinted(hints <-chan storage.Hint, wanted func(storage.Hint) bool, act func()) {
	w.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	again := time.NewTicker(briefly)
	defer again.Stop()
	act()
	for {
		select {
		case hint := <-hints:
			if wanted(hint) {
				return
			}
		case <-again.C:
			act()
		case <-deadline.C:
			w.Fatal("no hint came")
		}
	}
}

// concerns reports whether a hint is for the node.
func (p *peer) concerns(hint storage.Hint) bool {
	return len(hint.Nodes) == 0 || slices.Contains(hint.Nodes, p.id.Incarnation)
}

// passes reports whether a hint makes the node, which leads, make a pass.
func (p *peer) passes(hint storage.Hint) bool {
	return p.concerns(hint) && (len(hint.Nodes) == 0 || hint.Leader)
}

// beats reports whether a hint makes the node send a heartbeat, also if it leads.
func (p *peer) beats(hint storage.Hint) bool {
	return p.concerns(hint) && (!hint.Leader || len(hint.Nodes) != 1)
}

func endsWatch(w *world) {
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	waker, ok := w.Store.(storage.Watcher)
	w.holds(ok, "the store is no storage.Watcher")
	err := waker.Watch(ctx, func(storage.Hint) {})
	w.refused(err, context.Canceled)
	w.watch()
}

func wakesHolder(w *world) {
	l, peers := w.cluster(1)
	hints := w.watch()
	w.hinted(hints, peers[0].concerns, func() {
		if r := w.unit(unit0); r.State != "" && !r.State.IsFree() {
			l.change(on(r, daemon.Expire))
		}
		l.assign(unit0, peers[0])
	})
}

func wakesCandidates(w *world) {
	l, peers := w.cluster(1)
	hints := w.watch()
	w.hinted(hints, peers[0].concerns, func() {
		if !w.snapshot().Term.Held() {
			l.term = l.lead()
		}
		l.leave(storage.Leave{Resign: l.term.Number})
	})
}

func wakesLeader(w *world) {
	l, peers := w.cluster(1)
	l.declare(unit0)
	hints := w.watch()
	w.hinted(hints, l.passes, func() { peers[0].step(l.assign(unit0, peers[0]), daemon.Release) })
}

// wakesForCommand: a pass of the leader does not read commands, so a command needs a hint for a
// heartbeat. The first hint may be the one with which a watch begins.
func wakesForCommand(w *world) {
	l, _ := w.cluster(1)
	hints, n := w.watch(), 0
	for range 2 {
		w.hinted(hints, l.beats, func() {
			n++
			_, err := w.Store.Submit(w.ctx, storage.Command{ID: uuid(4, n), Kind: daemon.CommandResign})
			w.ok(err)
		})
	}
}
