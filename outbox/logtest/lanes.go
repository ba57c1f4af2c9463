package logtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Outcomes of messages that were not delivered.
var lanes = []story{
	{"a failed message waits, its key behind it, others go on", func(w *suite) {
		w.send("a:1", "b:1", "a:2")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Waiting, 3, time.Hour), "a:1", "a:2"))
		w.same("due an hour too early", len(r.due()), 0)
		w.same("listed", w.list(outbox.Filter{}), []string{"a:1 waiting", "a:2 behind"})
		w.same("parked", w.reader(claim(1)).Parked(), []string{"a"})
		w.same("pages", len(w.reader(claim(1)).drain()), 0)
	}},
	{"a lane that failed comes with its first message when its time has come, then in log order", func(w *suite) {
		w.send("a:1", "a:2", "b:1", "a:3")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Waiting, 3, 30*time.Millisecond), "a:1", "a:2", "a:3"))
		w.eventually("the page says that a lane is due", func() bool { return r.page(full).Due })
		w.same("due", r.due(), [][]string{{"a:1"}})
		w.same("attempt", r.dueLane()[0].Attempt, 4)
		r.settle(r.dueLane()[0], outbox.Outcome{Kind: outbox.Delivered})
		w.same("due after that", r.due(), [][]string{{"a:2", "a:3"}})
	}},
	{"a lane that is delivered is gone, and says so", func(w *suite) {
		w.send("a:1", "a:2")
		r := parkedDue(w, "a:1", "a:2")
		rows := r.dueLane()
		w.same("emptied by the first", r.settle(rows[0], outbox.Outcome{Kind: outbox.Delivered}), []string{})
		w.same("left", r.due(), [][]string{{"a:2"}})
		w.same("attempt of the next", r.dueLane()[0].Attempt, 1)
		w.same("emptied by the last", r.settle(rows[1], outbox.Outcome{Kind: outbox.Delivered}), []string{"a"})
		w.same("left", len(r.due()), 0)
		w.same("listed", len(w.list(outbox.Filter{})), 0)
		w.same("parked", len(w.reader(claim(1)).Parked()), 0)
	}},
	{"one settlement may hold all kinds", allKinds},
	{"a retry that fails waits again", func(w *suite) {
		w.send("a:1", "a:2")
		r := parkedDue(w, "a:1", "a:2")
		r.settle(r.dueLane()[0], fails(outbox.Waiting, 7, time.Hour))
		w.same("due", len(r.due()), 0)
		e := w.entry(outbox.Filter{Kind: outbox.Waiting})
		w.same("entry", []any{string(e.Payload), e.Attempt, e.Cause, e.Subscription}, []any{"a:1", 7, "no luck", sub})
		if wait := time.Until(e.NextAt); wait < 50*time.Minute || wait > 70*time.Minute {
			w.Errorf("the next attempt is in %v, want an hour", wait)
		}
	}},
	{"a held key whose outcome has a pause is due after it", func(w *suite) {
		w.send("a:1", "a:2", "b:1")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Held, 9, 30*time.Millisecond), "a:1", "a:2"))
		w.same("listed", w.list(outbox.Filter{}), []string{"a:1 held", "a:2 behind"})
		w.same("held keys", w.stats().HeldKeys, 1)
		w.same("parked", w.reader(claim(1)).Parked(), []string{"a"})
		w.eventually("the page says that the lane is due", func() bool { return r.page(full).Due })
		rows := r.dueLane()
		w.same("due", []any{texts(rows), rows[0].Attempt}, []any{[]string{"a:1"}, 10})
		r.settle(rows[0], fails(outbox.Held, 10, time.Hour))
		e := w.entry(outbox.Filter{Kind: outbox.Held})
		w.same("entry", []any{string(e.Payload), e.Attempt, e.Cause}, []any{"a:1", 10, "no luck"})
		if wait := time.Until(e.NextAt); wait < 50*time.Minute || wait > 70*time.Minute {
			w.Errorf("the next attempt is in %v, want an hour", wait)
		}
		w.same("due after it failed again", len(r.due()), 0)
		n, err := w.Operator.Retry(w.ctx, sub)
		w.ok(err)
		w.same("retried, as everything that is held", n, 1)
		r.settle(r.dueRows()[0][0], outbox.Outcome{Kind: outbox.Delivered})
		w.same("the key goes on", r.due(), [][]string{{"a:2"}})
		w.same("held keys after that", w.stats().HeldKeys, 0)
	}},
	{"a lane says whether its first message waits for a destination that is missing", missingLane},
	{"a skipped message of such a key has the cause alone", func(w *suite) {
		w.send("a:1")
		w.reader(claim(1)).advanceAll(failing(fails(outbox.Held, 9, time.Hour), "a:1"))
		w.ok(w.Operator.Skip(w.ctx, sub, seqOf(w, "a:1")))
		w.same("cause", w.entry(outbox.Filter{}).Cause, "skipped by an operator: no luck")
	}},
	{"a held key waits for an operator", func(w *suite) {
		w.send("a:1", "a:2")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Held, 10, 0), "a:1", "a:2"))
		w.same("due", len(r.due()), 0)
		w.same("page", r.page(full).Due, false)
		w.same("listed", w.list(outbox.Filter{}), []string{"a:1 held", "a:2 behind"})
		w.same("parked", w.reader(claim(1)).Parked(), []string{"a"})
	}},
	{"messages without key are a lane each", func(w *suite) {
		w.send(":1", ":2", ":3")
		r := w.reader(claim(1))
		r.advanceAll(func(text string) outbox.Outcome {
			if text == ":2" {
				return fails(outbox.Waiting, 1, time.Hour)
			}
			return fails(outbox.Waiting, 1, 0)
		})
		w.eventually("two lanes are due", func() bool { return len(r.due()) == 2 })
		w.same("due", r.due(), [][]string{{":1"}, {":3"}})
		w.same("parked keys", len(w.reader(claim(1)).Parked()), 0)
		r = w.reader(claim(1))
		for _, lane := range r.dueRows() {
			w.same("emptied", len(slices.DeleteFunc(r.settle(lane[0], outbox.Outcome{Kind: outbox.Delivered}), func(k string) bool { return k == "" })), 0)
		}
		w.same("listed", w.list(outbox.Filter{}), []string{":2 waiting"})
	}},
	{"a dead message is kept with its cause, a dropped one is not, their keys go on", func(w *suite) {
		w.send("a:1", "b:1", "a:2")
		r := w.reader(claim(1))
		r.advanceAll(func(text string) outbox.Outcome {
			switch text {
			case "a:1":
				return outbox.Outcome{Kind: outbox.Dead, Attempts: 10, Cause: "no such \x00 \xff table"}
			case "b:1":
				return outbox.Outcome{Kind: outbox.Dropped, Attempts: 10, Cause: "x"}
			}
			return outbox.Outcome{}
		})
		e := w.entry(outbox.Filter{})
		w.same("entry", []any{string(e.Payload), e.Kind, e.Attempt, e.Key}, []any{"a:1", outbox.Dead, 10, "a"})
		if !strings.HasPrefix(e.Cause, "no such ") {
			w.Errorf("the cause is %q", e.Cause)
		}
		w.same("parked", len(w.reader(claim(1)).Parked()), 0)
	}},
	{"outcomes are stored with the position, or neither", func(w *suite) {
		w.send("a:1", "b:1", "c:1")
		old := w.reader(claim(1))
		p := old.page(full)
		taker := w.reader(claim(2))
		w.fencedBy(old.Advance(w.ctx, p.Mark, outcomes(p.Rows, failing(fails(outbox.Held, 1, 0), "a:1"))), 2)
		w.same("listed", len(w.list(outbox.Filter{})), 0)
		taker.advanceAll(failing(fails(outbox.Held, 1, 0), "b:1"))
		w.same("listed", w.list(outbox.Filter{}), []string{"b:1 held"})
		w.same("read again", len(w.reader(claim(3)).drain()), 0)
	}},
	{"later messages of a parked key get behind it", func(w *suite) {
		w.send("a:1")
		w.reader(claim(1)).advanceAll(failing(fails(outbox.Held, 1, 0), "a:1"))
		w.send("a:2", "a:3")
		w.reader(claim(1)).advanceAll(failing(fails(outbox.Behind, 0, 0), "a:2", "a:3"))
		w.same("listed", w.list(outbox.Filter{}), []string{"a:1 held", "a:2 behind", "a:3 behind"})
		_, err := w.Operator.Retry(w.ctx, sub)
		w.ok(err)
		w.same("due", w.reader(claim(1)).due(), [][]string{{"a:1", "a:2", "a:3"}})
	}},
	{"a message behind a lane that is gone is due at once", func(w *suite) {
		w.send("a:1")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Behind, 0, 0), "", "a:1"))
		w.same("due", r.due(), [][]string{{"a:1"}})
		w.same("parked", w.reader(claim(1)).Parked(), []string{"a"})
	}},
	{"so is one of no key, which is a lane by itself", func(w *suite) {
		w.send(":1", "a:1")
		r := w.reader(claim(1))
		r.advanceAll(failing(outbox.Outcome{Kind: outbox.Behind}, ":1"))
		w.same("due", r.due(), [][]string{{":1"}})
		w.same("attempt", r.dueLane()[0].Attempt, 1)
		w.same("parked", len(w.reader(claim(1)).Parked()), 0)
	}},
	{"what waits behind in a settlement stays as it is", func(w *suite) {
		w.send("a:1", "a:2", "a:3")
		r := parkedDue(w, "a:1", "a:2", "a:3")
		rows := r.dueLane()
		w.same("attempt", []int{rows[0].Attempt, rows[1].Attempt, rows[2].Attempt}, []int{1, 1, 1})
		_, err := r.StoreParked(w.ctx, outcomes(rows, func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Behind} }))
		w.ok(err)
		w.same("due", r.due(), [][]string{{"a:1", "a:2", "a:3"}})
		w.same("attempt", r.dueLane()[0].Attempt, 1)
		_, err = r.StoreParked(w.ctx, outcomes(rows, func(text string) outbox.Outcome {
			if text == "a:1" {
				return fails(outbox.Waiting, 4, 0)
			}
			return outbox.Outcome{Kind: outbox.Behind}
		}))
		w.ok(err)
		w.eventually("the lane is due", func() bool { return len(r.due()) == 1 })
		w.same("due", r.due(), [][]string{{"a:1"}})
		w.same("attempt", r.dueLane()[0].Attempt, 5)
		_, err = r.StoreParked(w.ctx, outcomes(rows, func(text string) outbox.Outcome {
			if text == "a:1" {
				return outbox.Outcome{Kind: outbox.Dead, Attempts: 5, Cause: "bad"}
			}
			return outbox.Outcome{Kind: outbox.Behind}
		}))
		w.ok(err)
		w.same("due", r.due(), [][]string{{"a:2", "a:3"}})
		w.same("attempt", r.dueLane()[0].Attempt, 1)
	}},
	{"lanes that are due longest come first", func(w *suite) {
		w.send("a:1", "b:1", "c:1")
		r := w.reader(claim(1))
		r.advanceAll(func(text string) outbox.Outcome {
			return fails(outbox.Waiting, 1, map[string]time.Duration{"a:1": 40, "b:1": 20, "c:1": 60}[text]*time.Millisecond)
		})
		w.eventually("lanes are due", func() bool { return len(r.due()) == 3 })
		one, err := r.Due(w.ctx, 1)
		w.ok(err)
		w.same("first", texts(one[0]), []string{"b:1"})
	}},
	{"a long lane comes in pieces", longLane},
	{"a lane of large messages comes in pieces of a mebibyte", func(w *suite) {
		big := strings.Repeat("x", 400<<10)
		r := w.reader(claim(1))
		for i := range 4 {
			w.send(fmt.Sprint("a:", i, big))
		}
		r.advanceAll(func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Behind} })
		w.eventually("the lane is due", func() bool { return len(r.dueRows()) == 1 })
		if n := len(r.dueLane()); n < 1 || n > 2 {
			w.Errorf("%d messages of 400 KiB came at once", n)
		}
	}},
	{"lanes are asked for in numbers", func(w *suite) {
		w.send("a:1", "b:1", "c:1")
		r := w.reader(claim(1))
		r.advanceAll(func(string) outbox.Outcome { return fails(outbox.Waiting, 1, 0) })
		w.eventually("lanes are due", func() bool { return len(r.due()) == 3 })
		two, err := r.Due(w.ctx, 2)
		w.ok(err)
		w.same("lanes", len(two), 2)
	}},
}

// parkedDue parks messages of a key without an attempt, and waits until they are due.
func parkedDue(w *suite, texts ...string) *reader {
	w.Helper()
	r := w.reader(claim(1))
	r.advanceAll(failing(outbox.Outcome{Kind: outbox.Behind}, texts...))
	w.eventually("the lane is due", func() bool { return len(r.due()) == 1 })
	return r
}

// allKinds settles four messages of one key and one of another, each with another kind of outcome.
func allKinds(w *suite) {
	w.send("a:1", "a:2", "a:3", "a:4", "b:1", "c:1")
	r := w.reader(claim(1))
	r.advanceAll(func(text string) outbox.Outcome {
		switch text {
		case "a:1", "a:2", "a:3", "a:4":
			return outbox.Outcome{Kind: outbox.Behind}
		}
		return fails(outbox.Waiting, 1, 0)
	})
	w.eventually("lanes are due", func() bool { return len(r.due()) == 3 })
	var all []outbox.Outcome
	for _, lane := range r.dueRows() {
		all = append(all, outcomes(lane, func(text string) outbox.Outcome {
			switch text {
			case "a:2":
				return outbox.Outcome{Kind: outbox.Dead, Attempts: 1, Cause: "bad"}
			case "a:3":
				return outbox.Outcome{Kind: outbox.Dropped}
			case "a:4":
				return fails(outbox.Held, 5, 0)
			case "b:1":
				return fails(outbox.Waiting, 2, time.Hour)
			}
			return outbox.Outcome{} // a:1, c:1
		})...)
	}
	emptied, err := r.StoreParked(w.ctx, all)
	w.ok(err)
	w.same("emptied", emptied, []string{"c"})
	w.same("listed", w.list(outbox.Filter{}), []string{"a:2 dead", "a:4 held", "b:1 waiting"})
	w.same("due", len(r.due()), 0)
}

// longLane parks more messages than one call of Due returns.
func longLane(w *suite) {
	all := numbered("a", 150)
	var messages []outbox.Message
	for _, text := range all {
		messages = append(messages, msg(text))
	}
	w.publish(messages...)
	r := w.reader(claim(1))
	r.advanceAll(func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Behind} })
	w.eventually("the lane is due", func() bool { return len(r.due()) == 1 })
	rows := r.dueLane()
	w.same("the first piece", texts(rows), all[:100])
	emptied, err := r.StoreParked(w.ctx, outcomes(rows, func(string) outbox.Outcome { return outbox.Outcome{} }))
	w.ok(err)
	w.same("emptied", len(emptied), 0)
	rows = r.dueLane()
	w.same("the second piece", texts(rows), all[100:])
	emptied, err = r.StoreParked(w.ctx, outcomes(rows, func(string) outbox.Outcome { return outbox.Outcome{} }))
	w.ok(err)
	w.same("emptied", emptied, []string{"a"})
}

func missingLane(w *suite) {
	w.send("a:1", "a:2", "b:1")
	r := w.reader(claim(1))
	missing := outbox.Outcome{Attempts: 3, RetryIn: time.Millisecond, Cause: outbox.ErrMissing.Error() + ": no topic"}
	r.advanceAll(failing(fails(outbox.Waiting, 3, time.Hour), "a:1", "a:2"))
	first := func(kind outbox.Kind, cause string) outbox.Row {
		_, err := w.Operator.Retry(w.ctx, sub, seqOf(w, "a:1"))
		w.ok(err)
		row := r.dueRows()[0][0]
		w.same("missing after an operator's retry", row.Missing, false)
		o := missing
		o.Kind, o.Cause = kind, cause
		r.settle(row, o)
		w.eventually("the lane is due", func() bool { return len(r.due()) == 1 })
		return r.dueRows()[0][0]
	}
	w.same("missing if it waits", first(outbox.Waiting, missing.Cause).Missing, true)
	w.same("missing if it is held", first(outbox.Held, missing.Cause).Missing, true)
	w.same("missing for another cause", first(outbox.Waiting, "no luck").Missing, false)
	row := first(outbox.Waiting, missing.Cause)
	r.settle(row, outbox.Outcome{Kind: outbox.Delivered})
	next := r.dueRows()[0][0]
	w.same("the next", []any{string(next.Payload), next.Missing}, []any{"a:2", false})
}
