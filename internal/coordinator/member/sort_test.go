package member

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// What a full store may refuse comes after what makes it smaller, and after what it may have room for: declarations are the
// last, then assignments. A unit that is declared again needs no room.
func TestDeclarationsComeLast(t *testing.T) {
	t.Parallel()
	is := func(name string, d plan.Decision) plan.Decision {
		d.Unit.Daemon = daemon.ID(name)
		return d
	}
	decisions := []plan.Decision{
		is("declared", plan.Decision{}),
		is("assigned", plan.Decision{Step: daemon.Assign, State: daemon.Deleted, To: node.Identity{Incarnation: "n"}}),
		is("retired", plan.Decision{State: daemon.Deleted, Retired: true}),
		is("again", plan.Decision{State: daemon.Deleted}),
		is("revoked", plan.Decision{Step: daemon.Revoke, State: daemon.Active}),
	}
	sortByNode(decisions)
	var got []string
	for i := range decisions {
		got = append(got, string(decisions[i].Unit.Daemon))
	}
	if s := strings.Join(got, " "); s != "retired again revoked assigned declared" {
		t.Errorf("in this order: %s", s)
	}
}
