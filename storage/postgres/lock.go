package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/storage"
)

// Acquire implements [storage.Locker]. If another owner holds the lock, it is taken over only if its row still equals
// expired. The caller passes as expired the row that it has seen unchanged for the row's whole TTL.
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration, expired storage.Lock) (storage.Lock, error) {
	what := fmt.Sprintf("acquire lock %q", name)
	// A sweep may delete the row between the statement that inserts it and the one that locks it.
	// That can happen once but not repeatedly: a sweep deletes only locks released long ago.
	for range 3 {
		lock := storage.Lock{Name: name}
		var found, taken bool
		err := s.call(ctx, "acquire", writing, func(m *message) {
			m.do("lock_row", cleanText(name))
			m.do("lock_lock", cleanText(name))
			m.query(func(c *composite) error {
				found, taken = true, c.bool()
				lock.Owner, lock.Number, lock.Renewals = c.text(), c.int(), c.int()
				lock.TTL, lock.ExpiresAt, lock.Now = microseconds(c.int()), c.time(), c.time()
				return nil
			}, "acquire", cleanText(name), cleanText(owner), micros(ttl), expired.Number, expired.Renewals)
		})
		switch {
		case err != nil:
			return storage.Lock{}, s.fail(what, err)
		case found && taken:
			return lock, nil
		case found:
			return lock, s.fail(what, storage.ErrLocked)
		}
	}
	return storage.Lock{}, s.fail(what, &unavailable{"its row was swept again and again", context.DeadlineExceeded})
}

// Extend implements [storage.Locker].
func (s *Store) Extend(ctx context.Context, held storage.Lock, ttl time.Duration) (storage.Lock, error) {
	what := fmt.Sprintf("extend lock %q", held.Name)
	var found bool
	err := s.call(ctx, "extend", writing, func(m *message) {
		m.query(func(c *composite) error {
			found, held.Renewals, held.TTL = true, c.int(), microseconds(c.int())
			held.ExpiresAt, held.Now = c.time(), c.time()
			return nil
		}, "extend", cleanText(held.Name), cleanText(held.Owner), held.Number, micros(ttl))
	})
	if err == nil && !found {
		err = storage.ErrLockLost
	}
	if err != nil {
		return storage.Lock{}, s.fail(what, err)
	}
	return held, nil
}

// Release implements [storage.Locker].
func (s *Store) Release(ctx context.Context, held storage.Lock) error {
	found := false
	err := s.call(ctx, "release", writing, func(m *message) {
		m.count(func(n int64) { found = n == 1 }, "release", cleanText(held.Name), cleanText(held.Owner), held.Number)
	})
	if err == nil && !found {
		err = storage.ErrLockLost
	}
	return s.fail(fmt.Sprintf("release lock %q", held.Name), err)
}

// Locks implements [storage.Locker].
func (s *Store) Locks(ctx context.Context, after string, limit int) ([]storage.Lock, error) {
	var out []storage.Lock
	err := s.call(ctx, "locks", reading, func(m *message) {
		m.query(func(c *composite) error {
			out = append(out, storage.Lock{
				Name: c.text(), Owner: c.text(), Number: c.int(), Renewals: c.int(), TTL: microseconds(c.int()), ExpiresAt: c.time(), Now: c.time(),
			})
			return nil
		}, "locks", cleanText(after), limit)
	})
	if err != nil {
		return nil, s.fail("list locks", err)
	}
	return out, nil
}
