package logtest

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Changes of all messages that a filter selects.
var bulk = []story{
	{"dead letters are deleted by topic, key, cause and time, and no others", func(w *suite) {
		mixed(w)
		for _, f := range []outbox.Filter{
			{Topic: "mail.*", Cause: "no account"},
			{Key: "nobody"},
			{Cause: "no such cause"},
			{Since: time.Now().Add(time.Hour)},
			{Until: time.Now().Add(-time.Hour)},
			{Seq: seqOf(w, "a:1")},
			{Topic: "mai"},
		} {
			w.settled(f, outbox.Dropped, "map[]")
		}
		before := w.list(outbox.Filter{})
		w.dry(outbox.Filter{Topic: "mail.*"}, outbox.Dropped, "map[dead:2]")
		w.same("after a dry run", w.list(outbox.Filter{}), before)
		w.settled(outbox.Filter{Topic: "mail.*", Cause: "address", Key: "d", Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, outbox.Dropped, "map[dead:1]")
		w.same("left", w.list(outbox.Filter{}), []string{"a:1 held", "a:2 behind", "b:1 waiting", "c:1 dead", "e:1 dead"})
		w.settled(outbox.Filter{Topic: "order"}, outbox.Dropped, "map[dead:1]")
		w.settled(outbox.Filter{}, outbox.Dropped, "map[dead:1]")
		w.settled(outbox.Filter{}, outbox.Dropped, "map[]")
		w.same("what is not dead", w.list(outbox.Filter{}), []string{"a:1 held", "a:2 behind", "b:1 waiting"})
	}},
	{"what is held or dead is retried, or only what a filter selects", func(w *suite) {
		r := mixed(w)
		w.settled(outbox.Filter{Cause: "bad address", Limit: 1}, outbox.Waiting, "map[dead:1]")
		w.same("due", r.due(), [][]string{{"c:1"}})
		w.dry(outbox.Filter{}, outbox.Waiting, "map[dead:2 held:1]")
		w.settled(outbox.Filter{}, outbox.Waiting, "map[dead:2 held:1]")
		w.same("due after that", r.due(), [][]string{{"a:1", "a:2"}, {"c:1"}, {"d:1"}, {"e:1"}})
		w.settled(outbox.Filter{Kind: outbox.Waiting, Key: "b"}, outbox.Waiting, "map[waiting:1]")
		w.same("of those that wait", r.due(), [][]string{{"a:1", "a:2"}, {"b:1"}, {"c:1"}, {"d:1"}, {"e:1"}})
	}},
	{"what is held is skipped, and what waits or is behind if it is meant", func(w *suite) {
		r := mixed(w)
		w.dry(outbox.Filter{}, outbox.Dead, "map[held:1]")
		w.settled(outbox.Filter{}, outbox.Dead, "map[held:1]")
		w.same("the key goes on", r.due(), [][]string{{"a:2"}})
		w.same("cause", w.entry(outbox.Filter{Seq: seqOf(w, "a:1")}).Cause, "skipped by an operator: no account")
		w.settled(outbox.Filter{Kind: outbox.Waiting, Key: "b"}, outbox.Dead, "map[waiting:1]")
		w.settled(outbox.Filter{}, outbox.Dead, "map[]")
		w.same("listed", w.list(outbox.Filter{}), []string{"a:1 dead", "a:2 waiting", "b:1 dead", "c:1 dead", "d:1 dead", "e:1 dead"})
	}},
	{"what becomes first in its lane meanwhile is not skipped with those that were", func(w *suite) {
		w.send("a:1", "a:2", "a:3")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Waiting, 1, time.Hour), "a:1", "a:2", "a:3"))
		w.settled(outbox.Filter{Kind: outbox.Waiting}, outbox.Dead, "map[waiting:1]")
		w.same("due", r.due(), [][]string{{"a:2", "a:3"}})
	}},
	{"more messages than a transaction has are changed", func(w *suite) {
		const n = 2500
		batch := make([]outbox.Message, n)
		for i := range batch {
			batch[i] = outbox.Message{Topic: "t", Payload: fmt.Appendf(nil, ":%d", i)}
		}
		w.publish(batch...)
		r := w.reader(claim(1))
		r.advanceAll(func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Dead, Attempts: 1, Cause: "bad"} })
		w.settled(outbox.Filter{Cause: "bad"}, outbox.Waiting, fmt.Sprintf("map[dead:%d]", n))
		w.same("pending", w.stats().Pending, n)
		w.settled(outbox.Filter{Kind: outbox.Waiting, Limit: n - 1}, outbox.Dead, fmt.Sprintf("map[waiting:%d]", n-1))
		w.same("dead", w.stats().Dead, n-1)
		w.settled(outbox.Filter{}, outbox.Dropped, fmt.Sprintf("map[dead:%d]", n-1))
		w.same("left", w.stats().Pending, 1)
	}},
	{"a change that makes no sense is refused", func(w *suite) {
		mixed(w)
		before := w.list(outbox.Filter{})
		now := time.Now()
		for _, c := range []struct {
			f  outbox.Filter
			to outbox.Kind
		}{
			{outbox.Filter{Subscription: sub}, outbox.Delivered},
			{outbox.Filter{Subscription: sub}, "gone"},
			{outbox.Filter{Subscription: sub, Kind: outbox.Held}, outbox.Dropped},
			{outbox.Filter{Subscription: sub, Kind: outbox.Dead}, outbox.Dead},
			{outbox.Filter{Subscription: sub, Kind: outbox.Behind}, outbox.Waiting},
			{outbox.Filter{Subscription: sub, Kind: "odd"}, outbox.Waiting},
			{outbox.Filter{}, outbox.Dropped},
			{outbox.Filter{Subscription: sub, Limit: -1}, outbox.Dropped},
			{outbox.Filter{Subscription: sub, Topic: "a*b"}, outbox.Dropped},
			{outbox.Filter{Subscription: sub, Since: now, Until: now}, outbox.Dropped},
			{outbox.Filter{Subscription: sub, Since: now, Until: now.Add(-time.Hour)}, outbox.Dropped},
		} {
			if _, err := w.Operator.SettleAll(w.ctx, c.f, c.to, false); err == nil {
				w.Errorf("%+v to %s was not refused", c.f, c.to)
			}
		}
		_, err := w.Operator.SettleAll(w.ctx, outbox.Filter{Subscription: "nobody"}, outbox.Dropped, true)
		w.is(err, outbox.ErrNotFound)
		w.same("listed", w.list(outbox.Filter{}), before)
	}},
}

// mixed parks messages of each kind, of two topics and with two causes.
func mixed(w *suite) *reader {
	w.Helper()
	for _, text := range []string{"a:1", "a:2", "b:1", "c:1", "d:1", "e:1"} {
		m := msg(text)
		switch m.Topic = "order"; text {
		case "c:1":
			m.Topic = "mail.out"
		case "d:1":
			m.Topic = "mail.in"
		}
		w.publish(m)
	}
	r := w.reader(claim(1))
	r.advanceAll(func(text string) outbox.Outcome {
		switch text {
		case "a:1":
			return outbox.Outcome{Kind: outbox.Held, Attempts: 3, Cause: "no account"}
		case "a:2":
			return outbox.Outcome{Kind: outbox.Behind}
		case "b:1":
			return fails(outbox.Waiting, 1, time.Hour)
		}
		return outbox.Outcome{Kind: outbox.Dead, Attempts: 1, Cause: "bad address"}
	})
	return r
}

// settled changes all messages of sub that a filter selects, and ends the test unless the counts are these.
func (w *suite) settled(f outbox.Filter, to outbox.Kind, want string) {
	w.Helper()
	f.Subscription = sub
	got, err := w.Operator.SettleAll(w.ctx, f, to, false)
	w.ok(err)
	w.same("changed", got, want)
}

func (w *suite) dry(f outbox.Filter, to outbox.Kind, want string) {
	w.Helper()
	f.Subscription = sub
	got, err := w.Operator.SettleAll(w.ctx, f, to, true)
	w.ok(err)
	w.same("would be changed", got, want)
}
