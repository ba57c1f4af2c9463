package sweeper_test

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
)

// A clean-up of the program's own, in steps of bounded size. [coordinator.Coordinator.RegisterBuiltin] takes Spec and
// the agent, and one node of the cluster runs it.
func Example() {
	a := daemon.NewAssignment(daemon.Fence{Unit: sweeper.Spec().Units()[0], Generation: 1}, 1, "alpha", nil)
	old := 250 // rows that are no longer needed
	agent := sweeper.New([]sweeper.Task{{
		Name:  "sessions",
		Every: time.Millisecond, // in production: a minute or more
		Step: func(_ context.Context, _ daemon.Fence, limit int) (int, error) {
			n := min(old, limit)
			old -= n
			fmt.Println("removed", n)
			if n < limit {
				a.BeginDrain() // an example has to end
			}
			return n, nil
		},
	}}, sweeper.Config{Limit: 100, Pause: time.Millisecond})
	if err := agent.Run(context.Background(), a); err != nil {
		fmt.Println(err)
	}
	// Output:
	// removed 100
	// removed 100
	// removed 50
}
