package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/storage"
)

// Acquire implements [storage.Locker]. Owner names one acquisition, so asking again for a lock that it holds renews
// the same holding. If another owner holds the lock, it is taken over only if its row still equals expired. The
// caller passes as expired the row that it has seen unchanged for the row's whole TTL.
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration, expired storage.Lock) (storage.Lock, error) {
	var l storage.Lock
	err := s.call(ctx, "acquire", func(st *step) (err error) {
		l, err = st.acquire(name, owner, ttl, expired)
		return err
	})
	if err != nil {
		return l, fmt.Errorf("acquire lock %q: %w", name, err)
	}
	return l, nil
}

// Extend implements [storage.Locker]. A holder keeps the lock until another owner takes it.
func (s *Store) Extend(ctx context.Context, held storage.Lock, ttl time.Duration) (storage.Lock, error) {
	var l storage.Lock
	err := s.call(ctx, "extend", func(st *step) error {
		if l = st.lock(held.Name); !sameHolding(l, held) {
			return storage.ErrLockLost
		}
		l.Renewals++
		l.TTL, l.ExpiresAt, l.Now = ttl, st.now.Add(ttl), st.now
		st.putLock(l)
		return nil
	})
	if err != nil {
		return storage.Lock{}, fmt.Errorf("extend lock %q: %w", held.Name, err)
	}
	return l, nil
}

// Release implements [storage.Locker]. The row stays, with its number, until it is swept.
func (s *Store) Release(ctx context.Context, held storage.Lock) error {
	err := s.call(ctx, "release", func(st *step) error {
		l := st.lock(held.Name)
		if !sameHolding(l, held) {
			return storage.ErrLockLost
		}
		l.Owner, l.ExpiresAt = "", st.now
		st.putLock(l)
		return nil
	})
	if err != nil {
		return fmt.Errorf("release lock %q: %w", held.Name, err)
	}
	return nil
}

// Locks implements [storage.Locker].
func (s *Store) Locks(ctx context.Context, after string, limit int) ([]storage.Lock, error) {
	var out []storage.Lock
	err := s.readCall(ctx, "locks", func(v *view) {
		v.each(`SELECT name, owner, number, renewals, ttl, expires_at FROM ~lock WHERE owner <> '' AND (? = '' OR name > ?) ORDER BY name LIMIT ?`,
			[]any{after, after, limit}, func(scan func(...any) bool) {
				l := storage.Lock{Now: v.now}
				if scan(&l.Name, &l.Owner, &l.Number, &l.Renewals, &l.TTL, at{&l.ExpiresAt}) {
					out = append(out, l)
				}
			})
	})
	if err != nil {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	return out, nil
}

func sameHolding(row, held storage.Lock) bool {
	return !row.Free() && row.Owner == held.Owner && row.Number == held.Number
}

func (st *step) acquire(name, owner string, ttl time.Duration, expired storage.Lock) (storage.Lock, error) {
	row := st.lock(name)
	switch {
	case row.Free() || row.Owner != owner && row.SameRenewal(expired):
		// The number is higher than the name's last number and than that of any lock whose row was
		// swept. It is at least the clock, so a restored copy repeats no number.
		number := storage.NextTermNumber(max(row.Number, st.meta.lockFloor), st.now, 0)
		row = storage.Lock{Name: name, Owner: owner, Number: number}
	case row.Owner == owner:
		row.Renewals++
	default:
		row.Now = st.now
		return row, storage.ErrLocked
	}
	row.TTL, row.ExpiresAt, row.Now = ttl, st.now.Add(ttl), st.now
	st.putLock(row)
	return row, nil
}

// lock reads a row; it has no owner if nobody holds the lock.
func (st *step) lock(name string) storage.Lock {
	l := storage.Lock{Name: name}
	st.one(`SELECT owner, number, renewals, ttl, expires_at FROM ~lock WHERE name = ?`, []any{name},
		&l.Owner, &l.Number, &l.Renewals, &l.TTL, at{&l.ExpiresAt})
	return l
}

func (st *step) putLock(l storage.Lock) {
	st.exec(`INSERT OR REPLACE INTO ~lock (name, owner, number, renewals, ttl, expires_at) VALUES (?, ?, ?, ?, ?, ?)`,
		l.Name, l.Owner, l.Number, l.Renewals, l.TTL, nanos(l.ExpiresAt))
}
