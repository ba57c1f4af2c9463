package logtest

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/outbox"
)

// What operators see.
var listings = []story{
	{"statistics of a subscription", statistics},
	{"the problem that an owner reports of its sink", func(w *suite) {
		spread(w, 40)
		left, right := w.claimed(unit(0, 2, 1)), w.claimed(unit(1, 2, 1))
		want := func(what string, want ...string) {
			w.Helper()
			var got []string
			for _, c := range w.stats().Cursors {
				got = append(got, c.Problem)
			}
			w.same(what, got, want)
		}
		want("at first", "", "")
		w.ok(left.SetProblem(w.ctx, "connection\x00refused \xff"+strings.Repeat("x", 100_000)))
		if got := w.stats().Cursors[0].Problem; !strings.HasPrefix(got, "connection") || !utf8.ValidString(got) || len(got) > 10_000 {
			w.Errorf("%d bytes are kept: %.40q", len(got), got)
		}
		w.ok(left.SetProblem(w.ctx, "no route"))
		p, err := left.Next(w.ctx, outbox.Limit{})
		w.ok(err)
		w.ok(left.Advance(w.ctx, p.Mark, nil))
		want("after a page", "no route", "")
		next := w.claimed(unit(1, 2, 2))
		w.ok(right.SetProblem(w.ctx, "of who was deposed"))
		want("after a claim of the other part", "no route", "")
		w.ok(next.SetProblem(w.ctx, "no login"))
		want("of both", "no route", "no login")
		w.ok(next.SetProblem(w.ctx, ""))
		want("of the left", "no route", "")
		w.ok(next.SetProblem(w.ctx, "no login"))
		w.claimed(unit(2, 3, 3))
		want("beside a part that went to another owner", "no route", "no login", "")
		w.claimed(claim(4))
		if all := w.stats().Cursors; slices.ContainsFunc(all, func(c outbox.CursorStats) bool { return c.Problem != "" }) {
			w.Errorf("of a new owner of all: %+v", all)
		}
	}},
	{"statistics of all subscriptions, or one", func(w *suite) {
		for _, name := range []string{"b", "a", "c"} {
			w.reader(outbox.ClaimRequest{Subscription: name, Instances: 2, Index: 1, Epoch: 3})
		}
		all, err := w.Operator.Stats(w.ctx, "")
		w.ok(err)
		names := map[string]bool{}
		for _, s := range all {
			names[s.Subscription] = true
		}
		w.same("names", names, map[string]bool{"a": true, "b": true, "c": true})
		one, err := w.Operator.Stats(w.ctx, "c")
		w.ok(err)
		w.same("one", []any{len(one), one[0].Subscription, one[0].Instances}, []any{1, "c", 2})
	}},
	{"many pending messages are estimated, the oldest is exact", func(w *suite) {
		batch := make([]outbox.Message, 1050)
		for i := range batch {
			batch[i] = outbox.Message{Topic: "t"}
		}
		w.reader(claim(1))
		for range 9 {
			w.publish(batch...)
		}
		s := w.stats()
		w.same("below the bound", []any{s.Pending, s.PendingExact}, []any{9450, true})
		oldest := s.OldestAt
		for range 11 {
			w.publish(batch...)
		}
		if s := w.stats(); s.PendingExact || s.Pending < 20_000 || s.Pending > 22_000 || !s.OldestAt.Equal(oldest) {
			w.Errorf("%d messages are counted as %d, exact %v; the oldest of %v is of %v", 21_000, s.Pending, s.PendingExact, oldest, s.OldestAt)
		}
		r := w.reader(unit(0, 2, 2)) // the other half stays where it is
		for p := r.page(full); p.More; p = r.page(full) {
			w.ok(r.Advance(w.ctx, p.Mark, nil))
		}
		if s := w.stats(); s.PendingExact || s.Pending < 9_500 || s.Pending > 12_500 {
			w.Errorf("of half of the shards %d messages are counted, exact %v, want about %d", s.Pending, s.PendingExact, 10_500)
		}
	}},
	{"entries are filtered", filters},
	{"entries come in pages", func(w *suite) {
		w.send(numbered("a", 7)...)
		w.reader(claim(1)).advanceAll(failing(fails(outbox.Held, 1, 0), numbered("a", 7)...))
		var got []string
		after := int64(0)
		for {
			entries, err := w.Operator.List(w.ctx, outbox.Filter{Subscription: sub, After: after, Limit: 3})
			w.ok(err)
			if len(entries) == 0 {
				break
			}
			for _, e := range entries {
				got, after = append(got, string(e.Payload)), e.Seq
			}
		}
		w.same("messages", got, numbered("a", 7))
	}},
	{"an entry is whole", func(w *suite) {
		m := msg("a:1")
		m.Headers, m.Type = map[string]string{"a": "b"}, "order.placed"
		w.publish(m)
		began := time.Now()
		w.reader(claim(1)).advanceAll(failing(fails(outbox.Waiting, 2, time.Hour), "a:1"))
		e := w.entry(outbox.Filter{})
		w.same("entry", fmt.Sprint(e.Topic, e.Type, e.Headers, e.Key, e.Shard), fmt.Sprint(m.Topic, m.Type, m.Headers, m.Key, outbox.ShardOf("a")))
		if d := e.ParkedAt.Sub(began).Abs(); d > time.Hour {
			w.Errorf("parked %v away from now", d)
		}
	}},
}

func statistics(w *suite) {
	r := w.reader(claim(4))
	s := w.stats()
	w.same("empty", []any{s.Pending, s.PendingExact, s.OldestAt.IsZero(), s.ParkedKeys, s.HeldKeys, s.Dead, s.Paused, s.Instances}, []any{0, true, true, 0, 0, 0, false, 1})
	if d := time.Since(s.Now).Abs(); d > time.Hour {
		w.Errorf("the log's clock is %v away from ours", d)
	}
	w.same("cursors", len(s.Cursors), 1)
	c := s.Cursors[0]
	w.same("cursor", []any{c.Range, c.Epoch, c.Node}, []any{outbox.Range{Lo: 0, Hi: outbox.Shards - 1}, 4, "node"})

	w.send("a:1", "a:2", "b:1", "c:1", "d:1")
	w.same("pending", w.stats().Pending, 5)
	r.advanceAll(func(text string) outbox.Outcome {
		switch text {
		case "a:1":
			return fails(outbox.Held, 1, 0)
		case "a:2":
			return outbox.Outcome{Kind: outbox.Behind}
		case "b:1":
			return fails(outbox.Waiting, 1, time.Hour)
		case "c:1":
			return outbox.Outcome{Kind: outbox.Dead, Attempts: 1}
		}
		return outbox.Outcome{}
	})
	w.send("e:1", "f:1")
	s = w.stats()
	w.same("pending, lanes, held, dead", []any{s.Pending, s.ParkedKeys, s.HeldKeys, s.Dead}, []any{5, 2, 1, 1})
	if age := s.Now.Sub(s.OldestAt); age < 0 || age > time.Hour || s.OldestAt.IsZero() {
		w.Errorf("the oldest message is %v old", age)
	}
	if s.Retained <= 0 {
		w.Errorf("%d bytes are retained", s.Retained)
	}
}

// filters lists with every field of a filter.
func filters(w *suite) {
	w.send("a:1", "a:2", "b:1", "c:1")
	for _, name := range []string{sub, "other"} {
		c := claim(1)
		c.Subscription = name
		w.reader(c).advanceAll(func(text string) outbox.Outcome {
			switch text {
			case "a:1":
				return fails(outbox.Held, 1, 0)
			case "a:2":
				return outbox.Outcome{Kind: outbox.Behind}
			case "b:1":
				return fails(outbox.Waiting, 1, time.Hour)
			}
			return outbox.Outcome{Kind: outbox.Dead, Attempts: 1}
		})
	}
	for _, c := range []struct {
		filter outbox.Filter
		want   []string
	}{
		{outbox.Filter{Subscription: sub}, []string{"a:1 held", "a:2 behind", "b:1 waiting", "c:1 dead"}},
		{outbox.Filter{}, []string{"a:1 held", "a:1 held", "a:2 behind", "a:2 behind", "b:1 waiting", "b:1 waiting", "c:1 dead", "c:1 dead"}},
		{outbox.Filter{Subscription: sub, Kind: outbox.Held}, []string{"a:1 held"}},
		{outbox.Filter{Subscription: sub, Kind: outbox.Behind}, []string{"a:2 behind"}},
		{outbox.Filter{Subscription: sub, Kind: outbox.Waiting}, []string{"b:1 waiting"}},
		{outbox.Filter{Subscription: sub, Kind: outbox.Dead}, []string{"c:1 dead"}},
		{outbox.Filter{Subscription: sub, Key: "a"}, []string{"a:1 held", "a:2 behind"}},
		{outbox.Filter{Subscription: "other", Seq: seqOf(w, "b:1")}, []string{"b:1 waiting"}},
		{outbox.Filter{Subscription: sub, After: seqOf(w, "a:2")}, []string{"b:1 waiting", "c:1 dead"}},
		{outbox.Filter{Subscription: sub, Limit: 2}, []string{"a:1 held", "a:2 behind"}},
		{outbox.Filter{Subscription: sub, Key: "nobody"}, nil},
	} {
		w.same(fmt.Sprintf("%+v", c.filter), w.list(c.filter), c.want)
	}
}
