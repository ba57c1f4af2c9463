package logtest

import (
	"context"
	"sync"

	"github.com/emitd/emitd/outbox"
)

// Free is a log that costs nothing: it returns the same page again and again and stores nothing. So the
// rate at which its messages are delivered measures the relay and the sink alone. It serves one run of
// one unit of one subscription.
type Free struct {
	page  []outbox.Row
	pages int
	done  chan struct{}
	once  sync.Once
}

// NewFree returns a log with a number of pages; each holds rows.
func NewFree(rows []outbox.Row, pages int) *Free {
	return &Free{page: rows, pages: pages, done: make(chan struct{})}
}

// Done returns a channel that is closed when the position after the last page was stored.
func (f *Free) Done() <-chan struct{} { return f.done }

// Claim implements [outbox.Log].
func (f *Free) Claim(context.Context, outbox.Claim) (outbox.Cursor, error) {
	return &freeCursor{Free: f}, nil
}

// Wake implements [outbox.Log].
func (f *Free) Wake(context.Context) <-chan struct{} { return nil }

type freeCursor struct {
	*Free
	next int
}

func (c *freeCursor) Next(context.Context, outbox.Limit) (outbox.Page, error) {
	if c.next == c.pages {
		return outbox.Page{}, nil
	}
	c.next++
	return outbox.Page{Rows: c.page, Mark: c.next, More: c.next < c.pages}, nil
}

func (c *freeCursor) Advance(_ context.Context, to outbox.Mark, _ []outbox.Outcome) error {
	if to == c.pages {
		c.once.Do(func() { close(c.done) })
	}
	return nil
}

func (c *freeCursor) Parked() []string                                           { return nil }
func (c *freeCursor) Due(context.Context, int) ([][]outbox.Row, error)           { return nil, nil }
func (c *freeCursor) Promote(context.Context, int) (int, error)                  { return 0, nil }
func (c *freeCursor) Trouble(context.Context, string) error                      { return nil }
func (c *freeCursor) Close()                                                     {}
func (c *freeCursor) Settle(context.Context, []outbox.Outcome) ([]string, error) { return nil, nil }
