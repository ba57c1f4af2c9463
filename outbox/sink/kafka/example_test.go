package kafka_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/kafka"
)

// A relay that produces to a topic of Kafka, with the key of a message as the key of its record.
func Example() {
	s, err := kafka.New(context.Background(), kafka.Config{Brokers: []string{"localhost:9092"}, Topic: "orders"})
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
