package broker_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/broker"
	"github.com/emitd/emitd/storage/blob/dir"
)

// A queue is declared in the bucket, and a broker serves its shard. In production the coordinator runs the broker:
// RegisterBuiltin takes it as the agent of the daemon emit:queue/mail.
func Example() {
	path, err := os.MkdirTemp("", "emitd-example-*")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(path)
	bucket, err := dir.Open(dir.Config{Path: path})
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := broker.New(broker.Config{
		Bucket:  bucket,   // in production: also s3 or gcs
		StoreID: "store",  // of the cluster store's snapshot
		Owner:   "node-1", // the incarnation of this process
		Now:     time.Now, // in production: Coordinator.StoreTime
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	if _, err := b.Registry().Declare(ctx, queue.Settings{Name: "mail"}); err != nil {
		fmt.Println(err)
		return
	}

	a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: "emit:queue/mail"}, Generation: 1}, 1, "alpha", nil)
	ended := make(chan error, 1)
	go func() { ended <- b.Run(daemon.WithValidity(ctx, func() time.Duration { return time.Hour }), a) }()
	select {
	case <-a.ReadyDone(): // it has taken the shard over
	case err := <-ended:
		fmt.Println(err)
		return
	}
	receipts, err := b.Enqueue(ctx, "mail", []queue.Job{{ID: "welcome-7"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(receipts[0].ID, receipts[0].State)
	a.BeginDrain()
	fmt.Println(<-ended)
	// Output:
	// welcome-7 waiting
	// <nil>
}
