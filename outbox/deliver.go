package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
)

// handle delivers a worker's part of a page. After a failure of the session it leaves the part
// undone: the page is delivered again by the next claim.
func (s *session) handle(ctx context.Context, l lot) {
	if ctx.Err() != nil {
		return
	}
	live, outcomes := s.behind(l.rows)
	tried, err := s.deliver(ctx, live, fromPage)
	if err != nil {
		return
	}
	if len(tried) > 0 {
		s.park(tried)
		outcomes = append(outcomes, tried...)
	}
	if len(outcomes) > 0 {
		l.work.mu.Lock()
		l.work.outcomes = append(l.work.outcomes, outcomes...)
		l.work.mu.Unlock()
	}
	l.work.part()
}

// source is where rows that are delivered come from. Those of pages must not keep others waiting.
type source bool

const (
	fromPage  source = true
	fromLanes source = false
)

// gaveUp is how often in one delivery the rest of a key is tried after a message of it was given up.
// Then it waits in its lane: a key of which all are bad does not hold its page.
const gaveUp = 3

// deliver tries rows until each was taken or has an outcome, which is returned; rows of a key in their
// order. An error says that it is unknown which were taken: the session is over, or ctx is.
func (s *session) deliver(ctx context.Context, rows []Row, from source) (outcomes []Outcome, err error) {
	for round := 1; len(rows) > 0; round++ {
		errs, err := s.call(ctx, rows, from)
		if err != nil {
			return nil, err
		}
		if errs == nil {
			s.delivered(rows)
			break
		}
		t := tally{from: from, last: round >= gaveUp, blamed: blamed(errs), keys: map[string]fate{}}
		for i, row := range rows {
			s.judge(&t, row, errs[i])
		}
		s.delivered(t.taken)
		if t.hung > 0 {
			s.log.Warn("outbox sink is slow; messages leave their page for the lanes of their keys", "messages", t.hung, "patience", s.r.cfg.Patience)
		}
		outcomes, rows = append(outcomes, t.outcomes...), t.again
	}
	return outcomes, nil
}

// tally is what became of the rows of one call.
type tally struct {
	from     source
	last     bool // no key is tried again because a message of it was given up
	blamed   bool // there are failures that explain what was skipped
	keys     map[string]fate
	taken    []Row
	again    []Row
	outcomes []Outcome
	hung     int
}

// fate is what follows for the rest of a key when a message of it was not taken.
type fate int

const (
	waits   fate = iota + 1 // in its lane
	repeats                 // it is given to the sink once more
)

// judge decides what becomes of a row.
func (s *session) judge(t *tally, row Row, err error) {
	if err == nil {
		t.taken = append(t.taken, row)
		return
	}
	f := fate(0)
	if row.Key != "" {
		f = t.keys[row.Key]
	}
	switch {
	case f == waits:
		t.outcomes = append(t.outcomes, Outcome{Row: row, Kind: Behind})
	case f == repeats, errors.Is(err, ErrSinkDown), t.blamed && errors.Is(err, ErrSkipped):
		t.again = append(t.again, row)
		f = repeats
	case t.from == fromPage && hung(err): // nothing is known about the row itself
		t.outcomes = append(t.outcomes, Outcome{Row: row, Kind: Behind})
		t.hung++
		f = waits
	default:
		o := s.r.cfg.judge(row, err, rand.Float64()) //nolint:gosec // jitter is no secret
		s.failed(o, err)
		t.outcomes = append(t.outcomes, o)
		f = waits
		if (o.Kind == Dead || o.Kind == Dropped) && !t.last {
			f = repeats
		}
	}
	t.keys[row.Key] = f
}

// blamed reports whether something failed for a reason of its own.
func blamed(errs []error) bool {
	for _, err := range errs {
		if err != nil && !errors.Is(err, ErrSkipped) {
			return true
		}
	}
	return false
}

// delivered and failed tell the observers.
func (s *session) delivered(rows []Row) {
	if len(rows) == 0 {
		return
	}
	s.r.take.delivered(rows, s.replayed.Load())
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

// call makes one call of the sink, or several if it hangs or is down: nil says that all rows were
// taken, else there is an error or nil for each.
func (s *session) call(ctx context.Context, rows []Row, from source) ([]error, error) {
	for {
		done, err := s.r.breaker.pass(ctx, s.a.Draining())
		if err != nil {
			s.fail(err) // what was not tried is delivered again by whoever is next
			return nil, err
		}
		if left, ok := daemon.Trust(ctx); ok && left <= 0 {
			done(unclear, 0)
			s.fail(errTrust)
			return nil, errTrust
		}
		errs := s.once(ctx, rows, from)
		if anyHung(errs) {
			done(unclear, 0) // others may try meanwhile
			done = s.r.breaker.result
			errs = s.untangle(ctx, rows, errs, from)
		}
		if err := over(ctx, errs); err != nil {
			done(unclear, 0)
			s.fail(err)
			return nil, err
		}
		all, rest, why := resting(errs)
		if why == nil {
			done(isUp, 0)
			s.trouble.set("")
			return errs, nil
		}
		done(isDown, rest)
		s.trouble.set(why.Error())
		if !all {
			return errs, nil
		}
		s.log.Warn("outbox sink is down", "error", why)
	}
}

// over says why no more deliveries are to be made: the context has ended, or the receiver refused.
func over(ctx context.Context, errs []error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, err := range errs {
		if err != nil && errors.Is(err, ErrFenced) {
			return err
		}
	}
	return nil
}

// resting says whether the sink is down for all rows, for how long it asks for a rest, and why it is down
// for a row; nil if it is for none.
func resting(errs []error) (all bool, rest time.Duration, why error) {
	all = len(errs) > 0
	for _, err := range errs {
		if err == nil || !errors.Is(err, ErrSinkDown) {
			all = false
			continue
		}
		if why == nil {
			why = err
		}
		var later *RetryAfterError
		if errors.As(err, &later) {
			rest = max(rest, later.After)
		}
	}
	return all, rest, why
}

// once calls the sink. What it returns becomes nil, or one entry per row.
func (s *session) once(ctx context.Context, rows []Row, from source) []error {
	limit := s.r.cfg.DeliverTimeout
	if from == fromPage {
		limit = s.r.cfg.Patience
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	d := Delivery{Subscription: s.r.cfg.Name, Epoch: s.a.Generation, Range: s.shards, Rows: rows}
	spanned, spans := s.r.take.publishing(bounded, d)
	errs := spread(s.sendable(spanned, d), len(rows))
	s.r.take.published(spans, time.Since(began), errs)
	if errs != nil && bounded.Err() != nil {
		return cutOff(errs, limit)
	}
	return errs
}

// sendable gives the sink what it can send. A message whose headers no protocol of lines can carry never comes through:
// a publisher that is no Go program may have written it into the log.
func (s *session) sendable(ctx context.Context, d Delivery) []error {
	var bad []error
	var good []Row
	var places []int
	for i, row := range d.Rows {
		if err := unsendable(row); err != nil {
			if bad == nil {
				bad = make([]error, len(d.Rows))
			}
			bad[i] = err
			continue
		}
		good, places = append(good, row), append(places, i)
	}
	if bad == nil {
		return s.protected(ctx, d)
	}
	if len(good) == 0 {
		return bad
	}
	d.Rows = good
	for n, err := range spread(s.protected(ctx, d), len(good)) {
		bad[places[n]] = err
	}
	return bad
}

// unsendable returns why no sink can send a row, or nil.
func unsendable(row Row) error {
	for name, value := range row.Headers {
		if err := header(name, value); err != nil {
			return fmt.Errorf("header %.80q %w: %w", name, err, errUnsendable)
		}
	}
	for name, value := range map[string]string{"key": row.Key, "type": row.Type, "traceparent": row.TraceParent, "tracestate": row.TraceState} {
		if strings.ContainsAny(value, "\r\n") {
			return fmt.Errorf("%s has a line break: %w", name, errUnsendable)
		}
	}
	return nil
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
