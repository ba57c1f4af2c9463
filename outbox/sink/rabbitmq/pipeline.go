package rabbitmq

import (
	"context"
	"errors"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink"
)

// inFlight is a message that was published, or the reason why it was not.
type inFlight struct {
	key string // its routing key
	*publication
	err error
}

// call publishes rows one behind the other without waiting, and meanwhile waits for the confirmations.
type call struct {
	s         *Sink
	l         *link
	d         outbox.Delivery
	rows      []int
	published chan inFlight // has room for all

	errs   []error
	failed map[string]bool // keys of which a row was not taken
	stuck  error           // why nothing more is waited for
	// confirmed are the places of rows that the broker has taken, and that may have come back as unroutable.
	confirmed []int
	messages  []inFlight // of confirmed
}

// publish returns an error for each row, nil if the broker has it and all before it of its key.
func (s *Sink) publish(ctx context.Context, l *link, d outbox.Delivery, rows []int) []error {
	c := &call{s: s, l: l, d: d, rows: rows, published: make(chan inFlight, len(rows)), errs: make([]error, len(rows)), failed: map[string]bool{}}
	publishing, cancel := context.WithCancel(ctx)
	defer cancel()
	go c.publishAll(publishing) // the library's write never ends if the peer does not read
	for n := range rows {
		m, err := c.next(ctx, n)
		if err != nil {
			c.settleConfirmed(ctx)
			c.settle(ctx, n, err)
			continue
		}
		c.confirmed, c.messages = append(c.confirmed, n), append(c.messages, m)
	}
	c.settleConfirmed(ctx)
	if c.stuck != nil {
		go c.forgetRest()
	}
	return c.errs
}

// forgetRest forgets what a call that is over has published, or is about to.
func (c *call) forgetRest() {
	for m := range c.published {
		if m.publication != nil {
			c.l.forget(m.publication)
		}
	}
}

// publishAll publishes the rows and leaves out those of keys of which a row could not be published. It stops when
// the connection ends or blocks.
func (c *call) publishAll(ctx context.Context) {
	defer close(c.published)
	var end error
	failed := map[string]bool{}
	for _, i := range c.rows {
		row := c.d.Rows[i]
		m := inFlight{err: end}
		switch {
		case end != nil:
		case failed[row.Key]:
			m.err = outbox.ErrSkipped
		case ctx.Err() != nil:
			m.err = fmt.Errorf("publish: not attempted: %w", context.Cause(ctx))
		default:
			m = c.publishOne(ctx, row)
		}
		if errors.Is(m.err, outbox.ErrSinkDown) || m.err != nil && !c.l.alive() {
			end = m.err
		}
		if m.err != nil && row.Key != "" {
			failed[row.Key] = true
		}
		c.published <- m
	}
}

func (c *call) publishOne(ctx context.Context, row outbox.Row) (m inFlight) {
	if m.key, m.err = c.s.check(c.l, row); m.err != nil {
		return m
	}
	if m.publication, m.err = c.l.publish(c.s.cfg.Exchange, m.key, !c.s.cfg.Unroutable, message(c.d, row)); m.err != nil {
		m.err = c.s.outcome(ctx, c.l, m.key, "", c.l.cause(ctx, m.err))
	}
	return m
}

// next waits for the confirmation of row n. Before it waits, it settles those that are confirmed.
func (c *call) next(ctx context.Context, n int) (m inFlight, err error) {
	if c.stuck != nil {
		return m, c.stuck
	}
	ready := func() bool { return len(c.published) > 0 }
	bounded, cancel := c.bound(ctx, ready)
	select {
	case m = <-c.published:
		cancel()
	case <-bounded.Done():
		cancel()
		c.stuck = c.s.outcome(bounded, c.l, c.s.routingKey(c.d.Rows[c.rows[n]]), "", context.Cause(bounded))
		return m, c.stuck
	}
	if m.err != nil {
		return m, m.err
	}
	bounded, cancel = c.bound(ctx, func() bool { return closed(m.confirmation.Done()) })
	defer cancel()
	if err = c.l.awaitConfirmation(bounded, m.confirmation); err == nil {
		return m, nil
	}
	c.l.forget(m.publication)
	if err = c.s.outcome(bounded, c.l, m.key, "", err); bounded.Err() != nil {
		c.stuck = err // the broker counts as silent: the confirmations behind it are not waited for either
	}
	return m, err
}

// bound returns a context with the time limit of a wait, unless there is nothing to wait for.
func (c *call) bound(ctx context.Context, ready func() bool) (context.Context, context.CancelFunc) {
	if ready() {
		return ctx, func() {}
	}
	c.settleConfirmed(ctx)
	return sink.WithDeadline(ctx, sink.TimeoutError{What: "the broker", After: c.s.cfg.Timeout})
}

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// settleConfirmed finds out which of the confirmed messages came back, and settles their rows.
func (c *call) settleConfirmed(ctx context.Context) {
	if len(c.confirmed) == 0 {
		return
	}
	var err error
	if !c.s.cfg.Unroutable {
		err = c.l.awaitReturns(ctx)
	}
	for i, n := range c.confirmed {
		m := c.messages[i]
		c.settle(ctx, n, c.s.outcome(ctx, c.l, m.key, c.l.forget(m.publication), err))
	}
	c.confirmed, c.messages = c.confirmed[:0], c.messages[:0]
}

// settle records the outcome of row n, after those before it.
func (c *call) settle(ctx context.Context, n int, err error) {
	key := c.d.Rows[c.rows[n]].Key
	switch {
	case err == nil && c.failed[key]:
		err = outbox.ErrSkipped // the broker has it, too early: it comes again behind the one that failed
	case err == nil:
		progress.Taken(ctx, c.rows[n])
	case c.failed[key] && !errors.Is(err, outbox.ErrSinkDown):
		err = outbox.ErrSkipped
	}
	c.errs[n] = err
	if err != nil && key != "" {
		c.failed[key] = true
	}
}
