package sqlite_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/sqlite"
)

// The nodes of one machine share a file. The first of them leads.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	dir, err := os.MkdirTemp("", "sqlite-example-*")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(ctx, filepath.Join(dir, "cluster.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close() // after Run has returned
	c, err := coordinator.New(store, coordinator.Config{
		Profile: coordinator.ProfileFast,
		Logger:  slog.New(slog.DiscardHandler),
		Hooks: coordinator.Hooks{OnLeaderElected: func(_ context.Context, t node.Term) {
			fmt.Println("leading, term", t.Ordinal)
			stop() // an example has to end
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: leading, term 1
}
