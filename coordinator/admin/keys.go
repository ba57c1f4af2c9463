package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// keyOperations lists the calls for the keys of keyed daemons.
func keyOperations() []operation {
	return []operation{
		call("changeKeys", http.MethodPost, "/keys", "Add keys to a keyed daemon, and remove others, in one step", (*API).changeKeys),
	}
}

type keysIn struct {
	Body view.KeyChange `body:"json"`
}

// from sets who makes the call.
func (in *keysIn) from(a *API, r *http.Request) {
	if a.cfg.Actor != nil {
		in.Body.Actor = cmp.Or(a.cfg.Actor(r), in.Body.Actor)
	}
	in.Body.Actor = cmp.Or(in.Body.Actor, "api")
}

// keysAnswer is what a change of keys has changed. A key that was there already is not added again, and one that was not
// there is not removed, so the call may be repeated.
type keysAnswer struct {
	Added   int `json:"added"`
	Removed int `json:"removed"`
}

func (a *API) changeKeys(ctx context.Context, in *keysIn) (*keysAnswer, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	store, ok := a.cfg.Store.(storage.KeyStore)
	if !ok {
		return nil, fault.New(fault.BadKeys, "this store keeps no keys")
	}
	snap, err := a.cfg.Store.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	change, err := in.Body.Check(snap)
	if err != nil {
		return nil, err
	}
	defer a.reads.forget()
	counts, err := store.ChangeKeys(ctx, change)
	if err != nil {
		return nil, fmt.Errorf("change keys: %w", err)
	}
	return &keysAnswer{counts.Added, counts.Removed}, nil
}
