package member

import (
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// The embargo of a unit doubles with each time that a node of that name gave it up, in whichever process. Embargoes of
// abandoned runs belong to one process, and so do those that a process of an earlier version wrote without a name.
func TestEmbargoGrowsOverRestarts(t *testing.T) {
	t.Parallel()
	rec := daemon.Record{Embargoes: []daemon.Embargo{
		{Incarnation: "a1", Node: "a", Strikes: 2},
		{Incarnation: "a2", Node: "a", Strikes: 1},
		{Incarnation: "a1", Node: "a", Strikes: 4, AbandonedGeneration: 7},
		{Incarnation: "b1", Node: "b", Strikes: 5},
		{Incarnation: "c1", Strikes: 1},
	}}
	for _, c := range []struct {
		who       node.Identity
		abandoned bool
		want      time.Duration
	}{
		{node.Identity{Name: "a", Incarnation: "a2"}, false, 8 * time.Second},
		{node.Identity{Name: "a", Incarnation: "a3"}, false, 8 * time.Second},
		{node.Identity{Name: "a", Incarnation: "a1"}, true, 16 * time.Second},
		{node.Identity{Name: "a", Incarnation: "a3"}, true, time.Second},
		{node.Identity{Name: "", Incarnation: "c1"}, false, 2 * time.Second},
		{node.Identity{Name: "", Incarnation: "c2"}, false, time.Second},
		{node.Identity{Name: "d", Incarnation: "d1"}, false, time.Second},
	} {
		if got := embargoFor(rec, c.who, time.Second, c.abandoned); got != c.want {
			t.Errorf("%v, abandoned %v: %v, want %v", c.who, c.abandoned, got, c.want)
		}
	}
}
