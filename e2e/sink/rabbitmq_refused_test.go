package sink_test

import (
	"fmt"
	"testing"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/rabbitmq"
	"github.com/emitd/emitd/outbox/sink/sinktest"
	"github.com/emitd/emitd/outbox/sqlite"
)

// TestRabbitMQHeaderThatRoutes checks that a header by which the broker would route the message is not sent.
func TestRabbitMQHeaderThatRoutes(t *testing.T) {
	t.Parallel()
	v := newVhost(t)
	s := v.open(t, rabbitmq.Config{})
	rows := sinktest.Rows("orders", 6, 6)
	rows[1].Headers["CC"], rows[2].Headers["BCC"], rows[3].Headers["cc"] = "x", "x", "x"
	all(t, deliver(t, s, "0-63", 5, rows), nil)
	for _, m := range v.messages(t) {
		if m.Headers["CC"] != nil || m.Headers["BCC"] != nil || (m.MessageId == rows[3].ID.String()) != (m.Headers["cc"] != nil) {
			t.Errorf("headers: %v", m.Headers)
		}
	}
}

// TestRabbitMQClosesTheChannel checks that a message for which the broker closes the channel, and with it all that is in
// flight, is found: the others are delivered, and not even one attempt is counted against them. There is one call at a
// time, because calls share the channel.
func TestRabbitMQClosesTheChannel(t *testing.T) {
	t.Parallel()
	v := newVhost(t)
	o := newOffice(t)
	const others = 40
	must(t, o.pub.InTx(t.Context(), o.db, func(tx *sqlite.Tx) error {
		var messages []outbox.Message
		for n := range others + 1 {
			m := outbox.Message{Topic: "orders", Key: fmt.Sprint("key-", n), Payload: []byte("{}")}
			if n == others/2 {
				m.Key, m.Payload = "large", make([]byte, maxRabbitMessage+1)
			}
			messages = append(messages, m)
		}
		return o.pub.Publish(t.Context(), tx, messages...)
	}))
	relay, ended := o.relay(t, 1, outbox.Config{
		Sink: v.open(t, rabbitmq.Config{}), Parallel: 1, Policy: outbox.Skip, Retry: outbox.Retry{MaxAttempts: 1},
	})
	eventually(t, "everything is settled", func() bool {
		stats, err := o.log.Stats(t.Context(), "billing")
		must(t, err)
		return len(stats) == 1 && stats[0].Pending == 0
	})
	drained(t, relay, ended)
	dead, err := o.log.List(t.Context(), outbox.Filter{Subscription: "billing"})
	must(t, err)
	if len(dead) != 1 || dead[0].Key != "large" {
		for _, e := range dead {
			t.Errorf("%s is %s: %s", e.Key, e.Kind, e.Cause)
		}
	}
	arrived := map[string]bool{}
	for _, m := range v.received(t) {
		arrived[m.Key] = true
	}
	if len(arrived) != others {
		t.Errorf("messages of %d keys arrived, want %d", len(arrived), others)
	}
}
