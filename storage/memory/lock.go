package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// Acquire implements [storage.Locker]. If another owner holds the lock, it is taken over only if its row still equals
// expired. The caller passes as expired the row that it has seen unchanged for the row's whole TTL.
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration, expired storage.Lock) (storage.Lock, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return storage.Lock{}, fmt.Errorf("acquire lock %q: %w", name, err)
	}
	defer s.end()
	l, err := s.state.acquire(name, owner, ttl, expired, now)
	if err != nil {
		return l, fmt.Errorf("acquire lock %q: %w", name, err)
	}
	return l, nil
}

// Extend implements [storage.Locker].
func (s *Store) Extend(ctx context.Context, held storage.Lock, ttl time.Duration) (storage.Lock, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return storage.Lock{}, fmt.Errorf("extend lock %q: %w", held.Name, err)
	}
	defer s.end()
	l, err := s.state.extend(held, ttl, now)
	if err != nil {
		return storage.Lock{}, fmt.Errorf("extend lock %q: %w", held.Name, err)
	}
	return l, nil
}

// Release implements [storage.Locker].
func (s *Store) Release(ctx context.Context, held storage.Lock) error {
	now, err := s.begin(ctx)
	if err != nil {
		return fmt.Errorf("release lock %q: %w", held.Name, err)
	}
	defer s.end()
	if err := s.state.release(held, now); err != nil {
		return fmt.Errorf("release lock %q: %w", held.Name, err)
	}
	return nil
}

// Locks implements [storage.Locker].
func (s *Store) Locks(ctx context.Context, after string, limit int) ([]storage.Lock, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	defer s.end()
	return rules.HeldLocks(s.state.locks, after, limit, now), nil
}

// acquire gives the lock to the owner under a new number, if it is free or its row still equals expired. The owner is
// unique for each acquisition. If it asks again for a lock that it holds, its holding is renewed.
func (s *state) acquire(name, owner string, ttl time.Duration, expired storage.Lock, now time.Time) (storage.Lock, error) {
	row := s.locks[name]
	switch {
	case row.Free() || row.Owner != owner && row.SameRenewal(expired):
		row = storage.Lock{Name: name, Owner: owner, Number: s.nextLock(row.Number, now)}
	case row.Owner == owner:
		row.Renewals++
	default:
		row.Now = now
		return row, storage.ErrLocked
	}
	row.TTL, row.ExpiresAt, row.Now = ttl, now.Add(ttl), now
	s.locks[name] = row
	return row, nil
}

// nextLock returns the number of a new holding. It is higher than the name's last number and than that of any lock
// whose row was swept. It is at least the present time in milliseconds, so no number repeats after a failover that
// lost the newest rows.
func (s *state) nextLock(previous int64, now time.Time) int64 {
	return storage.NextTermNumber(max(previous, s.lockFloor), now, 0)
}

// extend renews a holding. A holder keeps the lock until another owner takes it.
func (s *state) extend(held storage.Lock, ttl time.Duration, now time.Time) (storage.Lock, error) {
	row, ok := s.heldLock(held)
	if !ok {
		return storage.Lock{}, storage.ErrLockLost
	}
	row.Renewals++
	row.TTL, row.ExpiresAt, row.Now = ttl, now.Add(ttl), now
	s.locks[row.Name] = row
	return row, nil
}

// release frees the lock. The row stays, with its number, until it is swept.
func (s *state) release(held storage.Lock, now time.Time) error {
	row, ok := s.heldLock(held)
	if !ok {
		return storage.ErrLockLost
	}
	row.Owner, row.ExpiresAt = "", now
	s.locks[row.Name] = row
	return nil
}

// heldLock finds the row that is held under exactly this owner and number.
func (s *state) heldLock(held storage.Lock) (storage.Lock, bool) {
	row, ok := s.locks[held.Name]
	return row, ok && !row.Free() && row.Owner == held.Owner && row.Number == held.Number
}
