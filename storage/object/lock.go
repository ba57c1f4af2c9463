package object

import (
	"context"
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// Acquire implements [storage.Locker]. If another owner holds the lock, it is taken over only if its row still equals
// expired. The caller passes as expired the row that it has seen unchanged for the row's whole TTL.
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration, expired storage.Lock) (l storage.Lock, err error) {
	_, err = s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		l, err = c.acquire(name, owner, ttl, expired, now)
		return err == nil, err
	}})
	return l, wrapErr(err, "acquire lock %q", name)
}

// Extend implements [storage.Locker].
func (s *Store) Extend(ctx context.Context, held storage.Lock, ttl time.Duration) (l storage.Lock, err error) {
	_, err = s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		row, ok := c.heldLock(held)
		if !ok {
			return false, storage.ErrLockLost
		}
		row.Renewals++
		l = c.hold(row, ttl, now)
		return true, nil
	}})
	return l, wrapErr(err, "extend lock %q", held.Name)
}

// Release implements [storage.Locker].
func (s *Store) Release(ctx context.Context, held storage.Lock) error {
	_, err := s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		row, ok := c.heldLock(held)
		if !ok {
			return false, storage.ErrLockLost
		}
		row.Owner, row.ExpiresAt = "", now
		c.Locks[row.Name] = row
		return true, nil
	}})
	return wrapErr(err, "release lock %q", held.Name)
}

// Locks implements [storage.Locker].
func (s *Store) Locks(ctx context.Context, after string, limit int) ([]storage.Lock, error) {
	c, err := s.readCluster(ctx)
	if err != nil {
		return nil, wrapErr(err, "list locks")
	}
	return rules.HeldLocks(c.Locks, after, limit, s.now()), nil
}

// acquire gives the lock to the owner under a new number, if it is free or its row still equals expired. Owner names
// one acquisition, so asking again for a lock that it holds renews the same holding.
func (c *cluster) acquire(name, owner string, ttl time.Duration, expired storage.Lock, now time.Time) (storage.Lock, error) {
	row := c.Locks[name]
	switch {
	case row.Free() || row.Owner != owner && row.SameRenewal(expired):
		number := storage.NextTermNumber(max(row.Number, c.LockFloor), now, 0)
		row = storage.Lock{Name: name, Owner: owner, Number: number}
	case row.Owner == owner:
		row.Renewals++
	default:
		row.Now = now
		return row, storage.ErrLocked
	}
	return c.hold(row, ttl, now), nil
}

// hold writes the row of a lock that is held for ttl from now on.
func (c *cluster) hold(row storage.Lock, ttl time.Duration, now time.Time) storage.Lock {
	row.TTL, row.ExpiresAt, row.Now = ttl, now.Add(ttl), now
	c.Locks[row.Name] = row
	return row
}

// heldLock finds the row that is held under exactly this owner and number.
func (c *cluster) heldLock(held storage.Lock) (storage.Lock, bool) {
	row, ok := c.Locks[held.Name]
	return row, ok && !row.Free() && row.Owner == held.Owner && row.Number == held.Number
}
