package sqs_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/sqs"
)

// A relay that sends to a FIFO queue of SQS. Credentials come from the environment.
func Example() {
	s, err := sqs.New(context.Background(), sqs.Config{Queue: "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()         // after the coordinator's Run has returned
	var messages outbox.Log // from Open of outbox/postgres or outbox/sqlite
	relay, err := outbox.NewRelay(outbox.Config{Name: "shop", Log: messages, Sink: s})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(relay.Spec().ID) // register it with Coordinator.RegisterBuiltin
}
