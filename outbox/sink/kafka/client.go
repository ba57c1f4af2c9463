package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/emitd/emitd/outbox/sink"
)

// pingEvery is how often a waiting delivery checks whether any broker answers. silent is the time without
// an answer after which a broker counts as gone, unless Config.Options set another one.
const (
	pingEvery = 500 * time.Millisecond
	silent    = 5 * time.Second
)

// brokerWatch checks whether brokers answer. It is needed because clients repeat produce requests by themselves
// and do not report why that takes long.
type brokerWatch struct {
	client  *kgo.Client
	redact  func(error) error
	silence time.Duration // a broker without an answer for this time counts as gone

	mu     sync.Mutex
	newest *brokerCheck // the newest check
	lost   bool         // in the newest check no broker answered
}

// brokerCheck is one check whether any broker answers.
type brokerCheck struct {
	done chan struct{}
	at   time.Time // time of the answer; like err, valid once done is closed
	err  error     // why no broker answers
}

func (s *Sink) newClient(more ...kgo.Opt) (*kgo.Client, error) {
	more = append(more, kgo.ProducerBatchCompression(s.codec)) // a client writes into its own list of these
	c, err := kgo.NewClient(append(more, s.opts...)...)
	if err != nil {
		return nil, s.redacted(err)
	}
	return c, nil
}

// withBroker returns a context that ends when no broker answers; its cause is an [outbox.ErrSinkDown] with
// the reason. If no broker answered last time, it checks first, so that no record is given to a client
// that cannot produce it. The caller calls stop when it no longer waits.
func (w *brokerWatch) withBroker(ctx context.Context) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	if w.wasLost() {
		if err := w.unreachable(watched); err != nil {
			cancel(err)
			return watched, func() {}
		}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(pingEvery)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
			}
			if err := w.unreachable(watched); err != nil {
				cancel(err)
			}
		}
	}()
	return watched, func() { cancel(nil); <-over }
}

func (w *brokerWatch) wasLost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// unreachable returns why no broker answers. It returns nil if one does, or if ctx ended before that was
// known. Callers share a check, which continues for the next caller, and whose answer is reused for a
// while.
func (w *brokerWatch) unreachable(ctx context.Context) error {
	w.mu.Lock()
	if w.newest == nil || w.newest.old() {
		w.newest = &brokerCheck{done: make(chan struct{})}
		go w.answer(w.newest)
	}
	q := w.newest
	w.mu.Unlock()
	select {
	case <-q.done:
		return q.err
	case <-ctx.Done():
	}
	select {
	case <-q.done: // the answer came at the same moment as the end of ctx
		return q.err
	default:
		return nil
	}
}

func (q *brokerCheck) old() bool {
	select {
	case <-q.done:
		return time.Since(q.at) >= pingEvery
	default:
		return false
	}
}

// answer makes a check. It ends when the client is closed.
func (w *brokerWatch) answer(q *brokerCheck) {
	if err := w.pingAny(); err != nil {
		q.err = sink.Down("reach any broker", w.redact(err))
	}
	q.at = time.Now()
	w.mu.Lock()
	w.lost = q.err != nil
	w.mu.Unlock()
	close(q.done)
}

// pingAny asks the brokers in turn until one answers. It goes on to the next as soon as one cannot be reached
// or has not answered for a while.
func (w *brokerWatch) pingAny() (err error) {
	ctx, cancel := sink.WithDeadline(w.client.Context(), sink.TimeoutError{What: "the brokers", After: w.silence})
	defer cancel()
	brokers := append(w.client.DiscoveredBrokers(), w.client.SeedBrokers()...)
	answers := make(chan error, len(brokers))
	next := time.NewTicker(w.silence / 2 / time.Duration(len(brokers))) // together they get half of the time, at least
	defer next.Stop()
	for pinged, failed := 0, 0; failed < len(brokers); {
		if pinged < len(brokers) {
			go func(b *kgo.Broker) { answers <- ping(ctx, b) }(brokers[pinged])
			pinged++
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

// ping sends a broker the request that costs it least.
func ping(ctx context.Context, b *kgo.Broker) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // no topic; nil would mean all
	_, err := b.Request(ctx, req)
	return err
}
