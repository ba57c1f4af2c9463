package memory

import (
	"context"
	"slices"
	"sync"

	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// hints are the hints of one step; they are sent as one.
type hints struct {
	everybody, leader bool
	nodes             []node.Incarnation
}

// wakeAll hints that every node may have something to do.
func (s *state) wakeAll() { s.hints.everybody = true }

// wakeNode hints that a node has something to do.
func (s *state) wakeNode(inc node.Incarnation) {
	if !slices.Contains(s.hints.nodes, inc) {
		s.hints.nodes = append(s.hints.nodes, inc)
	}
}

// wakeLeader hints that the leader, if there is one, has something to do.
func (s *state) wakeLeader() {
	if s.term.Held() {
		s.hints.leader = true
		s.wakeNode(s.term.Leader.Incarnation)
	}
}

// takeHint returns the hint of the step that ends, if there is one.
func (s *state) takeHint() (storage.Hint, bool) {
	h := s.hints
	s.hints = hints{}
	if h.everybody {
		return storage.Hint{}, true
	}
	return storage.Hint{Nodes: h.nodes, Leader: h.leader}, len(h.nodes) > 0
}

// watcher holds the hints that one Watch has not passed on yet.
type watcher struct {
	mu      sync.Mutex
	pending []storage.Hint
	ready   chan struct{} // capacity 1
}

// maxPending bounds the hints for a slow watcher. Beyond it, one hint for everybody replaces them
// all.
const maxPending = 64

// Watch implements [storage.Watcher]. A node gets a hint if it may have to campaign, or was given or
// lost a unit. The leader gets hints about reports, registrations, leaves and commands.
func (s *Store) Watch(ctx context.Context, wake func(storage.Hint)) error {
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
		for _, hint := range w.take() {
			wake(hint)
		}
	}
}

// wake passes a hint on. The store must be unlocked.
func (s *Store) wake(hint storage.Hint) {
	if s.cfg.OnWake != nil {
		s.cfg.OnWake(hint)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		w.add(hint)
	}
}

func (w *watcher) add(hint storage.Hint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := func(o storage.Hint) bool { return o.Leader == hint.Leader && slices.Equal(o.Nodes, hint.Nodes) }
	if slices.ContainsFunc(w.pending, same) {
		return
	}
	if w.pending = append(w.pending, hint); len(w.pending) > maxPending {
		w.pending = append(w.pending[:0], storage.Hint{Leader: true})
	}
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

func (w *watcher) take() []storage.Hint {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.pending
	w.pending = nil
	return out
}
