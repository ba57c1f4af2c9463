package cli

import (
	"context"
	"errors"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/plan"
)

func (a *app) planCommand() *cobra.Command {
	var s view.Scenario
	cmd := &cobra.Command{
		Use: "plan", Short: "Show what would move if nodes were drained, lost or added",
		Long: "Show what would move if nodes were drained, lost or added, by the leader's own rules over the present cluster:\n" +
			"where each unit would be once every hand-over has succeeded and loads are even, which units would run nowhere\n" +
			"and why, and what each node would hold. Without a flag it shows what the leader is about to do. Nothing is\n" +
			"changed.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("add") && s.Add < 1 {
				return fault.New(fault.Usage, "--add is %d, want 1 or more", s.Add)
			}
			if s.Like != "" && s.Add == 0 {
				return fault.New(fault.Usage, "--like says what the nodes of --add are like, and --add is missing")
			}
			if a.node.address != "" {
				return a.planOfNode(cmd.Context(), s)
			}
			return a.withCluster(cmd.Context(), false, func(_ context.Context, c *cluster) error { return a.plan(c, s) })
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&s.Drain, "drain", nil, "a node that is drained; may be repeated")
	fl.StringArrayVar(&s.Lose, "lose", nil, "a node that is dead at once; may be repeated")
	fl.IntVar(&s.Add, "add", 0, "how many nodes are added")
	fl.StringVar(&s.Like, "like", "", "the node whose labels, capacity and daemons the added ones have; by default the first live one")
	for _, name := range []string{"drain", "lose", "like"} {
		a.completeFlag(cmd, name, nodeNames)
	}
	return a.addrFlags(a.watchFlags(a.outputFlag(cmd)))
}

// planOfNode shows what would move, as a node has it.
func (a *app) planOfNode(ctx context.Context, s view.Scenario) error {
	node, err := a.remote()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	query := url.Values{"drain": s.Drain, "lose": s.Lose}
	if s.Add > 0 {
		query.Set("add", strconv.Itoa(s.Add))
	}
	if s.Like != "" {
		query.Set("like", s.Like)
	}
	var d view.DryRun
	if err := node.get(ctx, "/plan", query, &d); err != nil {
		return err
	}
	return a.printPlan(d)
}

func (a *app) plan(c *cluster, s view.Scenario) error {
	s.Rebalance = c.cfg.Coordinator.MaxMovesPerRound != 0
	d, err := view.Try(c.snap, reader(c.cfg, c.store, false), s)
	var unknown *plan.UnknownNodeError
	switch {
	case errors.As(err, &unknown):
		return fault.New(fault.NoNode, "there is no node %q", unknown.Name).Hint("list them: emitd node ls")
	case err != nil:
		return fault.New(fault.Usage, "%w", err)
	}
	return a.printPlan(d)
}

func (a *app) printPlan(d view.DryRun) error {
	out := data{whole: d, table: d.Table}
	for _, m := range d.Moves {
		out.names = append(out.names, m.Unit.String())
	}
	return a.print(out)
}
