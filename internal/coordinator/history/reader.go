package history

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// pageSize is how many events a call reads at most.
const pageSize = 200

// Reader reads the history in order, and says what it misses. It remembers the newest events that it has passed on: if
// the store loses some of them, it goes on after the newest one that is left.
type Reader struct {
	// Events reads at most limit events after a number, as a store does.
	Events func(ctx context.Context, after int64, limit int) (*storage.EventPage, error)
	// After is the number of the event after which the next page begins; 0 is the oldest event kept.
	After int64

	known []daemon.Event // the newest events up to After, as they were read; none if the user has named the place
}

// Pass moves the place behind an event, the next one in the history.
func (r *Reader) Pass(e *daemon.Event) {
	if len(r.known) == 2*pageSize {
		r.known = slices.Clone(r.known[pageSize:])
	}
	r.After, r.known = e.Seq, append(r.known, *e)
}

// Read passes the events of one page on, and moves the place behind them. Before that, gone gets what the reader misses:
// events that were deleted, or that the store has lost. An error of either function ends the read and is returned.
func (r *Reader) Read(ctx context.Context, gone func(what string) error, event func(daemon.Event) error) error {
	page, err := r.from(ctx, r.After, pageSize)
	if err != nil {
		return err
	}
	if !r.isIn(page) {
		if err := gone(fmt.Sprintf("the store has another history than that of event %d", r.After)); err != nil {
			return err
		}
	}
	for !r.isIn(page) {
		if err := r.stepBack(ctx, page.Head); err != nil {
			return err
		}
		if page, err = r.from(ctx, r.After, pageSize); err != nil {
			return err
		}
	}
	if last := page.Oldest - 1; r.After > 0 && r.After < last {
		if err := gone(fmt.Sprintf("events %d to %d", r.After+1, last)); err != nil {
			return err
		}
	}
	for i := range page.Events {
		e := &page.Events[i]
		if e.Seq > r.After {
			if err := event(*e); err != nil {
				return err
			}
		}
		if e.Seq > r.After || len(r.known) == 0 {
			r.Pass(e)
		}
	}
	return nil
}

// isIn reports whether the history that a page comes from has the place.
func (r *Reader) isIn(page *storage.EventPage) bool {
	if n := len(r.known); n > 0 {
		return !Replaced(page, &r.known[n-1])
	}
	return page.Head >= r.After
}

// stepBack moves the place to the newest event that the history up to head still has. That has all events before one that it
// has, so a search by halves finds it: all readers of a cluster do this at the same time.
func (r *Reader) stepBack(ctx context.Context, head int64) error {
	end, _ := slices.BinarySearchFunc(r.known, head+1, func(e daemon.Event, seq int64) int { return cmp.Compare(e.Seq, seq) })
	var err error
	n := sort.Search(end, func(i int) bool {
		if err != nil {
			return true
		}
		var page *storage.EventPage
		page, err = r.from(ctx, r.known[i].Seq, 1)
		return err != nil || Replaced(page, &r.known[i])
	})
	if err != nil {
		return err
	}
	r.moveBack(n)
	return nil
}

// moveBack moves the place back to the first n of the known events, or to the beginning if there are none.
func (r *Reader) moveBack(n int) {
	r.After, r.known = 0, r.known[:n]
	if n > 0 {
		r.After = r.known[n-1].Seq
	}
}

// from reads so many events, beginning with the one that has the number, so that it can be compared.
func (r *Reader) from(ctx context.Context, seq int64, most int) (*storage.EventPage, error) {
	return r.Events(ctx, max(seq-1, 0), most)
}
