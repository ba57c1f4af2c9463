package coordinator_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/memory"
)

// A program that embeds a coordinator: an agent, the four hooks that most programs want, and a
// clean stop. A real program opens a store on Postgres or SQLite, and gives Run a context that ends
// with SIGTERM.
func Example() {
	store := memory.Open(memory.Config{})
	done := make(chan struct{})
	c, err := coordinator.New(store, coordinator.Config{
		Profile: coordinator.ProfileFast,
		Node:    node.Identity{Name: "alpha"},
		Timing:  coordinator.Timing{SettleWindow: -1}, // a single node: there are no others to wait for
		Logger:  slog.New(slog.DiscardHandler),
		Hooks: coordinator.Hooks{
			OnLeaderElected:  func(ctx context.Context, t node.Term) { fmt.Println("leading, term", t.Ordinal); close(done) },
			OnLeaderLost:     func(t node.Term, why node.LossReason) { fmt.Println("no longer leading:", why) },
			OnNodeRegistered: func(m node.Member) {},                // a node joined
			OnNodeRemoved:    func(m node.Member, reason string) {}, // a node left or died
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	working := make(chan struct{})
	err = c.Register(daemon.Spec{ID: "acme:reports"}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		close(working)
		select {
		case <-ctx.Done(): // stop now: ownership ended
			return ctx.Err()
		case <-a.Draining(): // finish what is in flight, then return
			fmt.Println("draining", a.Unit)
			return nil
		}
	}))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		<-done
		<-working
		stop()
	}()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// leading, term 1
	// no longer leading: shutdown
	// draining acme:reports/0
}

// Leader-only work: exactly one node of the cluster does it, and it is repeated when it fails.
func ExampleCoordinator_WhileLeader() {
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{Profile: "fast", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.WhileLeader("billing", func(ctx context.Context, t node.Term) error {
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-ctx.Done(): // no longer the leader
				return nil
			case <-tick.C:
				fmt.Println("billing in term", t.Ordinal)
				stop()
				return nil
			}
		}
	})
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: billing in term 1
}

// The node's current state, and every change of its leadership, in order.
func ExampleCoordinator_Subscribe() {
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{Profile: "fast", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	transitions := c.Subscribe(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for t := range transitions { // ends when Run has returned
		fmt.Printf("leading %v, reason %q\n", t.Leading, t.Reason)
		if t.Leading {
			stop()
		}
	}
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output:
	// leading false, reason ""
	// leading true, reason ""
	// leading false, reason "shutdown"
}

// Without a sweeper the store's history grows for ever. Every node offers to run it, and one does.
func ExampleCoordinator_SweepTasks() {
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{})
	if err != nil {
		log.Fatal(err)
	}
	tasks := c.SweepTasks(coordinator.Retention{Events: 50_000})
	if err := c.RegisterBuiltin(sweeper.Spec(), sweeper.New(tasks, sweeper.Config{})); err != nil {
		log.Fatal(err)
	}
	for _, t := range tasks {
		fmt.Println(t.Name)
	}
	// Output:
	// nodes
	// events
	// locks
	// units
}

// Two sets of hooks, neither of which can delay the other.
func ExampleTee() {
	audit := coordinator.Hooks{OnLeaderLost: func(t node.Term, why node.LossReason) { /* write it down */ }}
	pager := coordinator.Hooks{OnNodeRemoved: func(m node.Member, reason string) { /* tell somebody */ }}
	_, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{Hooks: coordinator.Tee(audit, pager)})
	fmt.Println(err)
	// Output: <nil>
}
