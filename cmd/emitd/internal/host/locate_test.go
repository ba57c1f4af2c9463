package host

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// moving is a store whose queue has a new broker in each snapshot.
type moving struct {
	storage.Store
	generation int64
}

func (m *moving) Snapshot(context.Context) (*daemon.Snapshot, error) {
	m.generation++
	holder := node.Member{State: node.Live}
	holder.Incarnation, holder.Address = "i", "broker:1"
	return &daemon.Snapshot{Nodes: []node.Member{holder}, Units: []daemon.Record{{
		Unit: daemon.Unit{Daemon: "emit:queue/q"}, State: daemon.Active, Generation: m.generation, Holder: holder.Identity,
	}}}, nil
}

// A snapshot answers for a while, and a doubted one until the next look may be taken: calls that wait
// for a broker do not read the store each.
func TestLocatorDoubts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &locator{store: &moving{}}
		for n, step := range []struct {
			after time.Duration
			doubt bool
			want  int64
		}{
			{0, false, 1},
			{fresh - 1, false, 1},
			{1, false, 2},
			{0, true, 2},
			{doubted - 1, false, 2},
			{1, false, 3}, // the doubt of before
			{doubted, false, 3},
			{0, true, 4},
		} {
			time.Sleep(step.after)
			if step.doubt {
				l.Doubt()
			}
			addr, generation, err := l.Broker(t.Context(), "q", 0)
			if addr != "broker:1" || generation != step.want || err != nil {
				t.Errorf("step %d: %q at generation %d, %v; want %d", n, addr, generation, err, step.want)
			}
		}
	})
}
