package admin

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// lockOperations lists the calls about named locks.
func lockOperations() []operation {
	return []operation{
		get("listLocks", "/locks", "The named locks that are held, by name", (*API).locks),
	}
}

type locksIn struct{ paging }

func (a *API) locks(ctx context.Context, in *locksIn) (*body.LockPage, error) {
	store, ok := a.cfg.Store.(storage.Locker)
	if !ok {
		return nil, fault.New(fault.Internal, "this store has no locks")
	}
	const list = "locks"
	last, _, err := after[string](in.paging, list)
	if err != nil {
		return nil, err
	}
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	held, err := store.Locks(ctx, last, in.Limit+1) // to find out whether there are more
	if err != nil {
		return nil, fmt.Errorf("read locks: %w", err)
	}
	out := &body.LockPage{At: view.Time{Time: s.snap.Now}, Locks: []view.Lock{}}
	for _, l := range held[:min(len(held), in.Limit)] {
		out.Locks = append(out.Locks, view.LockOf(l))
	}
	if len(held) > in.Limit {
		out.Cursor = cursor(list, held[in.Limit-1].Name)
	}
	return out, nil
}
