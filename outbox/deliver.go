package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox/internal/progress"
)

// work handles the batches of one worker. Those that wait are delivered by one call, so that the messages behind a
// page need not wait for the answer to its last one. One full page of those that may be in flight is left for the next
// call: it is there when this one ends. And a call gets only as many rows as take a tenth of Config.PageTimeout by the
// time of the call before, because a sink that reports no progress would seem to hang.
func (s *session) work(ctx context.Context, batches <-chan batch) {
	most := 0 // rows after which no further batch is added
	for first := range batches {
		together, rows, inPages := []batch{first}, len(first.rows), first.work.rows
		for rows < most && inPages < s.window.maxRows && len(batches) > 0 {
			l := <-batches
			together, rows, inPages = append(together, l), rows+len(l.rows), inPages+l.work.rows
		}
		began := time.Now()
		s.handle(ctx, together)
		most = 0
		if took := time.Since(began); took >= time.Millisecond { // a quicker sink gains less than copying the rows costs
			most = int(int64(rows) * int64(s.r.cfg.PageTimeout/10) / int64(took))
		}
	}
}

// handle delivers batches of pages that follow each other. If the session fails, they stay unfinished, and the pages
// are delivered again after the next claim.
func (s *session) handle(ctx context.Context, batches []batch) {
	if ctx.Err() != nil {
		return
	}
	live, outcomes := s.splitParked(rowsOf(batches))
	tried, err := s.deliver(ctx, live, fromPage)
	if err != nil {
		return
	}
	if len(tried) > 0 {
		s.park(tried)
		outcomes = append(outcomes, tried...)
	}
	assign(outcomes, batches)
	for _, l := range batches {
		l.work.batchDone()
	}
}

// rowsOf returns the rows of batches in a slice that the caller may change. Those of several batches are copied, so
// that the batches still tell which page a row is of.
func rowsOf(batches []batch) []Row {
	if len(batches) == 1 {
		return batches[0].rows
	}
	n := 0
	for _, l := range batches {
		n += len(l.rows)
	}
	rows := make([]Row, 0, n)
	for _, l := range batches {
		rows = append(rows, l.rows...)
	}
	return rows
}

// assign gives each outcome to the page of its row. Stored with an earlier page, a message would get into its lane
// again after a crash; stored with a later one, it would be lost.
func assign(outcomes []Outcome, batches []batch) {
	if len(outcomes) == 0 {
		return
	}
	pages := map[int64]*pageInFlight{} // by Row.Seq
	if len(batches) > 1 {
		for _, l := range slices.Backward(batches) {
			for i := range l.rows {
				pages[l.rows[i].Seq] = l.work
			}
		}
	}
	for _, o := range outcomes {
		page := batches[0].work
		if len(batches) > 1 {
			page = pages[o.Row.Seq]
		}
		page.mu.Lock()
		page.outcomes = append(page.outcomes, o)
		page.mu.Unlock()
	}
}

// source says where delivered rows come from. Rows of pages must not keep other keys waiting, so their
// calls have the shorter time limit, Config.PageTimeout.
type source bool

const (
	fromPage  source = true
	fromLanes source = false
)

// maxGiveUpRounds is how often one delivery continues with the rest of a key after a message of it was given up.
// Then the rest is parked. Otherwise a key whose messages are all bad would hold up its page.
const maxGiveUpRounds = 3

// deliver calls the sink until each row was taken or has another outcome, and returns these outcomes.
// Rows of one key stay in order. An error says that it is unknown which rows were taken, because the
// session or ctx has ended.
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
		t := callResult{from: from, last: round >= maxGiveUpRounds, explainsSkipped: hasOwnFailure(errs)}
		s.classifyAll(&t, rows, errs)
		if _, _, down := sinkDown(errs); down == nil && len(t.again) == len(rows) {
			// Nothing is settled, and the breaker would not pace the next call. The sink has skipped the first rows
			// of the failed keys, which it must not do: that counts as their failure.
			t = callResult{from: from, last: t.last}
			s.classifyAll(&t, rows, errs)
		}
		s.delivered(t.taken)
		if t.hung > 0 {
			s.log.Warn("outbox sink did not answer; messages were parked and are retried", "messages", t.hung, "page_timeout", s.r.cfg.PageTimeout)
		}
		outcomes, rows = append(outcomes, t.outcomes...), t.again
	}
	return outcomes, nil
}

// callResult collects what happens to the rows of one call.
type callResult struct {
	from            source
	last            bool // last round: the rest of a key is parked when a message of it was given up
	explainsSkipped bool // the call has failures that explain its skipped rows
	keys            map[string]restOfKey
	taken           []Row
	again           []Row
	outcomes        []Outcome
	hung            int
}

// restOfKey is what happens to the remaining rows of a key after one of them was not taken.
type restOfKey int

const (
	parkRest  restOfKey = iota + 1 // they are parked
	retryRest                      // they are given to the sink once more
)

// classifyAll decides the outcomes of the rows of a call.
func (s *session) classifyAll(t *callResult, rows []Row, errs []error) {
	t.keys = map[string]restOfKey{}
	for i, row := range rows {
		s.classify(t, row, errs[i])
	}
}

// classify decides the outcome of one row from its error.
func (s *session) classify(t *callResult, row Row, err error) {
	if err == nil {
		t.taken = append(t.taken, row)
		return
	}
	f := restOfKey(0)
	if row.Key != "" {
		f = t.keys[row.Key]
	}
	switch {
	case f == parkRest:
		t.outcomes = append(t.outcomes, Outcome{Row: row, Kind: Behind})
	case f == retryRest, errors.Is(err, ErrSinkDown), t.explainsSkipped && errors.Is(err, ErrSkipped):
		t.again = append(t.again, row)
		f = retryRest
	case t.from == fromPage && hung(err): // the row itself may be fine, so no attempt is counted
		t.outcomes = append(t.outcomes, Outcome{Row: row, Kind: Behind})
		t.hung++
		f = parkRest
	default:
		o := s.r.cfg.outcomeOf(row, err, rand.Float64())
		s.failed(o, err)
		t.outcomes = append(t.outcomes, o)
		f = parkRest
		if (o.Kind == Dead || o.Kind == Dropped) && !t.last {
			f = retryRest
		}
	}
	t.keys[row.Key] = f
}

// hasOwnFailure reports whether a row failed for a reason other than ErrSkipped.
func hasOwnFailure(errs []error) bool {
	for _, err := range errs {
		if err != nil && !errors.Is(err, ErrSkipped) {
			return true
		}
	}
	return false
}

// delivered updates metrics and hooks for rows that the receiver has taken.
func (s *session) delivered(rows []Row) {
	if len(rows) == 0 {
		return
	}
	s.r.metrics.delivered(rows, s.replayed.Load())
	s.r.hooks.delivered(s.r.cfg.Name, rows)
}

func (s *session) failed(o Outcome, err error) {
	s.r.hooks.failed(s.r.cfg.Name, o.Row, err)
	// A key that is held because its destination is missing fails every minute; only the first time is news.
	again := o.Kind == Held && o.RetryIn > 0 && o.Attempts > 1 && s.r.cfg.Retry.waitedForMissing(o.Attempts-1)
	if (o.Kind == Dead || o.Kind == Dropped || o.Kind == Held) && !again {
		s.log.Warn("outbox message cannot be delivered", "seq", o.Row.Seq, "topic", o.Row.Topic, "attempts", o.Attempts, "then", string(o.Kind), "error", err)
	}
	if o.Kind == Dead || o.Kind == Dropped {
		s.r.hooks.dead(s.r.cfg.Name, o.Row, o.Cause)
	}
}

// call calls the sink, and repeats the call while the sink is down for all rows. If a call hangs, it
// tries parts of it to find out why. A nil slice says that all rows were taken. Otherwise it has one
// entry per row, nil for a row that was taken.
func (s *session) call(ctx context.Context, rows []Row, from source) ([]error, error) {
	for {
		done, err := s.r.breaker.acquire(ctx, s.a.Draining())
		if err != nil {
			s.fail(err) // rows that were not tried are delivered again after the next claim
			return nil, err
		}
		if left, ok := daemon.Validity(ctx); ok && left <= 0 {
			done(unclear, 0)
			s.fail(errNotValid)
			return nil, errNotValid
		}
		errs := s.callOnce(ctx, rows, from)
		if anyHung(errs) {
			done(unclear, 0) // free the breaker's probe, so that other calls may try meanwhile
			done = s.r.breaker.result
			errs = s.findHangingKeys(ctx, rows, errs, from)
		}
		if err := sessionEnd(ctx, errs); err != nil {
			done(unclear, 0)
			s.fail(err)
			return nil, err
		}
		all, rest, why := sinkDown(errs)
		if why == nil {
			done(isUp, 0)
			s.problem.set("")
			return errs, nil
		}
		done(isDown, rest)
		s.problem.set(why.Error())
		if !all {
			return errs, nil
		}
		s.log.Warn("outbox sink is down", "error", why)
	}
}

// sessionEnd returns why the session must not make further calls: the context has ended, or the receiver
// rejected the relay.
func sessionEnd(ctx context.Context, errs []error) error {
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

// sinkDown reports whether the sink is down for all rows, the pause that it asks for, and the first error
// that says it is down; why is nil if no error does.
func sinkDown(errs []error) (all bool, rest time.Duration, why error) {
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

// callOnce makes one call of the sink within the time limit of the source. Its result is nil, or has one
// entry per row.
func (s *session) callOnce(ctx context.Context, rows []Row, from source) []error {
	limit := s.r.cfg.DeliverTimeout
	if from == fromPage {
		limit = s.r.cfg.PageTimeout
	}
	bounded, cancel := progress.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	d := Delivery{Subscription: s.r.cfg.Name, Epoch: s.a.Generation, Range: s.shards, Rows: rows}
	spanned, spans := s.r.metrics.publishing(bounded, d)
	errs := perRow(s.deliverSendable(spanned, d), len(rows))
	s.r.metrics.published(spans, time.Since(began), errs)
	if bounded.Err() == nil {
		limit = 0
	}
	return markHung(errs, limit)
}

// deliverSendable gives the sink only the rows that it can send. A row whose headers a line-based protocol
// cannot carry can never be delivered. Such a row is in the log only if a publisher in another language
// wrote it.
func (s *session) deliverSendable(ctx context.Context, d Delivery) []error {
	var bad []error
	for i := range d.Rows {
		if err := unsendable(&d.Rows[i]); err != nil {
			if bad == nil {
				bad = make([]error, len(d.Rows))
			}
			bad[i] = err
		}
	}
	if bad == nil {
		return s.deliverProtected(ctx, d)
	}
	var good []Row
	var places []int
	for i, row := range d.Rows {
		if bad[i] == nil {
			good, places = append(good, row), append(places, i)
		}
	}
	if len(good) == 0 {
		return bad
	}
	d.Rows = good
	for n, err := range perRow(s.deliverProtected(ctx, d), len(good)) {
		bad[places[n]] = err
	}
	return bad
}

// unsendable returns the reason why no sink can send a row, or nil.
func unsendable(row *Row) error {
	for name, value := range row.Headers {
		if err := header(name, value); err != nil {
			return fmt.Errorf("header %.80q %w: %w", name, err, errUnsendable)
		}
	}
	for _, field := range [...]struct{ name, value string }{{"key", row.Key}, {"type", row.Type}, {"traceparent", row.TraceParent}, {"tracestate", row.TraceState}} {
		if strings.ContainsAny(field.value, "\r\n") {
			return fmt.Errorf("%s has a line break: %w", field.name, errUnsendable)
		}
	}
	return nil
}

// deliverProtected calls the sink and turns a panic into an error.
func (s *session) deliverProtected(ctx context.Context, d Delivery) (errs []error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("outbox sink panicked", "panic", fmt.Sprintf("%.500v", p), "stack", string(debug.Stack()))
			errs = []error{fmt.Errorf("the sink panicked: %.500v", p)}
		}
	}()
	return s.r.cfg.Sink.Deliver(ctx, d)
}

// perRow expands a sink's result to one entry per row. It returns nil if all rows were taken.
func perRow(errs []error, n int) []error {
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
