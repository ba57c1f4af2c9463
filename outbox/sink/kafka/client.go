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
// an answer a broker is taken to be gone, if Config.Options do not say otherwise.
const (
	askEvery = 500 * time.Millisecond
	silent   = 5 * time.Second
)

// watch asks whether brokers are there: clients repeat by themselves what they were given to produce,
// and do not tell why that takes long.
type watch struct {
	client  *kgo.Client
	redact  func(error) error
	silence time.Duration // after which a broker is taken to be gone

	mu    sync.Mutex
	asked *question // the newest
	lost  bool      // the newest answer was that none answers
}

// question is whether any broker answers.
type question struct {
	done chan struct{}
	at   time.Time // of the answer; valid when done is closed, like err
	err  error     // why none does
}

func (s *Sink) newClient(more ...kgo.Opt) (*kgo.Client, error) {
	more = append(more, kgo.ProducerBatchCompression(s.codec)) // a client writes into its own list of these
	c, err := kgo.NewClient(append(more, s.opts...)...)
	if err != nil {
		return nil, s.redacted(err)
	}
	return c, nil
}

// during returns a context that ends when no broker answers, with the [outbox.ErrSinkDown] that says
// why as its cause. When that is how it was last, they are asked first, so that nothing is given to a
// client that cannot produce it. The caller calls stop when it waits no longer.
func (w *watch) during(ctx context.Context) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	if w.wasLost() {
		if err := w.silent(watched); err != nil {
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
			if err := w.silent(watched); err != nil {
				cancel(err)
			}
		}
	}()
	return watched, func() { cancel(nil); <-over }
}

func (w *watch) wasLost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// silent says why no broker answers; nil if one does, or if ctx ended before that was known. The
// question is shared, goes on for who asks next, and its answer holds for a while.
func (w *watch) silent(ctx context.Context) error {
	w.mu.Lock()
	if w.asked == nil || w.asked.old() {
		w.asked = &question{done: make(chan struct{})}
		go w.answer(w.asked)
	}
	q := w.asked
	w.mu.Unlock()
	select {
	case <-q.done:
		return q.err
	case <-ctx.Done():
	}
	select {
	case <-q.done: // it is known all the same
		return q.err
	default:
		return nil
	}
}

func (q *question) old() bool {
	select {
	case <-q.done:
		return time.Since(q.at) >= askEvery
	default:
		return false
	}
}

// answer finds the answer to a question. It ends with the client.
func (w *watch) answer(q *question) {
	if err := w.ask(); err != nil {
		q.err = sink.Down("reach any broker", w.redact(err))
	}
	q.at = time.Now()
	w.mu.Lock()
	w.lost = q.err != nil
	w.mu.Unlock()
	close(q.done)
}

// ask asks one broker after the other, the next as soon as one is out of reach or says nothing for a
// while, until one answers.
func (w *watch) ask() (err error) {
	ctx, cancel := sink.Limit(w.client.Context(), sink.Deadline{What: "the brokers", After: w.silence})
	defer cancel()
	brokers := append(w.client.DiscoveredBrokers(), w.client.SeedBrokers()...)
	answers := make(chan error, len(brokers))
	next := time.NewTicker(w.silence / 2 / time.Duration(len(brokers))) // all have half of the time, at least
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
