package cli

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// lockCommand makes the commands about named locks.
func (a *app) lockCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List the named locks that are held, and who holds them",
		Long: "List the named locks that programs hold through package coordinator/lock, and who holds them. A lock is overdue if\n" +
			"its holder has not renewed it for its time to live. Then the holder may be gone, and the lock goes to whoever\n" +
			"wants it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd.Context(), false, func(ctx context.Context, c *cluster) error {
				locks, err := c.locks(ctx)
				if err != nil {
					return err
				}
				now := c.status().At.Time
				return a.print(list(locks, func(l view.Lock) string { return l.Name }, func(wide bool) *view.Table { return view.LockTable(locks, now, wide) }))
			})
		},
	}
	return group("lock", "Show named locks", a.addrFlags(a.watchFlags(a.outputFlag(ls))))
}

// locks returns the locks that are held, by name.
func (c *cluster) locks(ctx context.Context) (all []view.Lock, err error) {
	if c.node != nil {
		return c.node.locks(ctx)
	}
	store, ok := c.store.Store.(storage.Locker)
	if !ok {
		return nil, fault.New(fault.Internal, "a %s store has no locks", c.store.Kind)
	}
	for after := ""; ; after = all[len(all)-1].Name {
		held, err := store.Locks(ctx, after, pageSize)
		if err != nil {
			return nil, fmt.Errorf("read locks: %w", err)
		}
		for _, l := range held {
			all = append(all, view.LockOf(l))
		}
		if len(held) < pageSize {
			return all, nil
		}
	}
}

// locks returns the locks as the node sees them.
func (r *remote) locks(ctx context.Context) ([]view.Lock, error) {
	var all []view.Lock
	query := url.Values{"limit": {"1000"}}
	for {
		var page body.LockPage
		if err := r.get(ctx, "/locks", query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Locks...)
		if page.Cursor == nil {
			return all, nil
		}
		query.Set("cursor", *page.Cursor)
	}
}
