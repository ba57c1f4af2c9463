package memory

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/daemon"
)

// gate makes Stamp wait for the transactions that hold a unit's fence, and new ones wait behind
// a Stamp that waits: a stream of short transactions cannot keep a successor out for ever.
type gate struct {
	holders  int           // transactions between their check and their end
	stampers int           // stamps that wait for them
	moved    chan struct{} // closed when either number falls
}

// Stamp implements [storage.Store].
//
// The fence of a unit only grows, and only by Stamp: no leader and no heartbeat touches it. The
// stamp that is already there is harmless and waits for nobody.
func (s *Store) Stamp(ctx context.Context, f daemon.Fence) error {
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
		s.moveGate(f.Unit, g)
		if err != nil {
			return fmt.Errorf("stamp %s: %w", f, err)
		}
	}
	return s.state.checkFence(f)
}

// Fence tells whether effects of a run are accepted at this moment: a [daemon.StaleError] if
// not. An effect that must not be overtaken runs inside [Store.InTx].
func (s *Store) Fence(f daemon.Fence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.checkFence(f)
}

// InTx runs fn while holding the fence: until fn has returned, no later run can claim the unit.
// A run whose fence is refused does not run fn.
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
	s.moveGate(u, g)
}

// moveGate tells those who wait that a number fell, and forgets a gate nobody uses.
func (s *Store) moveGate(u daemon.Unit, g *gate) {
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

// checkFence accepts the run that has stamped the unit's fence last, and no other: a lower
// generation was overtaken, a higher one has not claimed yet, and who has not claimed may read
// what an earlier run is still about to change. Generation 0 is nobody's.
func (s *state) checkFence(f daemon.Fence) error {
	if held := s.fences[f.Unit]; held != f.Generation || f.Generation <= 0 {
		return &daemon.StaleError{Fence: f, Holds: held}
	}
	return nil
}
