package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

func (a *app) clusterCommand() *cobra.Command {
	rename := &cobra.Command{
		Use: "rename OLD NEW", Short: "Rename the cluster of a store while none of its nodes is live",
		Long: "Rename the cluster of a store. The store holds the name that its first node wrote, and nodes with another\n" +
			"name are refused (E2107). To rename a cluster, stop all nodes, run this command, and start them with the new\n" +
			"name. On a bucket, a killed node counts as gone only after this command has watched its row for\n" +
			"node_registration_ttl: allow for it with --timeout 3m.",
		Args: exactly(2, "the current name of the cluster and the new one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCluster(cmd.Context(), false, func(ctx context.Context, c *cluster) error {
				return a.rename(ctx, c, args[0], args[1])
			})
		},
	}
	return group("cluster", "Rename a cluster", a.outputFlag(rename))
}

// renamed is the result of a rename, for scripts.
type renamed struct {
	Cluster string `json:"cluster"`
	Was     string `json:"was"`
}

// renameEvery is how often a rename is tried again while a live node prevents it.
const renameEvery = time.Second

func (a *app) rename(ctx context.Context, c *cluster, from, to string) error {
	if to == "" {
		return fault.New(fault.Usage, "the new name is empty")
	}
	r, ok := c.store.Store.(storage.Renamer)
	if !ok {
		return fault.New(fault.Internal, "a %s store cannot be renamed", c.store.Kind)
	}
	ttl := c.cfg.Timing().NodeRegistrationTTL
	for _, m := range c.snap.Nodes {
		if m.Present() {
			ttl = max(ttl, m.Timing.NodeRegistrationTTL)
		}
	}
	// A bucket has no clock, so only repeated reads show that a killed node is gone.
	wait := storage.CapabilitiesOf(c.store).NoClock
	if err := renameUntil(ctx, wait, func() error { return r.RenameCluster(ctx, from, to, ttl) }); err != nil {
		return err
	}
	return a.print(data{whole: renamed{to, from}, names: []string{to}, table: func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "cluster %s is now called %s\n", view.Line(from), view.Line(to))
		return err
	}})
}

// renameUntil calls rename. If wait is set, it repeats the call while a node may be live, until ctx ends.
func renameUntil(ctx context.Context, wait bool, rename func() error) error {
	for {
		err := rename()
		if !wait || !errors.Is(err, storage.ErrNodesLive) {
			return err
		}
		select {
		case <-time.After(renameEvery):
		case <-ctx.Done():
			return err
		}
	}
}
