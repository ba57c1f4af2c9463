package coordinator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/backoff"
)

// ErrEventsGone reports that events which a reader wanted have been swept. The reader should call
// [Coordinator.Snapshot] for the current state, and can then go on.
var ErrEventsGone = errors.New("older events are gone")

const (
	eventPage = 200         // events per call
	eventPoll = time.Second // how often to read without a wake-up
)

// Events yields the history after the event with the given number, in order and without gaps, and
// follows it until ctx ends. 0 begins with the oldest event kept. An error does not end the
// sequence. After [ErrEventsGone] it continues with the oldest event there is, after any other
// error with the next attempt. A reader that does not want to wait for new events leaves the loop.
func (c *Coordinator) Events(ctx context.Context, after int64) iter.Seq2[daemon.Event, error] {
	return func(yield func(daemon.Event, error) bool) {
		for failures := 0; ctx.Err() == nil; {
			woken := c.wakeUps.next()
			next, err := c.readEvents(ctx, after, yield)
			switch {
			case errors.Is(err, errBroken) || ctx.Err() != nil:
				return
			case err != nil:
				if !yield(daemon.Event{}, err) {
					return
				}
				failures++
				_ = backoff.Sleep(ctx, streamRetries.Jittered(failures))
			case next == after:
				failures = 0
				await(ctx, woken, eventPoll)
			default:
				failures = 0
			}
			after = next
		}
	}
}

var errBroken = errors.New("the reader stopped")

// readEvents reads and yields one page. It returns the number of the page's last event.
func (c *Coordinator) readEvents(ctx context.Context, after int64, yield func(daemon.Event, error) bool) (int64, error) {
	bounded, cancel := context.WithTimeout(ctx, c.timing.QueryTimeout)
	defer cancel()
	page, err := c.store.Events(bounded, after, eventPage)
	if err != nil {
		return after, fmt.Errorf("read events after %d: %w", after, err)
	}
	if gone := page.Oldest - 1; after > 0 && after < gone {
		if !yield(daemon.Event{}, fmt.Errorf("events %d to %d: %w", after+1, gone, ErrEventsGone)) {
			return after, errBroken
		}
	}
	for _, e := range page.Events {
		if !yield(e, nil) {
			return after, errBroken
		}
		after = e.Seq
	}
	return after, nil
}

// await waits for a wake-up, at most for d.
func await(ctx context.Context, wakeUp <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-wakeUp:
	case <-t.C:
	case <-ctx.Done():
	}
}

// Snapshot reads the whole cluster from the store, in one consistent step.
func (c *Coordinator) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timing.QueryTimeout)
	defer cancel()
	s, err := c.store.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("snapshot of the cluster: %w", err)
	}
	return s, nil
}
