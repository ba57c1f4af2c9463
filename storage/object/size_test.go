package object_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/object"
)

// TestSize: the size of a large cluster is what the package comment says.
func TestSize(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	leader := start(t, store, 0).lead()
	peers := []*process{leader}
	size := func() int {
		data, _ := store.Peek(object.ClusterKey)
		return len(data)
	}
	before := size()
	const n = 50
	for i := range n {
		p := &process{t: t, s: leader.s, id: node.Identity{
			Name: fmt.Sprintf("emitd-worker-%d", i), ID: node.ID(uuid.NewString()), Incarnation: node.Incarnation(uuid.NewString()),
		}}
		p.beat(func(h *storage.Heartbeat) {
			h.Advert = &daemon.Advert{Traits: node.Traits{Version: "v1.2.3", Address: fmt.Sprintf("10.0.0.%d:7070", i), Capacity: 10, Host: node.Host{BootID: uuid.NewString(), PID: 1}}}
		})
		peers = append(peers, p)
	}
	each := (size() - before) / n
	t.Logf("%d bytes for each node and its event", each)
	before = size()
	const units = 5000
	var changes []storage.Change
	for i := range units {
		u := daemon.Unit{Daemon: "acme:reports", Index: i}
		changes = append(changes, storage.Change{Unit: u, Reason: "declared"}, storage.Change{
			Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: peers[1+i%n].id, Reason: "least loaded",
		})
		if len(changes) == storage.MaxChanges {
			if _, err := leader.commit(changes...); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
	leader.beat()
	each = (size() - before) / units
	t.Logf("%d bytes in all, %d for each unit", size(), each)
	if each > 60 {
		t.Errorf("%d bytes for each unit, want at most 60", each)
	}
}
