package logtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// timeout bounds every wait for what must happen.
const timeout = 20 * time.Second

// sub is the subscription of tests that need one.
const sub = "orders"

// suite is a log under test.
type suite struct {
	testing.TB
	Backend
	Log outbox.Log // the backend's, not testing's
	ctx context.Context
}

func newWorld(t testing.TB, b Backend) *suite {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return &suite{t, b, b.Log, ctx}
}

// ok ends the test on an error.
func (w *suite) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// is ends the test unless errors.Is(err, kind).
func (w *suite) is(err, kind error) {
	w.Helper()
	if !errors.Is(err, kind) {
		w.Fatalf("got error %v, want %v", err, kind)
	}
}

// same ends the test unless got and want print the same.
func (w *suite) same(what string, got, want any) {
	w.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// begin begins a transaction.
func (w *suite) begin() Tx {
	w.Helper()
	tx, err := w.Begin(w.ctx)
	w.ok(err)
	return tx
}

// publish commits messages in one transaction.
func (w *suite) publish(messages ...outbox.Message) {
	w.Helper()
	tx := w.begin()
	w.ok(tx.Publish(w.ctx, messages...))
	w.ok(tx.Commit(w.ctx))
}

// msg returns a message whose payload is text. The key is the part of text before the colon.
func msg(text string) outbox.Message {
	key := text[:slices.Index([]byte(text), ':')]
	return outbox.Message{Topic: "topic", Key: key, Payload: []byte(text)}
}

// send commits each text as a message in a transaction of its own.
func (w *suite) send(texts ...string) {
	w.Helper()
	for _, text := range texts {
		w.publish(msg(text))
	}
}

// numbered returns n texts of a key.
func numbered(key string, n int) (texts []string) {
	for i := range n {
		texts = append(texts, fmt.Sprintf("%s:%03d", key, i))
	}
	return texts
}

// texts returns the payloads of rows.
func texts(rows []outbox.Row) []string {
	out := []string{}
	for _, r := range rows {
		out = append(out, string(r.Payload))
	}
	return out
}

// keyIn returns a key whose shard is in a range; different n give different keys.
func keyIn(r outbox.Range, n int) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("key-%d-%d", n, i)
		if s := outbox.ShardOf(key); s >= r.Lo && s <= r.Hi {
			return key
		}
	}
}

// claim returns a claim of unit 0 of 1 of sub at an epoch.
func claim(epoch int64) outbox.ClaimRequest {
	return outbox.ClaimRequest{Subscription: sub, Instances: 1, Epoch: epoch, Node: "node"}
}

// unit returns a claim of a unit of sub.
func unit(index, instances int, epoch int64) outbox.ClaimRequest {
	return outbox.ClaimRequest{Subscription: sub, Index: index, Instances: instances, Epoch: epoch, Node: fmt.Sprint("node-", index)}
}

// claimed claims and returns the cursor.
func (w *suite) claimed(c outbox.ClaimRequest) outbox.Cursor {
	w.Helper()
	cur, err := w.Log.Claim(w.ctx, c)
	w.ok(err)
	w.Cleanup(cur.Close)
	return cur
}

// reader is a cursor that claims again after ErrMoved, as relays do.
type reader struct {
	w     *suite
	claim outbox.ClaimRequest
	outbox.Cursor
}

func (w *suite) reader(c outbox.ClaimRequest) *reader {
	w.Helper()
	return &reader{w, c, w.claimed(c)}
}

// again repeats an operation while it fails because the cursor was moved.
func (r *reader) again(op func() error) {
	r.w.Helper()
	for range 10 {
		err := op()
		if !errors.Is(err, outbox.ErrMoved) {
			r.w.ok(err)
			return
		}
		r.Cursor = r.w.claimed(r.claim)
	}
	r.w.Fatal("the cursor is moved without end")
}

// page returns the next page.
func (r *reader) page(limit outbox.Limit) (p outbox.Page) {
	r.w.Helper()
	r.again(func() (err error) {
		p, err = r.Next(r.w.ctx, limit)
		return err
	})
	return p
}

// full is a limit that no test reaches by accident.
var full = outbox.Limit{Rows: 1000, Bytes: 8 << 20}

// drain reads and advances until nothing is left to deliver.
func (r *reader) drain() (rows []outbox.Row) {
	r.w.Helper()
	return r.drainBy(full)
}

func (r *reader) drainBy(limit outbox.Limit) (rows []outbox.Row) {
	r.w.Helper()
	for more := true; more; {
		r.again(func() error {
			p, err := r.Next(r.w.ctx, limit)
			if err != nil {
				return err
			}
			if p.Mark != nil {
				if err := r.Advance(r.w.ctx, p.Mark, nil); err != nil {
					return err
				}
			}
			rows, more = append(rows, p.Rows...), p.More || len(p.Rows) > 0
			return nil
		})
	}
	return rows
}

// outcomeFunc returns the outcome of a message, given its text. An outcome without kind means delivered.
type outcomeFunc func(text string) outbox.Outcome

// advanceAll reads everything and advances with the outcomes that f returns.
func (r *reader) advanceAll(f outcomeFunc) {
	r.w.Helper()
	for {
		p := r.page(full)
		if p.Mark != nil {
			r.w.ok(r.Advance(r.w.ctx, p.Mark, outcomes(p.Rows, f)))
		}
		if !p.More && len(p.Rows) == 0 {
			return
		}
	}
}

func outcomes(rows []outbox.Row, f outcomeFunc) (out []outbox.Outcome) {
	for _, row := range rows {
		o := f(string(row.Payload))
		if o.Kind == "" {
			o.Kind = outbox.Delivered
		}
		o.Row = row
		out = append(out, o)
	}
	return out
}

// failing returns a fate that gives the first of the texts the outcome first, parks the others behind it,
// and delivers the rest.
func failing(first outbox.Outcome, texts ...string) outcomeFunc {
	return func(text string) outbox.Outcome {
		switch i := slices.Index(texts, text); {
		case i == 0:
			return first
		case i > 0:
			return outbox.Outcome{Kind: outbox.Behind}
		}
		return outbox.Outcome{}
	}
}

// fails returns the outcome of a failed attempt.
func fails(kind outbox.Kind, attempts int, in time.Duration) outbox.Outcome {
	return outbox.Outcome{Kind: kind, Attempts: attempts, RetryIn: in, Cause: "no luck"}
}

// due returns the messages that are due now, as texts by lane.
func (r *reader) due() (out [][]string) {
	r.w.Helper()
	lanes := r.dueRows()
	for _, lane := range lanes {
		out = append(out, texts(lane))
	}
	slices.SortFunc(out, slices.Compare)
	return out
}

// dueLane returns the only lane that is due.
func (r *reader) dueLane() []outbox.Row {
	r.w.Helper()
	lanes := r.dueRows()
	r.w.same("lanes that are due", len(lanes), 1)
	return lanes[0]
}

func (r *reader) dueRows() (lanes [][]outbox.Row) {
	r.w.Helper()
	r.again(func() (err error) {
		lanes, err = r.Due(r.w.ctx, 100)
		return err
	})
	return lanes
}

// settle stores the outcome of one row.
func (r *reader) settle(row outbox.Row, o outbox.Outcome) (emptied []string) {
	r.w.Helper()
	o.Row = row
	emptied, err := r.StoreParked(r.w.ctx, []outbox.Outcome{o})
	r.w.ok(err)
	return emptied
}

// eventually waits until a condition holds.
func (w *suite) eventually(what string, cond func() bool) {
	w.Helper()
	deadline := time.After(timeout)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			w.Fatalf("waited in vain: %s", what)
		}
	}
}

// list returns the listed entries as "text kind".
func (w *suite) list(f outbox.Filter) (out []string) {
	w.Helper()
	entries, err := w.Operator.List(w.ctx, f)
	w.ok(err)
	for _, e := range entries {
		out = append(out, fmt.Sprint(string(e.Payload), " ", e.Kind))
	}
	return out
}

// entry returns the one entry that a filter selects.
func (w *suite) entry(f outbox.Filter) outbox.Entry {
	w.Helper()
	entries, err := w.Operator.List(w.ctx, f)
	w.ok(err)
	w.same("entries", len(entries), 1)
	return entries[0]
}

// stats returns the statistics of sub.
func (w *suite) stats() outbox.Stats {
	w.Helper()
	all, err := w.Operator.Stats(w.ctx, sub)
	w.ok(err)
	if len(all) != 1 || all[0].Subscription != sub {
		w.Fatalf("statistics of %q: got %+v", sub, all)
	}
	return all[0]
}

// fencedBy ends the test unless err is a FencedError with this floor.
func (w *suite) fencedBy(err error, floor int64) {
	w.Helper()
	w.same("floor", w.fenced(err).Floor, floor)
}

// fenced returns the FencedError in err, or ends the test.
func (w *suite) fenced(err error) *outbox.FencedError {
	w.Helper()
	var fenced *outbox.FencedError
	if !errors.As(err, &fenced) || !errors.Is(err, outbox.ErrFenced) {
		w.Fatalf("got error %v, want a FencedError", err)
	}
	return fenced
}
