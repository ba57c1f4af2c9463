package owner_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/coordinator/owner"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/memory"
)

func Example() {
	ctx, store := context.Background(), memory.Open(memory.Config{})
	owners := owner.NewDirectory(store)
	o, err := owners.Owner(ctx, daemon.Unit{Daemon: "acme:tenants", Key: "globex"})
	fmt.Println(o.Node.Name == "", o.State, err)
	// Output: true unassigned <nil>
}
