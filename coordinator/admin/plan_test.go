package admin

import (
	"testing"

	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// TestPlanMovesAsTheLeader: a plan assumes that loads are made even only if the nodes do so, unless the caller says which.
func TestPlanMovesAsTheLeader(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		for _, c := range []struct {
			moves int // of the node that answers
			query string
			want  bool // one of the two units of node a moves to the added node
		}{
			{0, "", true}, {100, "", true}, {-1, "", false}, {-1, "&rebalance=true", true}, {0, "&rebalance=false", false},
		} {
			var plan view.DryRun
			do(t, api(t, store, func(conf *Config) { conf.MaxMovesPerRound = c.moves }), request(t, "GET", root+"/plan?add=1"+c.query, ""), &plan)
			if got := len(plan.Moves) > 0; got != c.want || len(plan.Nodes) != 4 {
				t.Errorf("%d moves per round, /plan?add=1%s: moves %v of %+v", c.moves, c.query, plan.Moves, plan.Nodes)
			}
		}
	})
}
