package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// TestClassify checks which errors stop all topics and which only one. A record that times out, or a
// connection that fails, while brokers answer concerns at most one topic, and so does a context that
// ends.
func TestClassify(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	read := &net.OpError{Op: "read", Err: errors.New("reset")}
	for _, c := range []struct {
		err  error
		ping error // result of asking the brokers
		down bool
	}{
		{err: kgo.ErrRecordTimeout},
		{err: kgo.ErrRecordTimeout, ping: dial, down: true},
		{err: fmt.Errorf("%w, last err: %w", kgo.ErrRecordTimeout, dial)}, // one broker
		{err: fmt.Errorf("%w, last err: %w", kgo.ErrRecordTimeout, dial), ping: dial, down: true},
		{err: fmt.Errorf("%w, last err: %w", kgo.ErrRecordTimeout, kerr.NotEnoughReplicas)},
		{err: context.DeadlineExceeded},
		{err: context.Canceled},
		{err: &net.OpError{Op: "read", Err: context.DeadlineExceeded}},
		{err: errors.New("the client's own")},
		{err: errors.New("the client's own"), ping: dial, down: true},
		{err: kerr.NotEnoughReplicas, ping: dial},
		{err: dial},
		{err: read},
		{err: read, ping: dial, down: true},
		{err: kgo.ErrClientClosed, down: true},
		{err: kerr.NotEnoughReplicas},
		{err: kerr.TopicAuthorizationFailed},
		{err: kerr.SaslAuthenticationFailed, down: true},
	} {
		q := &brokerCheck{at: time.Now().Add(time.Hour), done: make(chan struct{})} // no broker is asked
		if close(q.done); c.ping != nil {
			q.err = sink.Down("reach any broker", c.ping)
		}
		err := (&Sink{watch: &brokerWatch{newest: q}}).classify(t.Context(), "orders", c.err)
		if errors.Is(err, outbox.ErrSinkDown) != c.down || errors.Is(err, outbox.ErrPermanent) || !errors.Is(err, c.err) {
			t.Errorf("%v, brokers say %v: %v", c.err, c.ping, err)
		}
	}
}
