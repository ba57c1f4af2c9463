package logtest

import (
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/outbox"
)

// Mistakes of callers, operators and relays.
var badInputs = []story{
	{"a message that is not valid is refused, and its transaction can go on without", func(w *suite) {
		bad := []outbox.Message{
			{},
			{Topic: strings.Repeat("t", outbox.MaxTopic+1)},
			{Topic: "t", Key: strings.Repeat("k", outbox.MaxKey+1)},
			{Topic: "t", Key: "not \xff text"},
			{Topic: "t", Key: "zero\x00"},
			{Topic: "t", Payload: make([]byte, outbox.MaxPayload+1)},
			{Topic: "t", Headers: map[string]string{"a b": ""}},
			{Topic: "t", Headers: map[string]string{"a": "line\nbreak"}},
		}
		tx := w.begin()
		for i, m := range bad {
			if err := tx.Publish(w.ctx, msg("k:good"), m); err == nil {
				w.Errorf("message %d was taken", i)
			}
		}
		w.ok(tx.Publish(w.ctx, msg("k:after")))
		w.ok(tx.Publish(w.ctx)) // none
		w.ok(tx.Commit(w.ctx))
		w.same("messages", texts(w.reader(claim(1)).drain()), []string{"k:after"})
	}},
	{"a trace state of the context that is too long is left out", func(w *suite) {
		members := make([]string, 20)
		for i := range members {
			members[i] = fmt.Sprint("k", i, "=", strings.Repeat("x", 250))
		}
		state, err := trace.ParseTraceState(strings.Join(members, ","))
		w.ok(err)
		span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceState: state})
		tx := w.begin()
		defer func() { _ = tx.Rollback(w.ctx) }()
		w.ok(tx.Publish(trace.ContextWithSpanContext(w.ctx, span), msg("a:1")))
		w.ok(tx.Publish(w.ctx, msg("a:2")))
		w.ok(tx.Commit(w.ctx))
		rows := w.reader(claim(1)).drain()
		w.same("messages", texts(rows), []string{"a:1", "a:2"})
		w.same("span", []string{rows[0].TraceParent, rows[0].TraceState}, []string{"00-01000000000000000000000000000000-0200000000000000-00", ""})
	}},
	{"a subscription that nobody knows", func(w *suite) {
		_, err := w.Operator.Retry(w.ctx, "nobody")
		w.is(err, outbox.ErrNotFound)
		_, _, err = w.Operator.Replay(w.ctx, outbox.ReplayRequest{Subscription: "nobody"})
		w.is(err, outbox.ErrNotFound)
		w.is(w.Operator.Pause(w.ctx, "nobody", true), outbox.ErrNotFound)
		w.is(w.Operator.Delete(w.ctx, "nobody"), outbox.ErrNotFound)
		w.is(w.Operator.Skip(w.ctx, "nobody", 1), outbox.ErrNotFound)
		for _, name := range []string{"", "nobody"} {
			all, err := w.Operator.Stats(w.ctx, name)
			w.ok(err)
			w.same("subscriptions", len(all), 0)
			w.same("entries", len(w.list(outbox.Filter{Subscription: name})), 0)
		}
	}},
	{"a message that is not there cannot be skipped, nor those named with it", func(w *suite) {
		w.send("a:1", "b:1")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Held, 1, 0), "a:1"))
		w.is(w.Operator.Skip(w.ctx, sub, seqOf(w, "a:1"), 4711), outbox.ErrNotFound)
		w.same("listed", w.list(outbox.Filter{}), []string{"a:1 held"})
	}},
	{"a retry of nothing", func(w *suite) {
		w.send("a:1")
		w.reader(claim(1)).advanceAll(failing(fails(outbox.Waiting, 2, time.Hour), "a:1"))
		_, err := w.Operator.Retry(w.ctx, sub, 4711)
		w.is(err, outbox.ErrNotFound)
		n, err := w.Operator.Retry(w.ctx, sub)
		w.ok(err)
		w.same("of all that is held or dead", n, 0)
	}},
	{"a mark of another kind", func(w *suite) {
		w.send("a:1")
		r := w.reader(claim(1))
		for _, mark := range []outbox.Mark{nil, 7, "x"} {
			if err := w.claimed(claim(1)).Advance(w.ctx, mark, nil); err == nil {
				w.Errorf("advanced to %v", mark)
			}
		}
		w.same("messages", texts(r.drain()), []string{"a:1"})
	}},
	{"names that are SQL", func(w *suite) {
		name := `x'; DROP TABLE emitd_outbox; --"`
		m := msg("a:1")
		m.Key, m.Topic, m.Type, m.Headers = name, name, name, map[string]string{"'": name}
		w.publish(m)
		c := claim(1)
		c.Subscription, c.Node = name, name
		r := w.reader(c)
		r.advanceAll(func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Held, Attempts: 1, Cause: name} })
		e := w.entry(outbox.Filter{Subscription: name, Key: name})
		w.same("fields", []string{e.Key, e.Cause, e.Subscription}, []string{name, name, name})
		w.ok(w.Operator.Delete(w.ctx, name))
	}},
}
