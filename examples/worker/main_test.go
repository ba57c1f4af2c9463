package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
)

// TestWorker runs the program on a queue in memory: two jobs are completed, the third is dead with its
// cause, and the program ends cleanly.
func TestWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queuetest.New()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- run(ctx, q) }()
		time.Sleep(time.Minute) // of the bubble's clock
		cancel()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
		s, err := q.Stats(context.Background(), queue.DefaultQueue)
		if err != nil {
			t.Fatal(err)
		}
		if s.Completed != 2 || s.Dead != 1 || s.Waiting+s.Active+s.Delayed != 0 {
			t.Errorf("%+v", s)
		}
		dead, err := q.List(context.Background(), queue.DefaultQueue, queue.Query{State: queue.Dead})
		if err != nil || len(dead.Jobs) != 1 || dead.Jobs[0].Cause == "" {
			t.Errorf("dead: %+v, %v", dead, err)
		}
	})
}
