package sink_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// A sink of one's own: each message is one request, four requests run at once, and a message that the receiver can
// never accept is not tried again.
func Example() {
	mail := outbox.SinkFunc(func(ctx context.Context, d outbox.Delivery) []error {
		return sink.Each(ctx, d.Rows, 4, func(_ context.Context, i int) error {
			if d.Rows[i].Key == "" {
				return sink.Permanent("message %s has no receiver", d.Rows[i].Topic)
			}
			return nil // sent
		})
	})
	rows := []outbox.Row{
		{Message: outbox.Message{Topic: "welcome", Key: "a@example.org"}},
		{Message: outbox.Message{Topic: "goodbye"}},
	}
	for i, err := range mail.Deliver(context.Background(), outbox.Delivery{Rows: rows}) {
		fmt.Println(rows[i].Topic, errors.Is(err, outbox.ErrPermanent))
	}
	// Output:
	// welcome false
	// goodbye true
}
