package sink_test

import (
	"errors"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/rabbitmq"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// TestRabbitMQPublishedTwice checks that a message for a queue that does not exist never counts as taken: not if it was
// published twice on one channel, and the broker's answers to both come while only the second sender waits.
func TestRabbitMQPublishedTwice(t *testing.T) {
	t.Parallel()
	v := newVhost(t)
	w := newWire(t, v.target)
	s := v.open(t, rabbitmq.Config{URL: v.through(w), Timeout: 200 * time.Millisecond})
	eventually(t, "the sink is connected", func() bool { return deliver(t, s, "0-63", 5, sinktest.Rows("orders", 1, 1))[0] == nil })
	for range 30 {
		rows := sinktest.Rows("nowhere", 1, 1)
		w.from.hold(true)
		if err := deliver(t, s, "0-63", 5, rows)[0]; err == nil || errors.Is(err, outbox.ErrMissing) {
			t.Fatalf("while no answer comes: %v", err)
		}
		before, again := w.sent.Load(), make(chan error, 1)
		go func() { again <- deliver(t, s, "0-63", 5, rows)[0] }()
		eventually(t, "it is published again", func() bool { return w.sent.Load() > before })
		w.from.hold(false)
		if err := <-again; err == nil {
			t.Fatal("reported as taken, although no queue has it")
		}
	}
}
