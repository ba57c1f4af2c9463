package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"
)

// handle delivers a worker's part of a page. After a failure of the session it leaves the part
// undone: the page is delivered again by the next claim.
func (s *session) handle(ctx context.Context, l lot) {
	if ctx.Err() != nil {
		return
	}
	live := l.rows
	var outcomes []Outcome
	for i, row := range l.rows {
		if !s.behind(row.Key) {
			if outcomes != nil {
				live = append(live, row)
			}
			continue
		}
		if outcomes == nil {
			live = append(make([]Row, 0, len(l.rows)), l.rows[:i]...)
		}
		outcomes = append(outcomes, Outcome{Row: row, Kind: Behind})
	}
	tried, err := s.deliver(ctx, live)
	if err != nil {
		return
	}
	for _, o := range tried {
		switch o.Kind {
		case Delivered:
			continue
		case Waiting, Held, Behind:
			s.park(o.Row.Key)
		}
		outcomes = append(outcomes, o)
	}
	if outcomes != nil {
		l.work.mu.Lock()
		l.work.outcomes = append(l.work.outcomes, outcomes...)
		l.work.mu.Unlock()
	}
	l.work.part()
}

// deliver tries rows until each is delivered or has an outcome of its own; rows of a key in their
// order. An error says that it is unknown which were taken: the session is over, or ctx is.
// Outcomes of rows that were delivered are left out of pages' but not of lanes' accounts, so all are
// returned.
func (s *session) deliver(ctx context.Context, rows []Row) ([]Outcome, error) {
	outcomes := make([]Outcome, 0, len(rows))
	for len(rows) > 0 {
		errs, err := s.call(ctx, rows)
		if err != nil {
			return nil, err
		}
		var again []Row
		if errs == nil {
			for _, row := range rows {
				outcomes = append(outcomes, Outcome{Row: row, Kind: Delivered})
			}
			s.delivered(rows)
			break
		}
		var taken []Row
		stuck := map[string]bool{} // keys that wait from now on
		down := map[string]bool{}  // keys whose next message found the sink down
		for i, row := range rows {
			keyed := row.Key != ""
			switch err := errs[i]; {
			case err == nil:
				taken = append(taken, row)
				outcomes = append(outcomes, Outcome{Row: row, Kind: Delivered})
			case keyed && stuck[row.Key]:
				outcomes = append(outcomes, Outcome{Row: row, Kind: Behind})
			case keyed && down[row.Key]:
				again = append(again, row)
			case errors.Is(err, ErrSinkDown):
				down[row.Key] = true
				again = append(again, row)
			default:
				o := s.r.cfg.judge(row, err, rand.Float64()) //nolint:gosec // jitter is no secret
				s.failed(o, err)
				outcomes = append(outcomes, o)
				if o.Kind == Waiting || o.Kind == Held {
					stuck[row.Key] = true
				} else {
					down[row.Key] = true // the rest of its key was not tried: once more, without it
				}
			}
		}
		s.delivered(taken)
		rows = again
	}
	return outcomes, nil
}

// delivered and failed tell the observers.
func (s *session) delivered(rows []Row) {
	if len(rows) == 0 {
		return
	}
	s.r.take.delivered(rows)
	s.r.hooks.delivered(s.r.cfg.Name, rows)
}

func (s *session) failed(o Outcome, err error) {
	s.r.hooks.failed(s.r.cfg.Name, o.Row, err)
	if o.Kind == Dead || o.Kind == Dropped || o.Kind == Held {
		s.log.Warn("outbox message cannot be delivered", "seq", o.Row.Seq, "topic", o.Row.Topic, "attempts", o.Attempts, "then", string(o.Kind), "error", err)
	}
	if o.Kind == Dead || o.Kind == Dropped {
		s.r.hooks.dead(s.r.cfg.Name, o.Row, o.Cause)
	}
}

// call makes one call of the sink, or several if it hangs: nil says that all rows were taken, else
// there is an error or nil for each.
func (s *session) call(ctx context.Context, rows []Row) ([]error, error) {
	for {
		done, err := s.breaker.pass(ctx, s.a.Draining())
		if err != nil {
			s.fail(err) // what was not tried is delivered again by whoever is next
			return nil, err
		}
		errs, hung := s.once(ctx, rows)
		if ctx.Err() != nil {
			done(true)
			return nil, context.Cause(ctx)
		}
		for _, err := range errs {
			if errors.Is(err, ErrFenced) {
				done(true)
				s.fail(err)
				return nil, err
			}
		}
		if hung && lanesOf(rows) > 1 {
			errs = s.halves(ctx, rows)
			if ctx.Err() != nil {
				done(true)
				return nil, context.Cause(ctx)
			}
		}
		down := anyDown(errs)
		done(!down)
		if down && len(errs) > 0 && allDown(errs) {
			s.log.Warn("outbox sink is down", "error", errs[0])
			continue
		}
		return errs, nil
	}
}

// halves delivers rows that hang together: each half by itself, down to one key. If nothing at all
// comes through, the sink is down.
func (s *session) halves(ctx context.Context, rows []Row) []error {
	out := make([]error, len(rows))
	left, right := split(rows)
	progress := false
	for _, half := range [][]int{left, right} {
		part := make([]Row, len(half))
		for i, at := range half {
			part[i] = rows[at]
		}
		errs, hung := s.once(ctx, part)
		if ctx.Err() != nil {
			return out
		}
		if hung && lanesOf(part) > 1 && (progress || len(left) > 0 && half[0] == left[0]) {
			errs = s.halves(ctx, part)
		}
		for i, at := range half {
			if errs != nil {
				out[at] = errs[i]
			}
			progress = progress || out[at] == nil
		}
	}
	if !progress {
		for i := range out {
			out[i] = fmt.Errorf("%w: nothing was taken within %v", ErrSinkDown, s.r.cfg.DeliverTimeout)
		}
	}
	return out
}

// split parts rows into two by their lanes; both keep the order.
func split(rows []Row) (left, right []int) {
	side := map[string]bool{}
	lanes := 0
	half := lanesOf(rows) / 2
	for i, row := range rows {
		to, ok := side[row.Key]
		if !ok || row.Key == "" {
			lanes++
			to = lanes <= half
			side[row.Key] = to
		}
		if to {
			left = append(left, i)
		} else {
			right = append(right, i)
		}
	}
	return left, right
}

// lanesOf counts keys; messages of no key count each.
func lanesOf(rows []Row) int {
	keys := map[string]bool{}
	n := 0
	for _, row := range rows {
		if row.Key == "" {
			n++
		} else {
			keys[row.Key] = true
		}
	}
	return n + len(keys)
}

// once calls the sink. What it returns becomes nil, or one entry per row.
func (s *session) once(ctx context.Context, rows []Row) (errs []error, hung bool) {
	bounded, cancel := context.WithTimeout(ctx, s.r.cfg.DeliverTimeout)
	defer cancel()
	began := time.Now()
	d := Delivery{Subscription: s.r.cfg.Name, Epoch: s.a.Generation, Range: s.shards.String(), Rows: rows}
	spanned, end := s.r.take.publishing(bounded, d)
	errs = spread(s.protected(spanned, d), len(rows))
	hung = bounded.Err() != nil && ctx.Err() == nil && errs != nil
	end(time.Since(began), errs)
	return errs, hung
}

// protected turns a panic of the sink into an error.
func (s *session) protected(ctx context.Context, d Delivery) (errs []error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("outbox sink panicked", "panic", fmt.Sprintf("%.500v", p), "stack", string(debug.Stack()))
			errs = []error{fmt.Errorf("the sink panicked: %.500v", p)}
		}
	}()
	return s.r.cfg.Sink.Deliver(ctx, d)
}

// spread makes what a sink returned one entry per row, or nil if all are.
func spread(errs []error, n int) []error {
	failed := false
	for _, err := range errs {
		failed = failed || err != nil
	}
	switch {
	case len(errs) == n && failed:
		return errs
	case len(errs) == 0, len(errs) == n, len(errs) == 1 && !failed:
		return nil
	}
	err := errs[0]
	if len(errs) > 1 {
		err = fmt.Errorf("the sink returned %d errors for %d messages", len(errs), n)
	}
	out := make([]error, n)
	for i := range out {
		out[i] = err
	}
	return out
}

func anyDown(errs []error) bool {
	for _, err := range errs {
		if errors.Is(err, ErrSinkDown) {
			return true
		}
	}
	return false
}

func allDown(errs []error) bool {
	for _, err := range errs {
		if !errors.Is(err, ErrSinkDown) {
			return false
		}
	}
	return true
}
