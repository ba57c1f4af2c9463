package nats_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/nats"
)

// A relay that publishes to a stream of JetStream.
func Example() {
	s, err := nats.New(context.Background(), nats.Config{URL: "nats://localhost:4222", Stream: "ORDERS"})
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
