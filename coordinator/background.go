package coordinator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// goOwned runs f, which must return soon after background has ended.
func (s *shell) goOwned(f func()) { s.goTracked(&s.owned, f) }

// goExternal runs f, which calls store or user code. That code should return soon after background has
// ended, but may not.
func (s *shell) goExternal(f func()) { s.goTracked(&s.external, f) }

// goTracked runs f on its own goroutine, counted in the group.
func (s *shell) goTracked(group *sync.WaitGroup, f func()) {
	group.Add(1)
	go func() {
		defer group.Done()
		f()
	}()
}

// wakes coalesces wake-ups from the store until the loop takes them. However many come, at most two
// inputs are ahead of the loop. Wake-ups for other nodes are dropped.
type wakes struct {
	self  node.Incarnation
	ready chan struct{} // capacity 1

	mu sync.Mutex
	// beat asks for a heartbeat, pass for a pass of the leader. nodes are woken together for a
	// heartbeat; empty = all nodes.
	beat, pass bool
	nodes      []node.Incarnation
}

// add adds a wake-up. It never blocks.
func (w *wakes) add(wakeUp storage.WakeUp) {
	if len(wakeUp.Nodes) > 0 && !slices.Contains(wakeUp.Nodes, w.self) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pass = w.pass || wakeUp.Leader
	if !wakeUp.Leader || len(wakeUp.Nodes) != 1 {
		if !w.beat || len(w.nodes) == 0 || len(wakeUp.Nodes) > 0 && len(wakeUp.Nodes) < len(w.nodes) {
			w.nodes = wakeUp.Nodes // a smaller group waits for less long
		}
		w.beat = true
	}
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// take returns one coalesced wake-up, if there is one. The leader's comes first.
func (w *wakes) take() (storage.WakeUp, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pass {
		w.pass = false
		return storage.WakeUp{Leader: true, Nodes: []node.Incarnation{w.self}}, true
	}
	wakeUp, some := storage.WakeUp{Nodes: w.nodes}, w.beat
	w.beat, w.nodes = false, nil
	return wakeUp, some
}

// watchStore listens for wake-ups from the store. If listening fails it begins again; until then,
// changes are found at the next heartbeat.
func (s *shell) watchStore() {
	waker, ok := s.c.store.(storage.Watcher)
	if !ok {
		return
	}
	for failures := 0; s.background.Err() == nil; {
		began := time.Now()
		err := waker.Watch(s.background, func(wakeUp storage.WakeUp) {
			s.wakes.add(wakeUp)
			s.c.wakeUps.notify()
		})
		if s.background.Err() != nil {
			return
		}
		if time.Since(began) > s.c.timing.HeartbeatInterval {
			failures = 0
		}
		failures++
		pause := streamRetries.Jittered(failures)
		s.c.asyncLog.Warn("listening for wake-ups of the store ended; starting again", "pause", pause, "error", err)
		_ = backoff.Sleep(s.background, pause)
	}
}

// watchHost reports exit evidence about other processes of this host to the member.
func (s *shell) watchHost() {
	if s.c.cfg.traits().Host.BootID == "" {
		return
	}
	ticker := time.NewTicker(exitCheckInterval(s.c.timing.HeartbeatInterval))
	defer ticker.Stop()
	for {
		select {
		case <-s.background.Done():
			return
		case <-ticker.C:
		case <-s.exits.peersAdded:
		}
		if ended := s.exits.ended(); len(ended) > 0 {
			s.c.inbox.push(member.ExitEvidence{Ended: ended})
		}
	}
}

// stopTimer is the time that a stop may take. It starts with begin; over ends with it.
type stopTimer struct {
	over  context.Context
	end   context.CancelFunc
	once  sync.Once
	timer *time.Timer
}

// newBound returns a bound whose time has not begun.
func newBound() *stopTimer {
	b := &stopTimer{}
	b.over, b.end = context.WithCancel(context.Background())
	return b
}

// begin starts the time, once.
func (b *stopTimer) begin(d time.Duration) { b.once.Do(func() { b.timer = time.AfterFunc(d, b.end) }) }

// cancel stops the timer and ends over.
func (b *stopTimer) cancel() {
	b.once.Do(func() {})
	if b.timer != nil {
		b.timer.Stop()
	}
	b.end()
}

// shutdown ends everything that is left after the loop, within StopTimeout and the bound of the stop.
func (s *shell) shutdown(b *stopTimer) error {
	c := s.c
	defer b.cancel()
	ctx, cancel := context.WithTimeout(b.over, c.timing.StopTimeout)
	defer cancel()
	if s.stopped == nil {
		s.warn("the stop took too long and is cut short: the cluster frees this node's units when its registration expires", "bound", c.stopBound())
	}
	c.lead.close()
	s.end()
	for _, f := range s.sup.Running() {
		s.sup.Cancel(f, &CancelledError{Fence: f, Cause: causeStopped})
	}
	c.observers.close()
	c.inbox.close()
	s.owned.Wait()
	if err := s.sup.Wait(ctx); err != nil {
		s.warn("the node stopped while agents were still running", "runs", s.sup.Running())
	}
	s.await(ctx, "leader-only work or calls of the store", &s.external)
	s.await(ctx, "hooks", &c.observers.done)
	c.logQueue.push(func() { c.log.Info("node stopped") })
	c.logQueue.close()
	s.await(ctx, "the log", &s.logDone)
	if s.stopped != nil && s.stopped.Err != nil {
		return fmt.Errorf("run: %w", runError(s.stopped.Err))
	}
	return nil
}

// causeStopped is the cancellation cause of runs that are left when the node has stopped.
const causeStopped = "node stopped"

// warn logs a warning without waiting for the log.
func (s *shell) warn(what string, args ...any) {
	s.c.logQueue.push(func() { s.c.log.Warn(what, args...) })
}

// await waits for a group that may never finish, at most until ctx ends.
func (s *shell) await(ctx context.Context, what string, group *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		group.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.warn("the node stopped while work was still running", "what", what)
	}
}
