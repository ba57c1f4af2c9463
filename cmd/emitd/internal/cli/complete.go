package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/queue"
)

// completeLimit is how long a shell waits for names.
const completeLimit = 500 * time.Millisecond

// complete offers names from a snapshot as completions of a command's first argument. Errors are not shown
// to the shell: there are just no names.
func (a *app) complete(cmd *cobra.Command, names func(c *cluster) []string) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completions(cmd.Context(), begun, names), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag does the same for the value of a flag.
func (a *app) completeFlag(cmd *cobra.Command, flag string, names func(c *cluster) []string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return a.completions(cmd.Context(), begun, names), cobra.ShellCompDirectiveNoFileComp
	})
}

func (a *app) completions(ctx context.Context, begun string, names func(c *cluster) []string) []string {
	return a.completeWith(ctx, begun, func(ctx context.Context) (all []string) {
		cfg, err := a.loadToRead()
		if err != nil {
			return nil
		}
		_ = a.withClusterOf(ctx, cfg, true, func(_ context.Context, c *cluster) error {
			all = names(c)
			return nil
		})
		return all
	})
}

// completeWith returns the names that begin as what was typed, or none if finding them takes too long.
func (a *app) completeWith(ctx context.Context, begun string, find func(context.Context) []string) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	a.quiet = true
	found := make(chan []string, 1)
	go func() { found <- find(ctx) }() // a call that ignores its context must not keep the shell waiting
	var out []string
	select {
	case all := <-found:
		for _, name := range all {
			if strings.HasPrefix(name, begun) {
				out = append(out, name)
			}
		}
	case <-ctx.Done():
	}
	return out
}

// completeSubscriptions offers the subscriptions of the outbox as a command's first argument.
func (o *outboxes) completeSubscriptions(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return o.a.completeWith(cmd.Context(), begun, func(ctx context.Context) (all []string) {
			_ = o.with(ctx, func(ctx context.Context, box *backend.Outbox) error {
				stats, err := box.Stats(ctx, "")
				for _, s := range stats {
					all = append(all, s.Subscription)
				}
				return err
			})
			return sorted(all)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// eventFamilies are patterns of the kinds of events, for completion.
var eventFamilies = []string{"assignment.*", "brake.*", "fence.*", "leader.*", "ledger.*", "node.*", "operator.*", "outbox.*", "periodic.*", "queue.*", "units.*"}

// nodeNames lists the nodes that have not left.
func nodeNames(c *cluster) []string {
	var out []string
	for _, m := range c.snap.Nodes {
		if m.Present() {
			out = append(out, m.Name)
		}
	}
	return sorted(out)
}

// unitNames lists daemons and their units.
func unitNames(c *cluster) []string {
	var out []string
	for _, r := range c.snap.Units {
		if !r.Retired {
			out = append(out, string(r.Unit.Daemon), r.Unit.String())
		}
	}
	return sorted(out)
}

// queueNames lists the queues that have a unit, which are all queues that a broker serves.
func queueNames(c *cluster) []string {
	var out []string
	for _, r := range c.snap.Units {
		if name, ok := strings.CutPrefix(string(r.Unit.Daemon), string(queue.Kind)+"/"); ok && !r.Retired {
			out = append(out, name)
		}
	}
	return sorted(out)
}

func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
