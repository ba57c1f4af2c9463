package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
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

const (
	eventPage = 200         // events per call
	eventPoll = time.Second // how often to read without a wake-up
)

// Events yields the history after the event with the given number, in order and without gaps, and
// follows it until ctx ends. 0 begins with the oldest event kept. An error does not end the
// sequence. After [ErrEventsGone] it continues with the oldest event there is or, if the store has lost events, after
// the newest of the last few hundred that it still has: numbers that were yielded come again, with other events. After any
// other error it continues with the next attempt. A reader that does not want to wait for new events leaves the loop.
func (c *Coordinator) Events(ctx context.Context, after int64) iter.Seq2[daemon.Event, error] {
	return func(yield func(daemon.Event, error) bool) {
		p := place{after: after}
		for failures := 0; ctx.Err() == nil; {
			woken, before := c.wakeUps.next(), p.after
			err := c.readEvents(ctx, &p, yield)
			switch {
			case errors.Is(err, errBroken) || ctx.Err() != nil:
				return
			case err != nil:
				if !yield(daemon.Event{}, err) {
					return
				}
				failures++
				_ = backoff.Sleep(ctx, streamRetries.Jittered(failures))
			case p.after == before:
				failures = 0
				await(ctx, woken, eventPoll)
			default:
				failures = 0
			}
		}
	}
}

var errBroken = errors.New("the reader stopped")

// place is how far a reader of the history has come.
type place struct {
	after int64
	known []daemon.Event // the newest events up to after, as they were read; none if the reader has named the place
}

// pass moves the place to the next event.
func (p *place) pass(e *daemon.Event) {
	if len(p.known) == 2*eventPage {
		p.known = slices.Clone(p.known[eventPage:])
	}
	p.after, p.known = e.Seq, append(p.known, *e)
}

// stepBack moves the place back to the first n of the known events, or to the beginning if there are none.
func (p *place) stepBack(n int) {
	p.after, p.known = 0, p.known[:n]
	if n > 0 {
		p.after = p.known[n-1].Seq
	}
}

// isIn reports whether the history that a page comes from has the place.
func (p *place) isIn(page *storage.EventPage) bool {
	if n := len(p.known); n > 0 {
		return !history.Replaced(page, &p.known[n-1])
	}
	return page.Head >= p.after
}

// readEvents reads and yields one page, and moves the place to its end.
func (c *Coordinator) readEvents(ctx context.Context, p *place, yield func(daemon.Event, error) bool) error {
	page, err := c.eventsFrom(ctx, p)
	if err != nil {
		return err
	}
	if !p.isIn(page) && !yield(daemon.Event{}, fmt.Errorf("the store has another history than that of event %d: %w", p.after, ErrEventsGone)) {
		return errBroken
	}
	for !p.isIn(page) {
		if err := c.stepBack(ctx, p, page.Head); err != nil {
			return err
		}
		if page, err = c.eventsFrom(ctx, p); err != nil {
			return err
		}
	}
	if gone := page.Oldest - 1; p.after > 0 && p.after < gone {
		if !yield(daemon.Event{}, fmt.Errorf("events %d to %d: %w", p.after+1, gone, ErrEventsGone)) {
			return errBroken
		}
	}
	for i := range page.Events {
		e := &page.Events[i]
		if e.Seq > p.after && !yield(*e, nil) {
			return errBroken
		}
		if e.Seq > p.after || len(p.known) == 0 {
			p.pass(e)
		}
	}
	return nil
}

// stepBack moves the place to the newest event that the history up to head still has. That has all events before one that it
// has, so a search by halves finds it: all readers of a cluster do this at the same time.
func (c *Coordinator) stepBack(ctx context.Context, p *place, head int64) error {
	end, _ := slices.BinarySearchFunc(p.known, head+1, func(e daemon.Event, seq int64) int { return cmp.Compare(e.Seq, seq) })
	var err error
	n := sort.Search(end, func(i int) bool {
		if err != nil {
			return true
		}
		var page *storage.EventPage
		page, err = c.eventsAt(ctx, p.known[i].Seq, 1)
		return err != nil || history.Replaced(page, &p.known[i])
	})
	if err != nil {
		return err
	}
	p.stepBack(n)
	return nil
}

// eventsFrom reads a page that begins with the event at the place, so that it can be compared.
func (c *Coordinator) eventsFrom(ctx context.Context, p *place) (*storage.EventPage, error) {
	return c.eventsAt(ctx, p.after, eventPage)
}

// eventsAt reads so many events, beginning with the one that has the number.
func (c *Coordinator) eventsAt(ctx context.Context, seq int64, most int) (*storage.EventPage, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timing.QueryTimeout)
	defer cancel()
	page, err := c.store.Events(ctx, max(seq-1, 0), most)
	if err != nil {
		return nil, fmt.Errorf("read events after %d: %w", seq, err)
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
