package admin

import (
	"context"
	"errors"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/plan"
)

// planOperations lists the call about what would be.
func planOperations() []operation {
	return []operation{
		get("getPlan", "/plan", "What would move if nodes were drained, lost or added; without parameters, what the leader is about to do", (*API).plan),
	}
}

type planIn struct {
	// Drain is a node that is drained; it may be repeated.
	Drain []string `query:"drain"`
	// Lose is a node that is dead at once; it may be repeated.
	Lose []string `query:"lose"`
	// Add is how many nodes are added.
	Add int `query:"add" max:"1000"`
	// Like is the node whose labels, capacity and daemons the added ones have; by default the first live one.
	Like string `query:"like"`
	// Rebalance says whether running units are moved to make loads even. If it is left out, they are, unless
	// coordinator.max_moves_per_round of the node that answers is 0.
	Rebalance *bool `query:"rebalance"`
}

func (a *API) plan(ctx context.Context, in *planIn) (*view.DryRun, error) {
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	scenario := view.Scenario{Drain: in.Drain, Lose: in.Lose, Add: in.Add, Like: in.Like, Rebalance: a.cfg.MaxMovesPerRound >= 0}
	if in.Rebalance != nil {
		scenario.Rebalance = *in.Rebalance
	}
	out, err := view.Try(s.snap, a.reader(false), scenario)
	if unknown := (*plan.UnknownNodeError)(nil); errors.As(err, &unknown) {
		return nil, fault.New(fault.NoNode, "there is no node %q", unknown.Name).Hint("list them: emitd node ls")
	}
	if err != nil {
		return nil, badCall("%w", err)
	}
	return &out, nil
}
