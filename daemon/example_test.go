package daemon_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/daemon"
)

// A daemon with three units, and its agent. [coordinator.Coordinator.Register] takes both.
func Example() {
	spec := daemon.Spec{ID: "acme:reports", Instances: 3}
	agent := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		fmt.Println("running", a.Fence())
		select {
		case <-ctx.Done(): // stop now: the unit may be another node's soon
			return ctx.Err()
		case <-a.Draining(): // finish what is in flight, then return
			return nil
		}
	})

	fmt.Println(spec.Validate(), spec.Units())
	// In production the coordinator makes assignments. A test of an agent makes its own:
	a := daemon.NewAssignment(daemon.Fence{Unit: spec.Units()[0], Generation: 7}, 1, "alpha", nil)
	a.BeginDrain()
	fmt.Println(agent.Run(context.Background(), a))
	// Output:
	// <nil> [acme:reports/0 acme:reports/1 acme:reports/2]
	// running acme:reports/0@7
	// <nil>
}
