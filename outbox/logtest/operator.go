package logtest

import (
	"time"

	"github.com/emitd/emitd/outbox"
)

// Commands of operators, which relays must notice without a restart.
var operators = []story{
	{"a held key is retried from its first message, attempts counted anew", func(w *suite) {
		w.send("a:1", "a:2", "b:1")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Held, 10, 0), "a:1", "a:2"))
		n, err := w.Operator.Retry(w.ctx, sub)
		w.ok(err)
		w.same("retried", n, 1)
		w.same("page", r.page(full).Due, true)
		w.same("due", r.due(), [][]string{{"a:1", "a:2"}})
		w.same("attempt", r.dueLane()[0].Attempt, 1)
	}},
	{"a waiting message is retried before its time, by its number", func(w *suite) {
		w.send("a:1", "b:1")
		r := w.reader(claim(1))
		r.advanceAll(func(string) outbox.Outcome { return fails(outbox.Waiting, 3, time.Hour) })
		n, err := w.Operator.Retry(w.ctx, sub, seqOf(w, "a:1"))
		w.ok(err)
		w.same("retried", n, 1)
		w.same("due", r.due(), [][]string{{"a:1"}})
		n, err = w.Operator.Retry(w.ctx, sub)
		w.ok(err)
		w.same("of all that is held or dead", n, 0)
	}},
	{"a dead message is put back as a lane of its own", func(w *suite) {
		w.send("a:1", "a:2", ":3")
		r := w.reader(claim(1))
		r.advanceAll(func(text string) outbox.Outcome {
			if text == "a:2" {
				return fails(outbox.Held, 1, 0)
			}
			return outbox.Outcome{Kind: outbox.Dead, Attempts: 4, Cause: "bad"}
		})
		n, err := w.Operator.Retry(w.ctx, sub, seqOf(w, "a:1"), seqOf(w, ":3"))
		w.ok(err)
		w.same("retried", n, 2)
		w.same("due", r.due(), [][]string{{":3"}, {"a:1"}})
		for _, lane := range r.dueRows() {
			w.same("key", lane[0].Key, string(lane[0].Payload[:len(lane[0].Payload)-2]))
			for _, key := range r.settle(lane[0], outbox.Outcome{Kind: outbox.Delivered}) {
				if key == "a" {
					w.Error("key a is said to be free, though it is held")
				}
			}
		}
		w.same("listed", w.list(outbox.Filter{}), []string{"a:2 held"})
	}},
	{"nothing waits behind a dead message that was put back", func(w *suite) {
		w.send("a:1", "a:2")
		r := w.reader(claim(1))
		r.advanceAll(failing(outbox.Outcome{Kind: outbox.Dead, Attempts: 4, Cause: "bad"}, "a:1"))
		_, err := w.Operator.Retry(w.ctx, sub, seqOf(w, "a:1"))
		w.ok(err)
		w.same("parked", len(w.reader(claim(1)).Parked()), 0)
		r = w.reader(claim(1))
		r.settle(r.dueLane()[0], fails(outbox.Waiting, 1, time.Hour))
		w.same("parked when it failed again", len(w.reader(claim(1)).Parked()), 0)
		w.send("a:3")
		w.same("messages", texts(w.reader(claim(1)).drain()), []string{"a:3"})
		w.same("listed", w.list(outbox.Filter{}), []string{"a:1 waiting"})
	}},
	{"everything held or dead is retried", func(w *suite) {
		w.send("a:1", "b:1", "c:1", "d:1")
		r := w.reader(claim(1))
		r.advanceAll(func(text string) outbox.Outcome {
			switch text {
			case "a:1":
				return fails(outbox.Held, 1, 0)
			case "b:1":
				return outbox.Outcome{Kind: outbox.Dead, Attempts: 1}
			}
			return fails(outbox.Waiting, 1, time.Hour)
		})
		n, err := w.Operator.Retry(w.ctx, sub)
		w.ok(err)
		w.same("retried", n, 2)
		w.same("due", r.due(), [][]string{{"a:1"}, {"b:1"}})
		w.same("dead", w.stats().Dead, 0)
	}},
	{"a skipped message is dead, its key goes on", func(w *suite) {
		w.send("a:1", "a:2", "a:3")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Held, 10, 0), "a:1", "a:2", "a:3"))
		w.ok(w.Operator.Skip(w.ctx, sub, seqOf(w, "a:1")))
		w.same("due", r.due(), [][]string{{"a:2", "a:3"}})
		w.same("listed", w.list(outbox.Filter{}), []string{"a:1 dead", "a:2 waiting", "a:3 behind"})
		w.same("attempt", r.dueLane()[0].Attempt, 1)
	}},
	{"the last message of a lane may be skipped, and its relay may not know yet", func(w *suite) {
		w.send("a:1")
		r := parkedDue(w, "a:1")
		rows := r.dueLane()
		w.ok(w.Operator.Skip(w.ctx, sub, rows[0].Seq))
		w.same("due", len(r.due()), 0)
		r.again(func() error {
			_, err := r.StoreParked(w.ctx, outcomes(rows, func(string) outbox.Outcome { return fails(outbox.Waiting, 2, 0) }))
			return err
		})
		w.same("listed", w.list(outbox.Filter{}), []string{"a:1 dead"})
		w.send("a:2") // in the relay's memory the key is still parked
		r.advanceAll(failing(outbox.Outcome{Kind: outbox.Behind}, "a:2"))
		w.same("due", r.due(), [][]string{{"a:2"}})
	}},
	{"a paused subscription has empty pages that say so", func(w *suite) {
		w.send("a:1")
		r := w.reader(claim(1))
		w.ok(w.Operator.Pause(w.ctx, sub, true))
		p := r.page(full)
		w.same("paused", p.Paused, true)
		w.same("messages", len(p.Rows), 0)
		w.same("statistics", w.stats().Paused, true)
		w.ok(w.Operator.Pause(w.ctx, sub, false))
		w.same("resumed", texts(r.drain()), []string{"a:1"})
	}},
	{"no lane of a paused subscription is due", func(w *suite) {
		w.send("a:1", "b:1", ":1")
		r := w.reader(claim(1))
		r.advanceAll(failing(outbox.Outcome{Kind: outbox.Behind}, "a:1", "b:1", ":1"))
		w.eventually("the lanes are due", func() bool { return len(r.due()) == 3 })
		w.ok(w.Operator.Pause(w.ctx, sub, true))
		w.same("due while it is paused", len(r.due()), 0)
		w.ok(w.Operator.Pause(w.ctx, sub, false))
		w.same("due after that", r.due(), [][]string{{":1"}, {"a:1"}, {"b:1"}})
	}},
	{"what is under way at a pause is finished", func(w *suite) {
		w.send("a:1")
		r := w.reader(claim(1))
		p := r.page(full)
		w.ok(w.Operator.Pause(w.ctx, sub, true))
		w.ok(r.Advance(w.ctx, p.Mark, nil))
		w.ok(w.Operator.Pause(w.ctx, sub, false))
		w.same("messages", len(w.reader(claim(2)).drain()), 0)
	}},
	{"a forgotten subscription is gone with all it has, and begins anew", forget},
}

// contains reports whether all has a text.
func contains(all []string, text string) bool {
	for _, t := range all {
		if t == text {
			return true
		}
	}
	return false
}

// seqOf returns the seq of a listed message.
func seqOf(w *suite, text string) int64 {
	w.Helper()
	entries, err := w.Operator.List(w.ctx, outbox.Filter{Subscription: sub})
	w.ok(err)
	for _, e := range entries {
		if string(e.Payload) == text {
			return e.Seq
		}
	}
	w.Fatalf("message %s is not listed", text)
	return 0
}

func forget(w *suite) {
	w.send("a:1", "b:1", "c:1")
	r := w.reader(claim(5))
	other := w.reader(outbox.ClaimRequest{Subscription: "other", Instances: 1, Epoch: 5})
	other.advanceAll(failing(fails(outbox.Held, 1, 0), "a:1"))
	p := r.page(full)
	w.ok(r.Advance(w.ctx, p.Mark, []outbox.Outcome{
		{Row: p.Rows[0], Kind: outbox.Held, Attempts: 1}, {Row: p.Rows[1], Kind: outbox.Dead, Attempts: 1},
	}))
	w.send("d:1")
	p = r.page(full)
	w.ok(w.Operator.Delete(w.ctx, sub))
	if err := r.Advance(w.ctx, p.Mark, nil); err == nil {
		w.Error("a cursor of a forgotten subscription advanced")
	}
	w.same("listed", w.list(outbox.Filter{}), []string{"a:1 held"})
	all, err := w.Operator.Stats(w.ctx, "")
	w.ok(err)
	w.same("subscriptions", len(all), 1)
	anew := w.reader(claim(1)) // no epoch is remembered
	w.same("parked", len(anew.Parked()), 0)
	w.same("messages", len(anew.drain()), 4)
}
