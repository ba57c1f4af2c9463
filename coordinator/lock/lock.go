// Package lock gives a named lock to one process at a time, on any store that supports locks.
//
//	locks, err := lock.New(store, lock.Config{})
//	held, err := locks.Acquire(ctx, "nightly-report")   // waits until the lock is free
//	if err != nil { … }
//	defer held.Release(context.WithoutCancel(ctx))
//	err = report(held.Context(), held.Number())
//
// # Terms used here
//
// A *holding* is one successful acquisition. Its *owner* is a name drawn for it, [Config].Holder and a
// UUID, so a call that is repeated after a lost reply finds the same holding. Its *number* is a fencing
// token: it is higher than that of every earlier holding of the same name, and never repeats. Its *time
// to live* (TTL) is how long others leave the lock to a holder that does not renew it.
//
// # Who may take a lock
//
// A lock that was released is free at once. A lock that was not released is taken by the same rule
// as a term in an election. The process that wants it must have observed the same number and the
// same count of renewals for the whole TTL of that holding, by a local clock that never steps. The
// store then gives the lock away only if the holding is still exactly the same. The store's clock
// has no influence. Set forward, it gives no lock to a second holder. Set back, it keeps no lock
// for a dead holder.
//
// # What is promised
//
//   - While the holder renews in time, nobody else gets the lock, whatever the store's clock does.
//
//   - [Held.Context] ends before anybody else can have the lock, as long as the process runs: at
//     the latest when the holding's validity ends,
//
//     beginning of the last answered call + TTL − margin(TTL)     margin(D) = 0.001·D + σ
//
//     by a local clock that counts suspended time. σ bounds the latency of waking up and cancelling;
//     the rest covers local clocks whose rates differ by 0.1 %. A slow call only shortens the validity.
//
//   - A waiter gets the lock of a dead holder one TTL after it first observed the last renewal, plus
//     at most RetryMax·1.5 and one call. If it was waiting at that renewal, it observed the renewal
//     soon after. A process that asks for the first time waits for a whole TTL.
//
//   - The lock is renewed every TTL/3 until it is released. A failed renewal is repeated while there
//     is time, because an error means *unknown*, not *lost*.
//
//   - A waiter asks again after growing pauses with jitter, and when the present holder's TTL is over.
//
// # The limits
//
// A process that has just started cannot tell how long ago a holder died. Its first
// [Locks.TryAcquire] fails with storage.ErrLocked. Another at least one TTL later, through the same
// [Locks], succeeds. Where one call must be enough, use Acquire with a deadline above the TTL.
//
// A store that is replaced by an older copy of itself (a standby without the last writes, a backup)
// may have lost a holding. The holder learns of it at its next renewal, up to Renew later. A pause
// that no clock of the machine counts (a hypervisor that stops and resumes a guest) is not noticed
// by the holder. Both cases need a fence, as does the following.
//
// # What is not promised
//
// No lock can keep a process from acting late. A process that is stopped (SIGSTOP, a long pause of
// the machine) between checking its context and acting may act while another process holds the
// lock. Actions for which this would do harm must be *fenced*: pass [Held.Number] to the resource,
// and let the resource refuse a number lower than the highest it has seen. On a store with fences,
// stamp a fence with the number first, then read, and write inside InTx; see the example.
//
// Locks are not given in the order of asking, and a lock is not re-entrant.
package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/bootclock"
	"github.com/emitd/emitd/storage"
)

// The causes with which a holding's context ends; test them with errors.Is(context.Cause(ctx), …).
// Another cause is storage.ErrLockLost: the store no longer has this holding.
var (
	// ErrReleased reports that the holder released the lock.
	ErrReleased = errors.New("the lock was released")
	// ErrNotRenewed reports that no renewal was answered in time. Others may soon have the lock.
	ErrNotRenewed = errors.New("the lock was not renewed in time")
)

// Config configures locks. Its zero value is a good default.
type Config struct {
	// TTL is how long a lock stays taken after its holder has crashed; default 30 s. A shorter TTL
	// frees it sooner and leaves less time for renewals that fail. Processes may have different
	// TTLs: each holding counts with the TTL of its holder.
	TTL time.Duration
	// Renew is how often a holding is renewed; default TTL/3. Negative means never: the holder
	// calls Extend itself.
	Renew time.Duration
	// QueryTimeout bounds every call to the store; default the lower of 5 s and TTL/6.
	QueryTimeout time.Duration
	// RetryMin and RetryMax bound the pauses of Acquire between two attempts, before jitter;
	// default 50 ms and 1 s. Longer pauses load the store less and notice a release later.
	RetryMin, RetryMax time.Duration
	// Holder names this process in the list of locks; default its host and process ID.
	Holder string
	// Wakeup (σ) is part of the margin; default the lower of 1 s and TTL/15.
	Wakeup time.Duration
	// ClockCheckInterval is how often the local clock is read, so that a suspend is noticed; default 250 ms,
	// less for a short TTL.
	ClockCheckInterval time.Duration
	// Clock reads the local clock. It must never step and should count suspended time. The default
	// is the system's clock (CLOCK_BOOTTIME on Linux). Tests in a testing/synctest bubble must set
	// it, e.g. from time.Since.
	Clock func() time.Duration
	// Logger is for warnings about failed renewals; default slog.Default().
	Logger *slog.Logger
}

// withDefaults replaces zero fields by their defaults.
func (c Config) withDefaults() Config {
	c.TTL = cmp.Or(c.TTL, 30*time.Second)
	c.Renew = cmp.Or(c.Renew, c.TTL/3)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, min(5*time.Second, c.TTL/6))
	c.RetryMin = cmp.Or(c.RetryMin, 50*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, max(time.Second, c.RetryMin))
	c.Wakeup = cmp.Or(c.Wakeup, min(time.Second, c.TTL/15))
	c.ClockCheckInterval = cmp.Or(c.ClockCheckInterval, min(250*time.Millisecond, max(c.Wakeup/2, time.Millisecond)))
	if c.Clock == nil {
		c.Clock = bootclock.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Holder == "" {
		host, _ := os.Hostname() // without a name, the process ID is all there is
		c.Holder = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	return c
}

// validity returns the validity of a holding, counted from the beginning of an answered call.
func (c Config) validity() time.Duration { return c.TTL - c.TTL/1000 - c.Wakeup }

// validate returns an error that names fields and values that are invalid or conflict.
func (c Config) validate() error {
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"TTL", c.TTL},
		{"QueryTimeout", c.QueryTimeout},
		{"RetryMin", c.RetryMin},
		{"Wakeup", c.Wakeup},
		{"ClockCheckInterval", c.ClockCheckInterval},
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
	case c.ClockCheckInterval > c.Wakeup:
		return fmt.Errorf("the field ClockCheckInterval %v is above Wakeup %v: the end of a holder would be noticed too late", c.ClockCheckInterval, c.Wakeup)
	case c.validity() < need:
		return fmt.Errorf("the field TTL %v is too short: its validity is %v, but a renewal every %v that may take %v needs %v",
			c.TTL, c.validity(), c.Renew, c.QueryTimeout, need)
	}
	return nil
}

// Locks gives access to the locks of a store. Its methods may be called from any goroutine.
type Locks struct {
	store   storage.Locker
	cfg     Config
	retries backoff.Policy // after a failed call, or while another process holds the lock

	mu       sync.Mutex
	observed map[string]observation // other processes' holdings, by name of the lock
}

// observation is another process's holding, and since when it was observed unchanged, by the local
// clock.
type observation struct {
	storage.Lock
	since time.Duration
}

// maxObserved bounds the memory for locks that were asked for and never got. When it is reached, all
// sightings are dropped, and their holders must be watched for another TTL.
const maxObserved = 10_000

// New returns the locks of a store. It starts no goroutine.
func New(store storage.Locker, cfg Config) (*Locks, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("locks: %w", err)
	}
	return &Locks{
		store: store, cfg: cfg, retries: backoff.Policy{First: cfg.RetryMin, Limit: cfg.RetryMax},
		observed: map[string]observation{},
	}, nil
}

// Acquire waits until it has the lock or ctx ends. Temporary failures (storage.ErrUnavailable, a
// call without an answer) are repeated. The caller must Release the holding. The end of ctx ends
// the wait, not the holding.
func (l *Locks) Acquire(ctx context.Context, name string) (*Held, error) {
	a := l.attempt(name)
	for attempts := 1; ; attempts++ {
		held, wait, err := a.try(ctx)
		switch {
		case err == nil:
			return held, nil
		case ctx.Err() != nil:
			return nil, gaveUp(ctx, name, err)
		case !isTemporary(err):
			return nil, fmt.Errorf("acquire lock %q: %w", name, err)
		}
		pause := l.retries.After(attempts)
		if wait > 0 {
			pause = min(pause, wait)
		}
		if backoff.Sleep(ctx, backoff.Jitter(pause)) != nil {
			return nil, gaveUp(ctx, name, err)
		}
	}
}

// gaveUp returns why the wait ended, with the last answer.
func gaveUp(ctx context.Context, name string, err error) error {
	return fmt.Errorf("acquire lock %q: %w (last answer: %w)", name, context.Cause(ctx), err)
}

// TryAcquire asks once. storage.ErrLocked reports that another process holds the lock, or that this
// one has not yet watched a dead holder for its TTL. After any other error, the lock may be taken
// until its TTL is over.
func (l *Locks) TryAcquire(ctx context.Context, name string) (*Held, error) {
	held, _, err := l.attempt(name).try(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire lock %q: %w", name, err)
	}
	return held, nil
}

// acquisition is one acquisition. All its calls carry the same owner, so if an earlier call was
// answered too late or not at all, the next one finds its holding.
type acquisition struct {
	*Locks
	name, owner string
}

func (l *Locks) attempt(name string) acquisition {
	return acquisition{l, name, l.cfg.Holder + "/" + uuid.NewString()}
}

// try makes one call. If another process holds the lock, it returns how long to wait at most: until that may have ended.
//
// The call is bounded by QueryTimeout and does not end with ctx. A call that is broken off leaves
// unknown whether this process holds the lock, which would then stay taken for a TTL.
func (a acquisition) try(ctx context.Context) (held *Held, wait time.Duration, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.QueryTimeout)
	defer cancel()
	began := a.cfg.Clock()
	row, err := a.store.Acquire(call, a.name, a.owner, a.cfg.TTL, a.expired(a.name))
	switch {
	case errors.Is(err, storage.ErrLocked):
		return nil, max(a.observe(row), a.cfg.RetryMin), err
	case err != nil:
		return nil, 0, err
	}
	a.forget(a.name)
	if ctx.Err() != nil {
		// Nobody waits for the lock any more. If releasing fails, the TTL frees it.
		return nil, 0, errors.Join(ctx.Err(), a.store.Release(call, row))
	}
	trusted := began + a.cfg.validity()
	if a.cfg.Clock() >= trusted {
		return nil, a.cfg.RetryMin, errLate // the next call finds the same holding
	}
	return newHeld(ctx, a.Locks, row, trusted), 0, nil
}

// expired returns the holding of a name if it was observed unchanged for its whole TTL, else none.
func (l *Locks) expired(name string) storage.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.observed[name]; ok && s.left(l.cfg.Clock()) <= 0 {
		return s.Lock
	}
	return storage.Lock{}
}

// observe records the holding that the store has just shown. It returns how much longer the holding
// must stay unchanged before it may be taken.
func (l *Locks) observe(row storage.Lock) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.cfg.Clock() // after the answer: whatever was stamped before it is at least that old
	s, ok := l.observed[row.Name]
	if !ok || !s.SameRenewal(row) {
		if len(l.observed) >= maxObserved {
			clear(l.observed)
		}
		s = observation{row, now}
		l.observed[row.Name] = s
	}
	return s.left(now)
}

// left returns how much longer the holding must stay unchanged.
func (s observation) left(now time.Duration) time.Duration { return s.since + s.TTL - now }

// forget drops the observation of a lock that this process now holds.
func (l *Locks) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.observed, name)
}

var errLate = fmt.Errorf("%w: the answer came after the lock's validity had ended", storage.ErrUnavailable)

// isTemporary reports whether the error is temporary, so that asking again may help.
func isTemporary(err error) bool {
	return errors.Is(err, storage.ErrLocked) || errors.Is(err, storage.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}
