// Package memory is the reference model of the cluster store: the contract of package storage as
// plain Go over maps and sorted slices, in one process.
//
// It has three uses. A person who wants to know what a store must do reads one file per method
// (heartbeat.go, report.go, leave.go, commit.go, …). Each method is a function of the state, the
// call and now, and writes nothing when it returns an error. No interleaving is possible, because
// one mutex makes every call one step. storage/storagetest compares the other backends with it,
// call by call. The simulator runs whole clusters on it.
//
// # What it promises
//
//   - Everything that package storage promises of a [storage.Store], a [storage.Watcher], a
//     [storage.Locker] and a [storage.Sweeper].
//   - Determinism: the same calls at the same times give the same answers, in the same order.
//     Nothing depends on the order of a map.
//   - Its only clock is [Config.Now]. That clock may step; the store stamps facts with whatever it
//     returns.
//   - Slices and maps in replies and snapshots are shared among readers and never written to again.
//     A caller that wants to change one copies it first.
//
// # What it does not promise
//
// Nothing outlives the process. [Store.Clone] and [Store.Restore] simulate an asynchronous failover
// that lost the newest rows. They do not make the store persistent.
package memory

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Config configures a store. Its zero value is a store on the wall clock that keeps
// [DefaultKeepEvents] events.
type Config struct {
	// StoreID is the store identity; default "memory". SetStoreID changes it.
	StoreID string
	// Now is the store's clock; default time.Now. Tests and the simulator replace it. It is called
	// once per call, with the store locked.
	Now func() time.Time
	// KeepEvents bounds the history; 0 counts as DefaultKeepEvents. A reader that is further behind
	// is told so (storage.Reply.EventsMissing) and reads the member list instead.
	KeepEvents int

	// OnEvent gets each event in the order of its number. OnStamp gets each fence that was stamped.
	// Both are called before the call that caused it returns and with the store locked, so they
	// must not call the store. OnWake gets each wake-up, after the store was unlocked. All three run
	// on the caller's goroutine; nil is skipped.
	OnEvent func(daemon.Event)
	OnStamp func(daemon.Fence)
	OnWake  func(storage.WakeUp)
}

// DefaultKeepEvents is how many events a store keeps by default.
const DefaultKeepEvents = 10_000

// Store is a cluster store in memory. Its methods may be called from any goroutine.
type Store struct {
	cfg Config

	mu              sync.Mutex
	state           *state
	storeID         string
	lastEventPassed int64                 // the last event that was passed to OnEvent
	gates           map[daemon.Unit]*gate // by which a fence stamp waits for users' transactions
	watchers        map[*watcher]struct{}
}

var (
	_ storage.Store   = (*Store)(nil)
	_ storage.Watcher = (*Store)(nil)
	_ storage.Locker  = (*Store)(nil)
	_ storage.Sweeper = (*Store)(nil)
	_ storage.Renamer = (*Store)(nil)
)

// Open returns an empty store.
func Open(cfg Config) *Store {
	cfg.StoreID = cmp.Or(cfg.StoreID, "memory")
	cfg.KeepEvents = cmp.Or(cfg.KeepEvents, DefaultKeepEvents)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{
		cfg:      cfg,
		state:    newState(),
		storeID:  cfg.StoreID,
		gates:    map[daemon.Unit]*gate{},
		watchers: map[*watcher]struct{}{},
	}
}

// begin starts one step. It locks the store and then reads the clock, so that facts are stamped
// inside the step. If the context has ended, it does nothing.
func (s *Store) begin(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	return s.cfg.Now(), nil
}

// end ends the step. It passes events to OnEvent in order, then shortens the history, then unlocks
// the store and sends the wake-up.
func (s *Store) end() {
	if s.cfg.OnEvent != nil {
		events := s.state.eventsAfter(s.lastEventPassed)
		for _, e := range events {
			s.cfg.OnEvent(e)
		}
	}
	s.lastEventPassed = s.state.head
	s.state.trimEvents(s.cfg.KeepEvents)
	wakeUp, ok := s.state.takeWakeUp()
	s.mu.Unlock()
	if ok {
		s.wake(wakeUp)
	}
}

// Heartbeat implements [storage.Store].
func (s *Store) Heartbeat(ctx context.Context, beat storage.Heartbeat) (*storage.Reply, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, attempted(err, "heartbeat of", beat.Node)
	}
	defer s.end()
	reply, err := s.state.heartbeat(beat, now)
	if err != nil {
		return nil, attempted(err, "heartbeat of", beat.Node)
	}
	reply.StoreID, reply.StoreSince = s.storeID, s.state.identify(s.storeID, now)
	return reply, nil
}

// Report implements [storage.Store].
func (s *Store) Report(ctx context.Context, report storage.Report) ([]storage.Outcome, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, attempted(err, "report of", report.Node)
	}
	defer s.end()
	if s.isAnother(report.StoreID) {
		return nil, attempted(storage.ErrStoreChanged, "report of", report.Node)
	}
	out, err := s.state.report(report, now)
	return out, attempted(err, "report of", report.Node)
}

// Leave implements [storage.Store].
func (s *Store) Leave(ctx context.Context, leave storage.Leave) error {
	now, err := s.begin(ctx)
	if err != nil {
		return attempted(err, "leave of", leave.Node)
	}
	defer s.end()
	return attempted(s.state.leave(leave, now), "leave of", leave.Node)
}

// Commit implements [storage.Store].
func (s *Store) Commit(ctx context.Context, commit storage.Commit) ([]storage.Outcome, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("commit of term %d: %w", commit.Term.Number, err)
	}
	defer s.end()
	if s.isAnother(commit.StoreID) {
		return nil, fmt.Errorf("commit of term %d: %w", commit.Term.Number, storage.ErrStoreChanged)
	}
	out, err := s.state.commit(commit, now)
	if err != nil {
		return nil, fmt.Errorf("commit of term %d: %w", commit.Term.Number, err)
	}
	return out, nil
}

// isAnother reports whether a caller decided from another store than this one. read is the store
// identity that the caller had read; "" matches any.
func (s *Store) isAnother(read string) bool {
	return read != "" && read != s.storeID
}

// Snapshot implements [storage.Store].
func (s *Store) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	defer s.end()
	snap := s.state.snapshot(now)
	snap.StoreID = s.storeID
	return snap, nil
}

// Events implements [storage.Store].
func (s *Store) Events(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	if _, err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("events after %d: %w", after, err)
	}
	defer s.end()
	return s.state.eventPage(after, limit), nil
}

// Submit implements [storage.Store].
func (s *Store) Submit(ctx context.Context, command storage.Command) (*storage.Command, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("submit command %s: %w", command.ID, err)
	}
	defer s.end()
	return s.state.submit(command, now), nil
}

// attempted says what failed; nil stays nil.
func attempted(err error, what string, who node.Identity) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q (incarnation %s): %w", what, who.Name, who.Incarnation, err)
}
