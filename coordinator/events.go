package coordinator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/coordinator/history"
	"github.com/emitd/emitd/storage"
)

// ErrEventsGone reports that events which a reader wanted have been swept, or that the store has lost events which the
// reader has read (a restored backup, an asynchronous failover). The reader should call [Coordinator.Snapshot] for the
// current state, and can then go on.
var ErrEventsGone = errors.New("events are gone")

// eventPoll is how often to read without a wake-up.
const eventPoll = time.Second

// Events yields the history after the event with the given number, in order and without gaps, and
// follows it until ctx ends. 0 begins with the oldest event kept. An error does not end the
// sequence. After [ErrEventsGone] it continues with the oldest event there is or, if the store has lost events, after
// the newest of the last few hundred that it still has: numbers that were yielded come again, with other events. After any
// other error it continues with the next attempt. A reader that does not want to wait for new events leaves the loop.
func (c *Coordinator) Events(ctx context.Context, after int64) iter.Seq2[daemon.Event, error] {
	return func(yield func(daemon.Event, error) bool) {
		unbroken := func(e daemon.Event, err error) error {
			if !yield(e, err) {
				return errBroken
			}
			return nil
		}
		r := history.Reader{Events: c.page, After: after}
		for failures := 0; ctx.Err() == nil; {
			woken, before := c.wakeUps.next(), r.After
			err := r.Read(ctx,
				func(what string) error { return unbroken(daemon.Event{}, fmt.Errorf("%s: %w", what, ErrEventsGone)) },
				func(e daemon.Event) error { return unbroken(e, nil) })
			switch {
			case errors.Is(err, errBroken) || ctx.Err() != nil:
				return
			case err != nil:
				if !yield(daemon.Event{}, err) {
					return
				}
				failures++
				_ = backoff.Sleep(ctx, streamRetries.Jittered(failures))
			case r.After == before:
				failures = 0
				await(ctx, woken, eventPoll)
			default:
				failures = 0
			}
		}
	}
}

var errBroken = errors.New("the reader stopped")

// page reads a part of the history, within the query timeout.
func (c *Coordinator) page(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timing.QueryTimeout)
	defer cancel()
	page, err := c.store.Events(ctx, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read events after %d: %w", after, err)
	}
	return page, nil
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
