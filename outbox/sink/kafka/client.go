package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/emitd/emitd/outbox/sink"
)

// How often it is asked whether any broker answers while a delivery waits, and after what time without
// an answer a broker is taken to be gone.
const (
	askEvery = 500 * time.Millisecond
	silence  = 5 * time.Second
)

// client is one of Kafka's that is asked whether its brokers are there: what it was given to produce it
// repeats by itself, and does not tell why that takes long.
type client struct {
	*kgo.Client
	redact func(error) error

	mu    sync.Mutex
	asked *question // the newest
	lost  bool      // the newest answer was that none answers
}

// question is whether any broker answers.
type question struct {
	at   time.Time
	done chan struct{}
	err  error // why none does; valid when done is closed
}

func (s *Sink) newClient(more ...kgo.Opt) (*client, error) {
	more = append(more, kgo.ProducerBatchCompression(s.codec)) // a client writes into its own list of these
	c, err := kgo.NewClient(append(more, s.opts...)...)
	if err != nil {
		return nil, s.redacted(err)
	}
	return &client{Client: c, redact: s.redacted}, nil
}

// watched returns a context that ends when no broker answers, with the [outbox.ErrSinkDown] that says
// why as its cause. When that is how it was last, they are asked first, so that nothing is given to a
// client that cannot produce it. The caller calls stop when it waits no longer.
func (c *client) watched(ctx context.Context) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	if c.wasLost() {
		if err := c.silent(watched); err != nil {
			cancel(err)
			return watched, func() {}
		}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(askEvery)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
			}
			if err := c.silent(watched); err != nil {
				cancel(err)
			}
		}
	}()
	return watched, func() { cancel(nil); <-over }
}

func (c *client) wasLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// silent says why no broker answers; nil if one does, or if ctx ended before that was known. The
// question is shared, and goes on for who asks next.
func (c *client) silent(ctx context.Context) error {
	c.mu.Lock()
	if c.asked == nil || c.asked.over() && time.Since(c.asked.at) >= askEvery {
		c.asked = &question{at: time.Now(), done: make(chan struct{})}
		go c.answer(c.asked)
	}
	q := c.asked
	c.mu.Unlock()
	select {
	case <-q.done:
		return q.err
	case <-ctx.Done():
		return nil
	}
}

func (q *question) over() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// answer finds the answer to a question. It ends with the client.
func (c *client) answer(q *question) {
	if err := c.ask(); err != nil {
		q.err = sink.Down("reach any broker", c.redact(err))
	}
	c.mu.Lock()
	c.lost = q.err != nil
	c.mu.Unlock()
	close(q.done)
}

// ask asks one broker after the other, the next as soon as one is out of reach or says nothing for a
// while, until one answers.
func (c *client) ask() (err error) {
	ctx, cancel := sink.Limit(c.Context(), sink.Deadline{What: "the brokers", After: silence})
	defer cancel()
	brokers := append(c.DiscoveredBrokers(), c.SeedBrokers()...)
	answers := make(chan error, len(brokers))
	next := time.NewTicker(silence / 2 / time.Duration(len(brokers))) // all have half of the time, at least
	defer next.Stop()
	for asked, failed := 0, 0; failed < len(brokers); {
		if asked < len(brokers) {
			go func(b *kgo.Broker) { answers <- ping(ctx, b) }(brokers[asked])
			asked++
		}
		select {
		case err = <-answers:
			if err == nil {
				return nil
			}
			failed++
		case <-next.C:
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// ping asks a broker for what costs it least.
func ping(ctx context.Context, b *kgo.Broker) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // of no topic; nil would be all
	_, err := b.Request(ctx, req)
	return err
}
