package object

import (
	"context"
	"time"

	"github.com/emitd/emitd/storage"
)

// lock is the row of a named lock.
type lock struct {
	storage.Lock
	// TTL is how long a judge with a clock of its own must have seen the row unchanged.
	TTL time.Duration `json:"ttl"`
}

// Acquire implements [storage.Locker]. Without a common clock, a lock that another holds is free
// once this process has seen it unchanged for its TTL: whoever wants it asks again and again.
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (l storage.Lock, err error) {
	_, err = s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		l, err = c.acquire(name, owner, ttl, s.expires, now)
		return err == nil, err
	}})
	if err == nil {
		s.expires(lock{l, ttl}, l.Now) // who holds it has seen it
	}
	return l, attempted(err, "acquire lock %q", name)
}

// Extend implements [storage.Locker].
func (s *Store) Extend(ctx context.Context, held storage.Lock, ttl time.Duration) (l storage.Lock, err error) {
	_, err = s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		l, err = c.extend(held, ttl, now)
		return err == nil, err
	}})
	if err == nil {
		s.expires(lock{l, ttl}, l.Now)
	}
	return l, attempted(err, "extend lock %q", held.Name)
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
	return attempted(err, "release lock %q", held.Name)
}

// acquire gives a free or expired lock to the owner, under a new number. Owner names one
// acquisition: asking again for what it holds returns the same holding, its time counted anew.
func (c *cluster) acquire(name, owner string, ttl time.Duration, expires expiry, now time.Time) (storage.Lock, error) {
	row, ok := c.Locks[name]
	end := now
	if ok && row.Owner != "" {
		end = expires(row, now)
	}
	held := now.Before(end)
	if held && row.Owner != owner {
		answer := row.Lock
		if answer.Now = now; !now.Before(answer.ExpiresAt) {
			answer.ExpiresAt = end // its holder's clock says that it is over, and decides nothing
		}
		return answer, storage.ErrLocked
	}
	if !held {
		number := storage.NextNumber(max(row.Number, c.LockFloor), now, 0)
		row = lock{Lock: storage.Lock{Name: name, Owner: owner, Number: number}}
	}
	return c.hold(row, ttl, now), nil
}

// extend counts the lock's time anew. A holder whose time is over keeps the lock as long as nobody
// has taken it.
func (c *cluster) extend(held storage.Lock, ttl time.Duration, now time.Time) (storage.Lock, error) {
	row, ok := c.heldLock(held)
	if !ok {
		return storage.Lock{}, storage.ErrLockLost
	}
	return c.hold(row, ttl, now), nil
}

// hold writes the row of a lock that is held from now on for ttl.
func (c *cluster) hold(row lock, ttl time.Duration, now time.Time) storage.Lock {
	row.ExpiresAt, row.TTL = now.Add(ttl), ttl
	c.Locks[row.Name] = row
	answer := row.Lock
	answer.Now = now
	return answer
}

// heldLock finds the row that is held under exactly this owner and number.
func (c *cluster) heldLock(held storage.Lock) (lock, bool) {
	row, ok := c.Locks[held.Name]
	return row, ok && row.Owner != "" && row.Owner == held.Owner && row.Number == held.Number
}
