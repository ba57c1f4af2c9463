package rabbitmq

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestReturnsOfOneMessage checks that a message which is published again before its first return has come does not
// count as taken, whenever its first sender gives up.
func TestReturnsOfOneMessage(t *testing.T) {
	t.Parallel()
	for name, givesUp := range map[string]int{"before the first return": 0, "between the returns": 1, "after both": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := unconnected()
			ends, returns := make(chan *amqp.Error), make(chan amqp.Return)
			go l.watch(ends, returns, nil)
			defer close(ends)
			first, second := l.expect("m"), l.expect("m")
			for n := range 3 {
				if n == givesUp {
					l.forget(first)
				}
				if n == 2 {
					break
				}
				returns <- amqp.Return{MessageId: "m", ReplyCode: amqp.NoRoute, ReplyText: "NO_ROUTE"}
				if err := l.awaitReturns(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if why := l.forget(second); why != "312 NO_ROUTE" {
				t.Errorf("the message came back for %q", why)
			}
			if len(l.published) > 0 {
				t.Errorf("%d messages are remembered", len(l.published))
			}
		})
	}
}
