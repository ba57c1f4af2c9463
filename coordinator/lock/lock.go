// Package lock gives one process at a time a named lock, on any store that keeps locks.
//
//	locks, err := lock.New(store, lock.Config{})
//	held, err := locks.Acquire(ctx, "nightly-report")   // waits for its turn
//	if err != nil { … }
//	defer held.Release(context.WithoutCancel(ctx))
//	err = report(held.Context(), held.Number())
//
// # Words
//
// A *holding* is one successful acquisition. Its *owner* is a name drawn for it, so a repeated
// call after a lost reply finds the same holding. Its *number* is higher than that of every
// holding of the same name before it, and never repeats. Its *time to live* (TTL) is how long
// others leave the lock to a holder that does not renew it.
//
// # Who may take it
//
// A lock that was released is free at once. One that was not is taken by the rule that elections
// use: who wants it must have seen the same number and the same count of renewals for the whole TTL
// of that holding, by a local clock that never steps, and the store gives it away only if it still
// stands exactly so. The store's clock has no part in this. Set forward, it gives no lock to a second
// holder; set back, it keeps no lock for a holder that is gone.
//
// # What is promised
//
//   - While the holder renews in time, nobody else gets the lock, whatever the store's clock does.
//
//   - [Held.Context] ends before anybody else can have the lock, as long as the process runs: at
//     the latest when the holder cannot believe in it any more,
//
//     beginning of the last answered call + TTL − margin(TTL)     margin(D) = 0.001·D + σ
//
//     by a local clock that counts suspend; σ bounds the latency of waking up and cancelling, and
//     the rest covers local clocks whose rates differ by 0.1 %. A slow call only shortens the belief.
//
//   - A waiter gets the lock of a holder that has died a TTL after it first saw the last renewal,
//     plus at most RetryMax·1.5 and a call. It saw the renewal soon after it happened if it was
//     waiting then; a process that asks for the first time waits for a whole TTL.
//
//   - The lock is renewed every TTL/3 until it is released, and a failed renewal is tried again
//     while there is time: an error means *unknown*, not *lost*.
//
//   - A waiter asks again after growing pauses with jitter, and when the present holder's time is
//     over.
//
// # The limits
//
// A process that has just started cannot tell how long ago a holder died: its first [Locks.TryAcquire]
// fails with storage.ErrLocked, and one that follows at least a TTL later, through the same [Locks],
// succeeds. Use Acquire with a deadline above the TTL where one call must be enough.
//
// A store that is replaced by an older copy of itself (a standby that lacked the last writes, a backup)
// may have lost a holding: the holder learns of it at its next renewal, up to Renew later. A pause that
// no clock of the machine counts (a hypervisor that stops and resumes a guest) is not seen by the
// holder. Both need a fence, as does the following.
//
// # What is not promised
//
// No lock can keep a process from acting late: one that is stopped (SIGSTOP, a long pause of the
// machine) between looking at its context and acting may act when another already holds the lock.
// What must not happen then has to be *fenced*: give [Held.Number] to whatever is acted upon, and
// let it refuse a number lower than the highest it has seen. On a store with fences, claim first
// and read afterwards: Stamp a fence of the number, then write inside InTx; see the example.
//
// Nobody is served in the order of asking, and a lock is not re-entrant.
package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/internal/bootclock"
	"github.com/emitd/emitd/storage"
)

// The causes with which a holding's context ends; ask with errors.Is(context.Cause(ctx), …).
// Another is storage.ErrLockLost: the store says that the lock is not held so any more.
var (
	// ErrReleased says that the holder released the lock.
	ErrReleased = errors.New("the lock was released")
	// ErrUntrusted says that no renewal was answered in time: others may have the lock soon.
	ErrUntrusted = errors.New("the lock was not renewed in time")
)

// Config configures locks. Its zero value is a good one.
type Config struct {
	// TTL is how long a lock stays taken after its holder has crashed; default 30 s. Shorter
	// frees it sooner and leaves less time for renewals that fail. Processes may differ in it: a
	// holding is judged by the TTL of its holder.
	TTL time.Duration
	// Renew is how often a holding is renewed; default TTL/3. Negative: never, the holder calls
	// Extend itself.
	Renew time.Duration
	// QueryTimeout bounds every call of the store; default the less of 5 s and TTL/6.
	QueryTimeout time.Duration
	// RetryMin and RetryMax bound the pauses of Acquire between two attempts, before jitter;
	// default 50 ms and 1 s. Longer is easier on the store and later after a release.
	RetryMin, RetryMax time.Duration
	// Wakeup (σ) is part of the margin; default 1 s, less for a TTL below 15 s: TTL/15.
	Wakeup time.Duration
	// Watch is how often the local clock is looked at, so that a suspend is noticed; default
	// 250 ms, less for a short TTL.
	Watch time.Duration
	// Clock reads the local clock, which must never step and should count the time the machine
	// is suspended; nil is the system's (CLOCK_BOOTTIME on Linux). Tests in a testing/synctest
	// bubble must set it, e.g. from time.Since.
	Clock func() time.Duration
	// Logger is told of renewals that fail; default slog.Default().
	Logger *slog.Logger
}

// withDefaults fills in what was left out.
func (c Config) withDefaults() Config {
	c.TTL = cmp.Or(c.TTL, 30*time.Second)
	c.Renew = cmp.Or(c.Renew, c.TTL/3)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, min(5*time.Second, c.TTL/6))
	c.RetryMin = cmp.Or(c.RetryMin, 50*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, max(time.Second, c.RetryMin))
	c.Wakeup = cmp.Or(c.Wakeup, min(time.Second, c.TTL/15))
	c.Watch = cmp.Or(c.Watch, min(250*time.Millisecond, max(c.Wakeup/2, time.Millisecond)))
	if c.Clock == nil {
		c.Clock = bootclock.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// trust is how long after the beginning of an answered call a holder may believe in it.
func (c Config) trust() time.Duration { return c.TTL - c.TTL/1000 - c.Wakeup }

// validate names the fields and values that quarrel.
func (c Config) validate() error {
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"TTL", c.TTL},
		{"QueryTimeout", c.QueryTimeout},
		{"RetryMin", c.RetryMin},
		{"Wakeup", c.Wakeup},
		{"Watch", c.Watch},
	} {
		if f.value <= 0 {
			return fmt.Errorf("%s is %v, want more than 0", f.name, f.value)
		}
	}
	need := c.QueryTimeout
	if c.Renew > 0 {
		need += c.Renew
	}
	switch {
	case c.RetryMax < c.RetryMin:
		return fmt.Errorf("the field RetryMax %v is below RetryMin %v", c.RetryMax, c.RetryMin)
	case c.Watch > c.Wakeup:
		return fmt.Errorf("the field Watch %v is above Wakeup %v: an end would be noticed too late", c.Watch, c.Wakeup)
	case c.trust() < need:
		return fmt.Errorf("the field TTL %v is too short: %v of it can be believed in, a renewal every %v that may take %v needs %v",
			c.TTL, c.trust(), c.Renew, c.QueryTimeout, need)
	}
	return nil
}

// Locks are the locks of a store. Its methods may be called from any goroutine.
type Locks struct {
	store storage.Locker
	cfg   Config

	mu   sync.Mutex
	seen map[string]sighting // locks of others, by name
}

// sighting is a holding of another, and since when it is seen unchanged, by the local clock.
type sighting struct {
	storage.Lock
	since time.Duration
}

// maxSeen bounds the memory of locks that were asked for and never got. To forget one means to watch
// its holder for another TTL.
const maxSeen = 10_000

// New returns the locks of a store. It starts nothing.
func New(store storage.Locker, cfg Config) (*Locks, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("locks: %w", err)
	}
	return &Locks{store: store, cfg: cfg, seen: map[string]sighting{}}, nil
}

// Acquire waits until it has the lock or ctx ends. What may pass by itself
// (storage.ErrUnavailable, a call without an answer) is tried again. The caller must Release what
// it gets. The end of ctx ends the wait, not the holding.
func (l *Locks) Acquire(ctx context.Context, name string) (*Held, error) {
	a := l.attempt(name)
	for pause := l.cfg.RetryMin; ; pause = min(2*pause, l.cfg.RetryMax) {
		held, wait, err := a.try(ctx)
		switch {
		case err == nil:
			return held, nil
		case ctx.Err() != nil:
			return nil, gaveUp(ctx, name, err)
		case !passes(err):
			return nil, fmt.Errorf("acquire lock %q: %w", name, err)
		}
		wait = min(max(wait, l.cfg.RetryMin), pause)
		if !sleep(ctx, wait/2+rand.N(wait)) {
			return nil, gaveUp(ctx, name, err)
		}
	}
}

// gaveUp says why the wait ended and what was waited for.
func gaveUp(ctx context.Context, name string, err error) error {
	return fmt.Errorf("acquire lock %q: %w (last answer: %w)", name, context.Cause(ctx), err)
}

// TryAcquire asks once. storage.ErrLocked says that another holds the lock, or that this process has
// not yet watched a dead holder for its TTL; after any other error the lock may be taken until its TTL
// is over.
func (l *Locks) TryAcquire(ctx context.Context, name string) (*Held, error) {
	held, _, err := l.attempt(name).try(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire lock %q: %w", name, err)
	}
	return held, nil
}

// attempt is one acquisition: all its calls carry one owner, so a call that was answered too
// late or not at all is found again by the next.
type attempt struct {
	*Locks
	name, owner string
}

func (l *Locks) attempt(name string) attempt { return attempt{l, name, uuid.NewString()} }

// try makes one call. While another holds the lock it returns how long that may last.
//
// The call does not end with ctx: whoever breaks off in the middle does not know whether it
// holds the lock, and would leave it taken for a TTL. It is bounded by QueryTimeout instead.
func (a attempt) try(ctx context.Context) (held *Held, wait time.Duration, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.QueryTimeout)
	defer cancel()
	began := a.cfg.Clock()
	row, err := a.store.Acquire(call, a.name, a.owner, a.cfg.TTL, a.expired(a.name))
	switch {
	case errors.Is(err, storage.ErrLocked):
		return nil, a.note(row), err
	case err != nil:
		return nil, 0, err
	}
	a.forget(a.name)
	if ctx.Err() != nil {
		// Nobody waits for it any more. If this fails, the TTL frees it.
		return nil, 0, errors.Join(ctx.Err(), a.store.Release(call, row))
	}
	trusted := began + a.cfg.trust()
	if a.cfg.Clock() >= trusted {
		return nil, a.cfg.RetryMin, errLate // the next call finds the same holding
	}
	return newHeld(ctx, a.Locks, row, trusted), 0, nil
}

// expired returns the holding of a name that was seen unchanged for its whole TTL, or none.
func (l *Locks) expired(name string) storage.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.seen[name]; ok && s.left(l.cfg.Clock()) <= 0 {
		return s.Lock
	}
	return storage.Lock{}
}

// note remembers a holding of another that the store has just shown, and returns how long it must
// still be seen unchanged before it may be taken.
func (l *Locks) note(row storage.Lock) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.cfg.Clock() // after the answer: what was stamped before it is at least that old
	s, ok := l.seen[row.Name]
	if !ok || !s.SameRenewal(row) {
		if len(l.seen) >= maxSeen {
			clear(l.seen)
		}
		s = sighting{row, now}
		l.seen[row.Name] = s
	}
	return s.left(now)
}

// left is how long the holding must still be seen unchanged.
func (s sighting) left(now time.Duration) time.Duration { return s.since + s.TTL - now }

// forget drops what was seen of a lock that this process holds now.
func (l *Locks) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, name)
}

var errLate = fmt.Errorf("%w: the answer came when the lock could not be trusted any more", storage.ErrUnavailable)

// passes reports whether asking again may help.
func passes(err error) bool {
	return errors.Is(err, storage.ErrLocked) || errors.Is(err, storage.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

// sleep waits, and reports whether it did so to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
