package queue_test

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
	queuesink "github.com/emitd/emitd/outbox/sink/queue"
	"github.com/emitd/emitd/queue/queuetest"
)

// A sink that turns each message into a job of a queue. Give it to outbox.NewRelay.
func Example() {
	ctx := context.Background()
	jobs := queuetest.New() // in production: client.New, or the broker in this process
	s, err := queuesink.New(ctx, queuesink.Config{Producer: jobs, Queue: "mail"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	row := outbox.Row{Message: outbox.Message{ID: uuid.New(), Topic: "welcome", Payload: []byte("hello")}}
	if errs := s.Deliver(ctx, outbox.Delivery{Subscription: "shop", Rows: []outbox.Row{row}}); errs != nil {
		fmt.Println(errs)
		return
	}
	info, payload, err := jobs.Get(ctx, "mail", row.ID.String())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.State, string(payload))
	// Output: waiting hello
}
