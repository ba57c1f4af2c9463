package logtest

import (
	"context"
	"sync"

	"github.com/emitd/emitd/outbox"
)

// EndlessLog is a log that costs nothing: it returns the same page again and again and stores nothing. So the
// rate at which its messages are delivered measures the relay and the sink alone. It serves one run of
// one unit of one subscription.
type EndlessLog struct {
	page  []outbox.Row
	pages int
	done  chan struct{}
	once  sync.Once
}

// NewFree returns a log with a number of pages; each holds rows.
func NewFree(rows []outbox.Row, pages int) *EndlessLog {
	return &EndlessLog{page: rows, pages: pages, done: make(chan struct{})}
}

// Done returns a channel that is closed when the position after the last page was stored.
func (f *EndlessLog) Done() <-chan struct{} { return f.done }

// Claim implements [outbox.Log].
func (f *EndlessLog) Claim(context.Context, outbox.ClaimRequest) (outbox.Cursor, error) {
	return &freeCursor{EndlessLog: f}, nil
}

// WakeUps implements [outbox.Log].
func (f *EndlessLog) WakeUps(context.Context) <-chan struct{} { return nil }

type freeCursor struct {
	*EndlessLog
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

func (c *freeCursor) Parked() []string                                 { return nil }
func (c *freeCursor) Due(context.Context, int) ([][]outbox.Row, error) { return nil, nil }
func (c *freeCursor) Promote(context.Context, int) (int, error)        { return 0, nil }
func (c *freeCursor) SetProblem(context.Context, string) error         { return nil }
func (c *freeCursor) Close()                                           {}
func (c *freeCursor) StoreParked(context.Context, []outbox.Outcome) ([]string, error) {
	return nil, nil
}
