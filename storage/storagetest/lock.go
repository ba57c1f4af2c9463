package storagetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/storage"
)

var lockStories = []story{
	{"a free lock is taken", Locks, takesLock},
	{"a held lock is refused and its holder told", Locks, refusesHeldLock},
	{"asking again returns the same holding", Locks, acquiresAgain},
	{"a lock that stands as it was seen is taken by another, under a higher number", Locks, takesExpiredLock},
	{"a lock that has moved since it was seen is refused", Locks, refusesMovedLock},
	{"a holder extends its lock until it is taken", Locks, extendsLock},
	{"only the exact holding extends or releases", Locks, wantsExactLock},
	{"a released lock is free at once", Locks, releasesLock},
	{"numbers of a name never repeat, also after a sweep", Locks | Sweeps, lockNumbersGrow},
	{"locks of different names know nothing of each other", Locks, locksApart},
	{"the held locks are listed by name, a part at a time", Locks, listsLocks},
	{"of 16 that race for a lock one gets it", Locks, racesForLock},
}

func (w *world) locker() storage.Locker {
	w.Helper()
	l, ok := w.Store.(storage.Locker)
	w.holds(ok, "the store is no storage.Locker")
	return l
}

// owner makes the n-th owner's name.
func owner(n int) string { return uuid(3, n) }

func takesLock(w *world) {
	before := w.snapshot().Now
	l, err := w.locker().Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	w.within("now", l.Now, before, w.snapshot().Now)
	w.equal("lifetime", l.ExpiresAt.Sub(l.Now).Round(rounding), time.Minute)
	w.equal("name", l.Name, "lock")
	w.equal("owner", l.Owner, owner(1))
	w.holds(l.Number > 0, "number is %d", l.Number)
}

func refusesHeldLock(w *world) {
	held, err := w.locker().Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	for range 2 {
		got, err := w.locker().Acquire(w.ctx, "lock", owner(2), long, storage.Lock{})
		w.refused(err, storage.ErrLocked)
		w.equal("holder", got.Owner, owner(1))
		w.equal("number", got.Number, held.Number)
		w.holds(got.ExpiresAt.Equal(held.ExpiresAt), "expiry moved from %v to %v", held.ExpiresAt, got.ExpiresAt)
		w.holds(!got.Now.Before(held.Now), "the answer is older than the lock")
	}
}

func acquiresAgain(w *world) {
	first, err := w.locker().Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	again, err := w.locker().Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	w.equal("number", again.Number, first.Number)
	w.holds(!again.ExpiresAt.Before(first.ExpiresAt), "expiry moved back from %v to %v", first.ExpiresAt, again.ExpiresAt)
	w.holds(again.ExpiresAt.Sub(again.Now) > time.Minute-rounding, "time left is %v, asked for a minute", again.ExpiresAt.Sub(again.Now))
	w.holds(!again.SameRenewal(first), "asking again is no renewal: %d", again.Renewals)
}

func takesExpiredLock(w *world) {
	first, err := w.locker().Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	seen, err := w.locker().Acquire(w.ctx, "lock", owner(2), long, storage.Lock{})
	w.refused(err, storage.ErrLocked)
	w.equal("TTL of the holder", seen.TTL, time.Minute)
	second, err := w.locker().Acquire(w.ctx, "lock", owner(2), long, seen)
	w.ok(err)
	w.holds(second.Number > first.Number, "number %d after %d", second.Number, first.Number)
	w.equal("renewals", second.Renewals, int64(0))
	_, err = w.locker().Acquire(w.ctx, "lock", owner(1), time.Minute, first)
	w.refused(err, storage.ErrLocked)
	_, err = w.locker().Extend(w.ctx, first, time.Minute)
	w.refused(err, storage.ErrLockLost)
	w.refused(w.locker().Release(w.ctx, first), storage.ErrLockLost)
	_, err = w.locker().Extend(w.ctx, second, time.Minute)
	w.ok(err)
}

// refusesMovedLock: a lock that is over by the store's clock is not over. It may be taken only
// exactly as it was seen.
func refusesMovedLock(w *world) {
	l, err := w.locker().Acquire(w.ctx, "lock", owner(1), over, storage.Lock{})
	w.ok(err)
	renew := []func() (storage.Lock, error){
		func() (storage.Lock, error) { return w.locker().Extend(w.ctx, l, over) },
		func() (storage.Lock, error) { return w.locker().Acquire(w.ctx, "lock", owner(1), over, storage.Lock{}) },
		func() (storage.Lock, error) {
			if err := w.locker().Release(w.ctx, l); err != nil {
				return l, err
			}
			return w.locker().Acquire(w.ctx, "lock", owner(1), over, storage.Lock{})
		},
	}
	for _, moves := range renew {
		seen, err := w.locker().Acquire(w.ctx, "lock", owner(2), long, storage.Lock{})
		w.refused(err, storage.ErrLocked)
		l, err = moves()
		w.ok(err)
		w.holds(!l.SameRenewal(seen), "renewal %d of %d is what was seen before", l.Renewals, l.Number)
		_, err = w.locker().Acquire(w.ctx, "lock", owner(2), long, seen)
		w.refused(err, storage.ErrLocked)
	}
}

func extendsLock(w *world) {
	l, err := w.locker().Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	before := w.snapshot().Now
	longer, err := w.locker().Extend(w.ctx, l, long)
	w.ok(err)
	w.equal("number", longer.Number, l.Number)
	w.equal("owner", longer.Owner, l.Owner)
	w.equal("renewals", longer.Renewals, l.Renewals+1)
	w.equal("TTL", longer.TTL, long)
	w.within("expires_at", longer.ExpiresAt, before.Add(long), longer.Now.Add(long))
	// The lock is over by the store's clock, but nobody has taken it: the holder keeps it.
	_, err = w.locker().Extend(w.ctx, longer, over)
	w.ok(err)
	back, err := w.locker().Extend(w.ctx, longer, long)
	w.ok(err)
	w.equal("number", back.Number, l.Number)
}

func wantsExactLock(w *world) {
	l, err := w.locker().Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	for _, wrong := range []storage.Lock{
		{Name: "lock", Owner: owner(2), Number: l.Number},
		{Name: "lock", Owner: l.Owner, Number: l.Number + 1},
		{Name: "lock", Owner: l.Owner, Number: l.Number - 1},
		{Name: "lock2", Owner: l.Owner, Number: l.Number},
		{Name: "lock"},
	} {
		_, err := w.locker().Extend(w.ctx, wrong, long)
		w.refused(err, storage.ErrLockLost)
		w.refused(w.locker().Release(w.ctx, wrong), storage.ErrLockLost)
	}
	got, err := w.locker().Acquire(w.ctx, "lock", owner(2), long, storage.Lock{})
	w.refused(err, storage.ErrLocked)
	w.holds(got.ExpiresAt.Equal(l.ExpiresAt), "a refused call moved the expiry")
}

func releasesLock(w *world) {
	first, err := w.locker().Acquire(w.ctx, "lock", owner(1), long, storage.Lock{})
	w.ok(err)
	w.ok(w.locker().Release(w.ctx, first))
	w.refused(w.locker().Release(w.ctx, first), storage.ErrLockLost)
	_, err = w.locker().Extend(w.ctx, first, long)
	w.refused(err, storage.ErrLockLost)
	second, err := w.locker().Acquire(w.ctx, "lock", owner(2), long, storage.Lock{})
	w.ok(err)
	w.holds(second.Number > first.Number, "number %d after %d", second.Number, first.Number)
	w.ok(w.locker().Release(w.ctx, second))
	third, err := w.locker().Acquire(w.ctx, "lock", owner(2), long, storage.Lock{})
	w.ok(err)
	w.holds(third.Number > second.Number, "number %d of a new holding after %d", third.Number, second.Number)
}

// sweepLocks removes every lock that was released.
func (w *world) sweepLocks() int {
	w.Helper()
	n, err := w.sweep().SweepLocks(w.ctx, w.sweeper(), over, 1000)
	w.ok(err)
	return n
}

func lockNumbersGrow(w *world) {
	last := map[string]storage.Lock{}
	for i := range 12 {
		name := []string{"a", "b"}[i%2]
		l, err := w.locker().Acquire(w.ctx, name, owner(i), long, last[name])
		w.ok(err)
		w.holds(l.Number > last[name].Number, "%s: number %d after %d", name, l.Number, last[name].Number)
		last[name] = l
		if i%3 != 0 {
			continue
		}
		w.ok(w.locker().Release(w.ctx, l))
		if i%4 > 1 {
			w.holds(w.sweepLocks() > 0, "nothing was swept")
		}
	}
}

func locksApart(w *world) {
	for i, name := range append(hostile, "a", "A", "a ", "") {
		l, err := w.locker().Acquire(w.ctx, name, owner(i), long, storage.Lock{})
		w.ok(err)
		w.equal("name", l.Name, name)
		_, err = w.locker().Acquire(w.ctx, name, owner(100+i), long, storage.Lock{})
		w.refused(err, storage.ErrLocked)
	}
}

func listsLocks(w *world) {
	list := func(after string, limit int) []storage.Lock {
		found, err := w.locker().Locks(w.ctx, after, limit)
		w.ok(err)
		return found
	}
	w.equal("locks of a new store", len(list("", 10)), 0)
	// In the order of their bytes, which a database's collation need not have.
	names := []string{"A-b", "Z", "a b", "a-b", "é"}
	held := map[string]storage.Lock{}
	for i, name := range slices.Backward(names) {
		l, err := w.locker().Acquire(w.ctx, name, owner(i), time.Minute, storage.Lock{})
		w.ok(err)
		held[name] = l
	}
	var got []string
	for after := ""; ; {
		part := list(after, 2)
		if len(part) == 0 {
			break
		}
		w.holds(len(part) <= 2, "%d locks, at most 2 were asked for", len(part))
		for _, l := range part {
			got, after = append(got, l.Name), l.Name
			was := held[l.Name]
			w.holds(l.Owner == was.Owner && l.Number == was.Number && l.TTL == was.TTL && l.ExpiresAt.Equal(was.ExpiresAt), "%+v is listed as %+v", was, l)
			w.holds(!l.Now.Before(was.Now), "the list is older than the lock: %v, %v", l.Now, was.Now)
		}
	}
	w.equal("names", fmt.Sprint(got), fmt.Sprint(names))
	extended, err := w.locker().Extend(w.ctx, held["Z"], long)
	w.ok(err)
	w.ok(w.locker().Release(w.ctx, held["a-b"]))
	rest := list("", 10)
	w.equal("locks after a release", len(rest), len(names)-1)
	w.equal("renewals", rest[1].Renewals, extended.Renewals)
	w.equal("TTL", rest[1].TTL, long)
}

func racesForLock(w *world) {
	second, ok := w.Second.(storage.Locker)
	w.holds(ok, "the second handle is no storage.Locker")
	for round := range 5 {
		name := fmt.Sprint("race-", round)
		var mu sync.Mutex
		var winners []storage.Lock
		w.together(16, func(i int) {
			via := []storage.Locker{w.locker(), second}[i%2]
			l, err := via.Acquire(w.ctx, name, owner(i), long, storage.Lock{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				winners = append(winners, l)
			case !errors.Is(err, storage.ErrLocked):
				w.Errorf("acquire: %v", err)
			}
		})
		w.equal("winners", len(winners), 1)
	}
}
