package host

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"reflect"

	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/internal/admin/audit"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

type byKey struct{}

// withBy notes from where a call of the queue API comes.
func withBy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		by := audit.By{Forwarded: r.Header.Get(api.HeaderForwarded) != ""}
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			by.Address = from.Addr().Unmap().String()
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), byKey{}, by)))
	})
}

// by says who makes a call, and by which role it is allowed.
func by(ctx context.Context, role access.Role) audit.By {
	out, _ := ctx.Value(byKey{}).(audit.By)
	if c := callerOf(ctx); c != nil {
		out.Actor, out.Role = c.Name, string(role)
	}
	out.Actor = cmp.Or(out.Actor, "api")
	return out
}

// recorded is the queue service behind the queue API: what changes others' jobs gets into the history.
//
// A call that another node has forwarded was recorded there. But a caller could claim that, so it is recorded here too,
// unless it comes from the address of a node: who is on a node's host has the credentials of the store, and needs no
// detour.
type recorded struct {
	queue.Service
	h *host
}

// Do implements [queue.Operator].
func (s recorded) Do(ctx context.Context, name string, c queue.Command) (int, error) {
	who := by(ctx, access.Operate)
	if who.Forwarded && s.h.ofNode(ctx, who.Address) {
		return s.Service.Do(ctx, name, c)
	}
	change := audit.Change{Kind: audit.Queue + string(c.Act), Subject: name, By: who, Args: selection(c), Before: s.counts(ctx, name)}
	n, err := s.Service.Do(ctx, name, c)
	change.After, change.Count, change.Err = s.counts(ctx, name), n, err
	audit.Record(ctx, s.h.up.Store.Store, s.h.log, change)
	return n, err
}

func (s recorded) counts(ctx context.Context, name string) any {
	stats, err := s.Stats(ctx, name)
	if err != nil {
		return nil
	}
	return audit.CountsOf(stats)
}

// selection is what a command is about; nil for a whole queue.
func selection(c queue.Command) any {
	if len(c.IDs) == 0 && c.State == "" && c.Type == "" {
		return nil
	}
	return struct {
		IDs   []string    `json:"ids,omitempty"`
		State queue.State `json:"state,omitempty"`
		Type  string      `json:"type,omitempty"`
	}{c.IDs, c.State, c.Type}
}

// recordedDirectory is the same for the list of queues.
type recordedDirectory struct {
	api.Directory
	h *host
}

// Amend implements [api.Directory]. A declaration that changes nothing is not recorded.
func (d recordedDirectory) Amend(ctx context.Context, name string, revise func(queue.Settings) (queue.Settings, error)) (queue.Settings, error) {
	var before queue.Settings
	made, err := d.Directory.Amend(ctx, name, func(inForce queue.Settings) (queue.Settings, error) {
		before = inForce
		return revise(inForce)
	})
	c := audit.Change{Kind: audit.Declare, Subject: name, By: by(ctx, access.Admin), Before: wire.DeclarationOf(before), After: wire.DeclarationOf(made), Err: err}
	if err == nil && !reflect.DeepEqual(before, made) {
		audit.Record(ctx, d.h.up.Store.Store, d.h.log, c)
	}
	return made, err
}

// Remove implements [api.Directory].
func (d recordedDirectory) Remove(ctx context.Context, name string) error {
	c := audit.Change{Kind: audit.Remove, Subject: name, By: by(ctx, access.Admin)}
	if stats, err := d.h.front.jobs().Stats(ctx, name); err == nil {
		c.Before = audit.CountsOf(stats)
	}
	c.Err = d.Directory.Remove(ctx, name)
	if queue.TagOf(c.Err) != queue.QueueNotFound {
		audit.Record(ctx, d.h.up.Store.Store, d.h.log, c)
	}
	return c.Err
}

// Reshard implements [api.Directory]. A call that changes nothing is not recorded.
func (d recordedDirectory) Reshard(ctx context.Context, name string, shards int) (queue.Settings, error) {
	before := declarationOf(ctx, d.Directory, name)
	made, err := d.Directory.Reshard(ctx, name, shards)
	after := wire.DeclarationOf(made)
	if err == nil && !reflect.DeepEqual(before, after) {
		c := audit.Change{Kind: audit.Reshard, Subject: name, By: by(ctx, access.Admin), Args: wire.ReshardRequest{Shards: shards}, Before: before, After: after}
		audit.Record(ctx, d.h.up.Store.Store, d.h.log, c)
	}
	return made, err
}

// declarationOf returns the declaration of a queue, without values if it is not known.
func declarationOf(ctx context.Context, d api.Directory, name string) (out wire.Declaration) {
	list, err := d.List(ctx)
	if err != nil {
		return out
	}
	for _, set := range list {
		if set.Name == name {
			return wire.DeclarationOf(set)
		}
	}
	return out
}

// ofNode reports whether an address is that of a node of the cluster.
func (h *host) ofNode(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, h.Config.Timing().QueryTimeout)
	defer cancel()
	snap, err := h.up.Store.Snapshot(ctx)
	if err != nil {
		return false
	}
	for i := range snap.Nodes {
		at, err := netip.ParseAddrPort(snap.Nodes[i].Address) // a name is not looked up: the call is recorded twice
		if err == nil && snap.Nodes[i].Present() && at.Addr().Unmap().String() == address {
			return true
		}
	}
	return false
}
