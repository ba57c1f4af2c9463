package storage_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// What a cluster is doing, read from its store. Any process that reaches the store can ask; it need not be a node.
func Example() {
	var store storage.Store = memory.Open(memory.Config{}) // in production: postgres, sqlite or object
	state, err := store.Snapshot(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range state.Nodes {
		fmt.Println(m.Name, m.State)
	}
	fmt.Println(len(state.Nodes), "nodes, a leader:", state.Term.Held())
	// Output: 0 nodes, a leader: false
}
