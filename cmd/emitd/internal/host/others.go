package host

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/node"
)

// othersAtOnce is how many other processes are asked at the same time.
const othersAtOnce = 16

// others returns one node of each other process in the cluster.
func (h *host) others(ctx context.Context) ([]node.Member, error) {
	snap, err := h.up.Store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var out []node.Member
	for _, m := range snap.Nodes {
		same := func(o node.Member) bool { return o.Address == m.Address }
		if m.Present() && m.Address != "" && m.Address != h.up.Advertised && !slices.ContainsFunc(out, same) {
			out = append(out, m)
		}
	}
	return out, nil
}

// each calls f for each node, for othersAtOnce at a time, and waits until all calls have returned.
func each(nodes []node.Member, f func(node.Member)) {
	var calls errgroup.Group
	calls.SetLimit(othersAtOnce)
	for _, m := range nodes {
		calls.Go(func() error {
			f(m)
			return nil
		})
	}
	_ = calls.Wait() // always nil
}
