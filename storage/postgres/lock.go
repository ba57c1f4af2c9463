package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/storage"
)

// Acquire implements [storage.Locker].
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (storage.Lock, error) {
	what := fmt.Sprintf("acquire lock %q", name)
	// A sweep may remove the row between the statement that makes sure of it and the one that
	// locks it. Once, not again and again: it removes what expired long ago.
	for range 3 {
		lock := storage.Lock{Name: name}
		var found, taken bool
		err := s.call(ctx, "acquire", writing, func(q *query) {
			q.add("lock_row", plain(name))
			q.add("lock_lock", plain(name))
			q.add("acquire", plain(name), plain(owner), micros(ttl)).
				Query(one(&found, &taken, &lock.Owner, &lock.Number, stamp{&lock.ExpiresAt}, stamp{&lock.Now}))
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
	err := s.call(ctx, "extend", writing, func(q *query) {
		q.add("extend", plain(held.Name), plain(held.Owner), held.Number, micros(ttl)).
			Query(one(&found, stamp{&held.ExpiresAt}, stamp{&held.Now}))
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
	err := s.call(ctx, "release", writing, func(q *query) {
		q.add("release", plain(held.Name), plain(held.Owner), held.Number).Exec(func(tag pgconn.CommandTag) error {
			found = tag.RowsAffected() == 1
			return nil
		})
	})
	if err == nil && !found {
		err = storage.ErrLockLost
	}
	return s.fail(fmt.Sprintf("release lock %q", held.Name), err)
}
