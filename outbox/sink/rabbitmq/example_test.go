package rabbitmq_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/rabbitmq"
)

// A relay that publishes to an exchange and waits for the confirmations.
func Example() {
	s, err := rabbitmq.New(context.Background(), rabbitmq.Config{URL: "amqp://guest:guest@localhost", Exchange: "orders"})
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
