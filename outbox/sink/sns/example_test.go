package sns_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/sns"
)

// A relay that publishes to a topic of SNS. Credentials come from the environment.
func Example() {
	s, err := sns.New(context.Background(), sns.Config{ARN: "arn:aws:sns:eu-central-1:123456789012:orders.fifo"})
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
