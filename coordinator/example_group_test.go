package coordinator_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/memory"
)

// Two services share a store. Each has a daemon of the same name, which runs on its own nodes only.
func ExampleConfig_group() {
	store := memory.Open(memory.Config{})
	reports := daemon.AgentFunc(func(ctx context.Context, _ *daemon.Assignment) error {
		<-ctx.Done()
		return ctx.Err()
	})
	for _, service := range []string{"shop", "billing"} {
		c, err := coordinator.New(store, coordinator.Config{Group: service})
		if err != nil {
			fmt.Println(err)
			return
		}
		err = c.Register(daemon.Spec{ID: "acme:reports"}, reports)
		fmt.Println(daemon.ID("acme:reports").In(service), err)
	}
	// Output:
	// acme:reports@shop <nil>
	// acme:reports@billing <nil>
}
