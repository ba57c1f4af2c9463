package memory

import (
	"context"
	"slices"
	"sync"

	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// wakeUps are the wake-ups of one step; they are sent as one.
type wakeUps struct {
	everybody, leader bool
	nodes             []node.Incarnation
}

// wakeAll notes that every node may have something to do.
func (s *state) wakeAll() { s.wakeUps.everybody = true }

// wakeNode notes that a node has something to do.
func (s *state) wakeNode(inc node.Incarnation) {
	if !slices.Contains(s.wakeUps.nodes, inc) {
		s.wakeUps.nodes = append(s.wakeUps.nodes, inc)
	}
}

// wakeLeader notes that the leader, if there is one, has something to do.
func (s *state) wakeLeader() {
	if s.term.Held() {
		s.wakeUps.leader = true
		s.wakeNode(s.term.Leader.Incarnation)
	}
}

// takeWakeUp returns the wake-up of the step that ends, if there is one.
func (s *state) takeWakeUp() (storage.WakeUp, bool) {
	h := s.wakeUps
	s.wakeUps = wakeUps{}
	if h.everybody {
		return storage.WakeUp{}, true
	}
	return storage.WakeUp{Nodes: h.nodes, Leader: h.leader}, len(h.nodes) > 0
}

// watcher holds the wake-ups that one Watch has not passed on yet.
type watcher struct {
	mu      sync.Mutex
	pending []storage.WakeUp
	ready   chan struct{} // capacity 1
}

// maxPending bounds the wake-ups for a slow watcher. Beyond it, one wake-up for everybody replaces them
// all.
const maxPending = 64

// Watch implements [storage.Watcher]. A node gets a wake-up if it may have to campaign, or was given or
// lost a unit. The leader gets wake-ups about reports, registrations, leaves and commands.
func (s *Store) Watch(ctx context.Context, wake func(storage.WakeUp)) error {
	w := &watcher{ready: make(chan struct{}, 1)}
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.ready:
		}
		for _, wakeUp := range w.take() {
			wake(wakeUp)
		}
	}
}

// wake passes a wake-up on. The store must be unlocked.
func (s *Store) wake(wakeUp storage.WakeUp) {
	if s.cfg.OnWake != nil {
		s.cfg.OnWake(wakeUp)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		w.add(wakeUp)
	}
}

func (w *watcher) add(wakeUp storage.WakeUp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := func(o storage.WakeUp) bool { return o.Leader == wakeUp.Leader && slices.Equal(o.Nodes, wakeUp.Nodes) }
	if slices.ContainsFunc(w.pending, same) {
		return
	}
	if w.pending = append(w.pending, wakeUp); len(w.pending) > maxPending {
		w.pending = append(w.pending[:0], storage.WakeUp{Leader: true})
	}
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

func (w *watcher) take() []storage.WakeUp {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.pending
	w.pending = nil
	return out
}
