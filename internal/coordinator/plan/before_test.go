package plan

import (
	"testing"

	"github.com/emitd/emitd/daemon"
)

// TestBefore: the history says of a command about one unit where that unit was, whether a key or an index names it.
func TestBefore(t *testing.T) {
	t.Parallel()
	snap := &daemon.Snapshot{Units: []daemon.Record{
		row(t, "a/0", daemon.Active, "n1"), row(t, "a/1", daemon.Active, "n2"), row(t, "k~x", daemon.Active, "n1"), row(t, "k~y", daemon.Unassigned, ""),
	}}
	for about, want := range map[string]string{
		"a": "a has 2 units, 2 on nodes", "a/1": "a/1 active on n2, generation 7",
		"k": "k has 2 units, 1 on nodes", "k~x": "k~x active on n1, generation 7", "k~y": "k~y unassigned, generation 0",
	} {
		args := daemon.CommandArgs{Daemon: daemon.ID(about)}
		if u, err := daemon.ParseUnit(about); err == nil {
			args.SetUnit(u)
		}
		if got := Before(snap, daemon.CommandPause, args); got != want {
			t.Errorf("%s: %q, want %q", about, got, want)
		}
	}
}
