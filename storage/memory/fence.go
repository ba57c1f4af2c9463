package memory

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/daemon"
)

// gate makes StampFence wait for the transactions that hold a unit's fence. New transactions wait behind
// a StampFence that waits. Otherwise a stream of short transactions could keep the next run out for
// ever.
type gate struct {
	holders  int           // transactions between their check and their end
	stampers int           // stamps that wait for them
	moved    chan struct{} // closed when either number falls
}

// StampFence implements [storage.Store].
//
// The fence of a unit only grows, and only StampFence changes it: no leader and no heartbeat does.
// Stamping the generation that is already there is harmless and does not wait.
func (s *Store) StampFence(ctx context.Context, f daemon.Fence) error {
	if _, err := s.begin(ctx); err != nil {
		return fmt.Errorf("stamp %s: %w", f, err)
	}
	defer s.end()
	for f.Generation > s.state.fences[f.Unit] {
		g := s.gates[f.Unit]
		if g == nil || g.holders == 0 {
			s.state.fences[f.Unit] = f.Generation
			if s.cfg.OnStamp != nil {
				s.cfg.OnStamp(f)
			}
			return nil
		}
		g.stampers++
		err := s.waitGate(ctx, g)
		g.stampers--
		s.notifyGate(f.Unit, g)
		if err != nil {
			return fmt.Errorf("stamp %s: %w", f, err)
		}
	}
	return s.state.checkFence(f)
}

// Fence reports whether effects of a run are accepted at this moment: a [daemon.StaleError] if not.
// An effect that must not come after a later run's effects runs inside [Store.InTx].
func (s *Store) Fence(f daemon.Fence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.checkFence(f)
}

// InTx runs fn while it holds the fence: until fn has returned, no later run can stamp the unit. It
// does not call fn for a run whose fence is refused.
func (s *Store) InTx(ctx context.Context, f daemon.Fence, fn func() error) error {
	if err := s.enter(ctx, f); err != nil {
		return fmt.Errorf("transaction of %s: %w", f, err)
	}
	defer s.leaveGate(f.Unit)
	return fn()
}

// enter takes the fence for a transaction.
func (s *Store) enter(ctx context.Context, f daemon.Fence) error {
	if _, err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	for {
		if err := s.state.checkFence(f); err != nil {
			return err
		}
		g := s.gates[f.Unit]
		if g == nil {
			g = &gate{moved: make(chan struct{})}
			s.gates[f.Unit] = g
		}
		if g.stampers == 0 {
			g.holders++
			return nil
		}
		if err := s.waitGate(ctx, g); err != nil {
			return err
		}
	}
}

func (s *Store) leaveGate(u daemon.Unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gates[u]
	g.holders--
	s.notifyGate(u, g)
}

// notifyGate wakes the calls that wait for a number to fall, and deletes a gate that is not in use.
func (s *Store) notifyGate(u daemon.Unit, g *gate) {
	close(g.moved)
	g.moved = make(chan struct{})
	if g.holders == 0 && g.stampers == 0 && s.gates[u] == g {
		delete(s.gates, u)
	}
}

// waitGate unlocks the store until the gate moves or ctx ends.
func (s *Store) waitGate(ctx context.Context, g *gate) error {
	moved := g.moved
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-moved:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkFence accepts only the run that has stamped the unit's fence last. A run with a lower
// generation was superseded. One with a higher generation has not stamped yet, and might read data
// that an earlier run is still about to change. Generation 0 belongs to no run.
func (s *state) checkFence(f daemon.Fence) error {
	if held := s.fences[f.Unit]; held != f.Generation || f.Generation <= 0 {
		return &daemon.StaleError{Fence: f, HeldGeneration: held}
	}
	return nil
}
