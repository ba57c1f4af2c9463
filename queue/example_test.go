package queue_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
)

// The life of a job: submitted, claimed by a worker, completed. Package worker does the last two for a program.
func Example() {
	ctx := context.Background()
	var q queue.Service = queuetest.New() // in production: client.New, or the broker in this process
	if _, err := q.Enqueue(ctx, "mail", []queue.Job{{ID: "welcome-7", Payload: []byte("hello")}}); err != nil {
		fmt.Println(err)
		return
	}
	claimed, err := q.Claim(ctx, "mail", queue.ClaimRequest{Worker: "w1", Max: 1})
	if err != nil || len(claimed) == 0 {
		fmt.Println(err)
		return
	}
	job := claimed[0]
	fmt.Println(job.Job.ID, string(job.Payload))
	outcomes, err := q.Settle(ctx, "mail", []queue.Settlement{{Verb: queue.Complete, ID: job.Job.ID, Token: job.Token}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(outcomes[0].State)
	// Output:
	// welcome-7 hello
	// completed
}
