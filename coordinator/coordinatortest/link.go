package coordinatortest

import (
	"context"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// state is the state of a node's connection to the store.
type state int

const (
	up   state = iota
	down       // calls do not reach the store
	deaf       // calls reach it, but their answers do not come back
)

// link is a node's connection to the store.
type link struct {
	store *memory.Store

	mu    sync.Mutex
	state state
}

var (
	_ storage.Store   = (*link)(nil)
	_ storage.Watcher = (*link)(nil)
	_ storage.Locker  = (*link)(nil)
	_ storage.Sweeper = (*link)(nil)

	_ daemon.StateStore = (*link)(nil)
	_ storage.KeyStore  = (*link)(nil)
	_ storage.Recorder  = (*link)(nil)
)

func (l *link) set(s state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
}

func (l *link) now() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// through calls f over the link. As in a broken network, a call that was cut off does not come back
// when the network does: its caller waits until its own deadline.
func through[T any](ctx context.Context, l *link, f func(context.Context) (T, error)) (T, error) {
	var none T
	if l.now() == down {
		<-ctx.Done()
		return none, ctx.Err()
	}
	v, err := f(ctx)
	if l.now() != up {
		<-ctx.Done()
		return none, ctx.Err()
	}
	return v, err
}

func through0(ctx context.Context, l *link, f func(context.Context) error) error {
	_, err := through(ctx, l, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

func (l *link) Heartbeat(ctx context.Context, beat storage.Heartbeat) (*storage.Reply, error) {
	return through(ctx, l, func(ctx context.Context) (*storage.Reply, error) { return l.store.Heartbeat(ctx, beat) })
}

func (l *link) Report(ctx context.Context, r storage.Report) ([]storage.Outcome, error) {
	return through(ctx, l, func(ctx context.Context) ([]storage.Outcome, error) { return l.store.Report(ctx, r) })
}

func (l *link) Leave(ctx context.Context, leave storage.Leave) error {
	return through0(ctx, l, func(ctx context.Context) error { return l.store.Leave(ctx, leave) })
}

func (l *link) Commit(ctx context.Context, c storage.Commit) ([]storage.Outcome, error) {
	return through(ctx, l, func(ctx context.Context) ([]storage.Outcome, error) { return l.store.Commit(ctx, c) })
}

func (l *link) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	return through(ctx, l, l.store.Snapshot)
}

func (l *link) Events(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	return through(ctx, l, func(ctx context.Context) (*storage.EventPage, error) { return l.store.Events(ctx, after, limit) })
}

func (l *link) StampFence(ctx context.Context, f daemon.Fence) error {
	return through0(ctx, l, func(ctx context.Context) error { return l.store.StampFence(ctx, f) })
}

func (l *link) Submit(ctx context.Context, c storage.Command) (*storage.Command, error) {
	return through(ctx, l, func(ctx context.Context) (*storage.Command, error) { return l.store.Submit(ctx, c) })
}

// Watch passes wake-ups on while the link is up.
func (l *link) Watch(ctx context.Context, wake func(storage.WakeUp)) error {
	return l.store.Watch(ctx, func(w storage.WakeUp) {
		if l.now() == up {
			wake(w)
		}
	})
}

func (l *link) Acquire(ctx context.Context, name, owner string, ttl time.Duration, expired storage.Lock) (storage.Lock, error) {
	return through(ctx, l, func(ctx context.Context) (storage.Lock, error) {
		return l.store.Acquire(ctx, name, owner, ttl, expired)
	})
}

func (l *link) Extend(ctx context.Context, held storage.Lock, ttl time.Duration) (storage.Lock, error) {
	return through(ctx, l, func(ctx context.Context) (storage.Lock, error) { return l.store.Extend(ctx, held, ttl) })
}

func (l *link) Release(ctx context.Context, held storage.Lock) error {
	return through0(ctx, l, func(ctx context.Context) error { return l.store.Release(ctx, held) })
}

func (l *link) Locks(ctx context.Context, after string, limit int) ([]storage.Lock, error) {
	return through(ctx, l, func(ctx context.Context) ([]storage.Lock, error) { return l.store.Locks(ctx, after, limit) })
}

func (l *link) SweepNodes(ctx context.Context, f daemon.Fence, age time.Duration, limit int) (int, error) {
	return through(ctx, l, func(ctx context.Context) (int, error) { return l.store.SweepNodes(ctx, f, age, limit) })
}

func (l *link) SweepEvents(ctx context.Context, f daemon.Fence, keep storage.Retention, limit int) (int, error) {
	return through(ctx, l, func(ctx context.Context) (int, error) { return l.store.SweepEvents(ctx, f, keep, limit) })
}

func (l *link) SweepLocks(ctx context.Context, f daemon.Fence, age time.Duration, limit int) (int, error) {
	return through(ctx, l, func(ctx context.Context) (int, error) { return l.store.SweepLocks(ctx, f, age, limit) })
}

func (l *link) SweepUnits(ctx context.Context, f daemon.Fence, age time.Duration, limit int) (int, error) {
	return through(ctx, l, func(ctx context.Context) (int, error) { return l.store.SweepUnits(ctx, f, age, limit) })
}

func (l *link) ChangeKeys(ctx context.Context, change storage.KeyChange) (storage.KeyCounts, error) {
	return through(ctx, l, func(ctx context.Context) (storage.KeyCounts, error) { return l.store.ChangeKeys(ctx, change) })
}

func (l *link) UnitStates(ctx context.Context, of daemon.Unit) ([]daemon.UnitState, error) {
	return through(ctx, l, func(ctx context.Context) ([]daemon.UnitState, error) { return l.store.UnitStates(ctx, of) })
}

func (l *link) SaveUnitState(ctx context.Context, f daemon.Fence, state daemon.UnitState, events ...daemon.Event) error {
	return through0(ctx, l, func(ctx context.Context) error { return l.store.SaveUnitState(ctx, f, state, events...) })
}

func (l *link) Record(ctx context.Context, e daemon.Event) error {
	return through0(ctx, l, func(ctx context.Context) error { return l.store.Record(ctx, e) })
}
