package coordinator

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/memory"
)

func TestSmoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		store := memory.Open(memory.Config{})
		c, err := New(store, Config{Profile: "fast", Node: node.Identity{Name: "n1"},
			Logger: slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Clock:  func() lease.Instant { return lease.Instant(time.Since(began) + time.Hour) }})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Register(daemon.Spec{ID: "acme:x", Instances: 2}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			select {
			case <-a.Draining():
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		<-time.After(20 * time.Second)
		t.Logf("%+v", c.Status())
		cancel()
		t.Log(<-done, time.Since(began))
	})
}
