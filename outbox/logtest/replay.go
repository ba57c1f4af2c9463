package logtest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Replays: of everything from a position on, and of what a key, topics or a range select.
var replays = []story{
	{"a replay delivers again what is in the log, then what follows", func(w *suite) {
		w.send(numbered("a", 5)...)
		r := w.reader(claim(1))
		rows := r.drain()
		used, counts, err := w.Operator.Replay(w.ctx, outbox.ReplayRequest{Subscription: sub, After: rows[1].Seq})
		w.ok(err)
		w.same("position", used, rows[1].Seq)
		w.same("counts", counts, "map[delivered:3]")
		w.send("a:new")
		again := w.reader(claim(2)).page(full)
		w.same("delivered before, up to", again.Replayed >= rows[4].Seq && again.Replayed < again.Rows[len(again.Rows)-1].Seq, true)
		r = w.reader(claim(3))
		w.same("messages", texts(r.drain()), append(numbered("a", 5)[2:], "a:new"))
		w.same("once", len(r.drain()), 0)
	}},
	{"a replay passes over nothing that is not delivered", func(w *suite) {
		w.send(numbered("a", 5)...)
		r := w.reader(claim(1))
		p := r.page(outbox.Limit{Rows: 2, Bytes: 1 << 20})
		w.ok(r.Advance(w.ctx, p.Mark, nil))
		last := r.page(full).Rows[2].Seq
		w.replayed(outbox.ReplayRequest{After: last}, "map[]")
		w.same("messages", texts(w.reader(claim(2)).drain()), numbered("a", 5)[2:])
	}},
	{"a replay since a time", func(w *suite) {
		w.send(numbered("a", 3)...)
		r := w.reader(claim(1))
		rows := r.drain()
		w.replayed(outbox.ReplayRequest{Since: rows[0].CreatedAt.Add(-time.Minute)}, "map[delivered:3]")
		w.same("all", texts(r.drain()), numbered("a", 3))
		w.replayed(outbox.ReplayRequest{Since: rows[1].CreatedAt}, "map[delivered:2]")
		w.same("from the second on", texts(r.drain()), numbered("a", 3)[1:])
		w.replayed(outbox.ReplayRequest{Since: rows[2].CreatedAt.Add(time.Microsecond)}, "map[]")
		w.same("none", len(r.drain()), 0)
	}},
	{"a replay is of one subscription, whatever its ranges", func(w *suite) {
		all := spread(w, 60)
		other := w.reader(outbox.ClaimRequest{Subscription: "other", Instances: 1, Epoch: 1})
		other.drain()
		units := []*reader{w.reader(unit(0, 2, 1)), w.reader(unit(1, 2, 1))}
		for _, u := range units {
			u.drain()
		}
		w.replayed(outbox.ReplayRequest{}, "map[delivered:60]")
		var got []string
		for _, u := range units {
			got = append(got, texts(u.drain())...)
		}
		sameSet(w, got, all)
		w.same("other", len(other.drain()), 0)
	}},
	{"a replay by an owner that is in the middle of a page loses nothing", func(w *suite) {
		w.send(numbered("a", 6)...)
		r := w.reader(claim(1))
		p := r.page(outbox.Limit{Rows: 4, Bytes: 1 << 20})
		w.replayed(outbox.ReplayRequest{}, "map[waiting:6]")
		_ = r.Advance(w.ctx, p.Mark, nil) // refused, unless it happens before the replay
		got := texts(r.drain())
		for _, text := range numbered("a", 6) {
			if !contains(got, text) {
				w.Errorf("message %s was not delivered again", text)
			}
		}
	}},
	{"a replay of a key comes before what is pending of it, and nothing else waits", func(w *suite) {
		w.send("a:1", "b:1", "a:2", "b:2")
		r := w.reader(claim(1))
		r.drain()
		w.send("a:3", "b:3")
		w.replayed(outbox.ReplayRequest{Key: "a"}, "map[delivered:2 waiting:1]")
		r = w.reader(claim(1))
		w.same("parked", r.Parked(), []string{"a"})
		p := r.page(full)
		w.same("page", texts(p.Rows), []string{"a:3", "b:3"})
		w.same("due", p.Due, true)
		w.ok(r.Advance(w.ctx, p.Mark, outcomes(p.Rows, failing(outbox.Outcome{Kind: outbox.Behind}, "a:3"))))
		lane := r.dueLane()
		w.same("lane", texts(lane), []string{"a:1", "a:2", "a:3"})
		w.same("attempt", lane[0].Attempt, 1)
		_, err := r.StoreParked(w.ctx, outcomes(lane, func(string) outbox.Outcome { return outbox.Outcome{} }))
		w.ok(err)
		w.same("pending", w.stats().Pending, 0)
	}},
	{"a relay that does not know of a replay stores nothing more", func(w *suite) {
		w.send("a:1", "a:2")
		r := w.claimed(claim(1))
		p, err := r.Next(w.ctx, full)
		w.ok(err)
		w.ok(r.Advance(w.ctx, p.Mark, nil))
		w.send("a:3")
		p, err = r.Next(w.ctx, full)
		w.ok(err)
		w.replayed(outbox.ReplayRequest{Key: "a"}, "map[delivered:2 waiting:1]")
		w.is(r.Advance(w.ctx, p.Mark, nil), outbox.ErrMoved)
		_, err = r.StoreParked(w.ctx, []outbox.Outcome{{Row: p.Rows[0], Kind: outbox.Delivered}})
		w.is(err, outbox.ErrMoved)
		w.eventually("it may not read either", func() bool {
			_, err = r.Next(w.ctx, full)
			return errors.Is(err, outbox.ErrMoved)
		})
		again := w.claimed(claim(1))
		w.same("parked", again.Parked(), []string{"a"})
		p, err = again.Next(w.ctx, full)
		w.ok(err)
		w.same("what it had in flight", texts(p.Rows), []string{"a:3"})
	}},
	{"a relay of other shards does not notice", func(w *suite) {
		left, right := keyIn(outbox.RangeOf(0, 2), 1), keyIn(outbox.RangeOf(1, 2), 1)
		w.send(left+":1", right+":1")
		a, b := w.claimed(unit(0, 2, 1)), w.claimed(unit(1, 2, 1))
		marks := map[outbox.Cursor]outbox.Mark{}
		for _, cur := range []outbox.Cursor{a, b} {
			p, err := cur.Next(w.ctx, full)
			w.ok(err)
			w.ok(cur.Advance(w.ctx, p.Mark, nil))
		}
		w.send(left+":2", right+":2")
		for _, cur := range []outbox.Cursor{a, b} {
			p, err := cur.Next(w.ctx, full)
			w.ok(err)
			marks[cur] = p.Mark
		}
		w.replayed(outbox.ReplayRequest{Key: left}, "map[delivered:1 waiting:1]")
		w.is(a.Advance(w.ctx, marks[a], nil), outbox.ErrMoved)
		w.ok(b.Advance(w.ctx, marks[b], nil))
	}},
	{"a replay selects by topic, range and time", func(w *suite) {
		for _, text := range []string{"a:1", "b:2", "a:3", ":4", "b:5"} {
			m := msg(text)
			if m.Topic = "order"; text != "a:1" && text != ":4" {
				m.Topic = "mail.out"
			}
			w.publish(m)
		}
		r := w.reader(claim(1))
		rows := r.drain()
		seqs := map[string]int64{}
		for _, row := range rows {
			seqs[string(row.Payload)] = row.Seq
		}
		for _, c := range []struct {
			what   string
			req    outbox.ReplayRequest
			counts string
			want   [][]string
		}{
			{"topic", outbox.ReplayRequest{Topics: []string{"order"}}, "map[delivered:2]", [][]string{{":4"}, {"a:1"}}},
			{"prefixes", outbox.ReplayRequest{Topics: []string{"x", "mail.*"}}, "map[delivered:3]", [][]string{{"a:3"}, {"b:2", "b:5"}}},
			{"every topic", outbox.ReplayRequest{Topics: []string{"*"}, Key: "a"}, "map[delivered:2]", [][]string{{"a:1", "a:3"}}},
			{"no topic", outbox.ReplayRequest{Topics: []string{"mail"}}, "map[]", nil},
			{"no key", outbox.ReplayRequest{Key: "A"}, "map[]", nil},
			{"positions", outbox.ReplayRequest{After: seqs["a:1"], UpTo: seqs["a:3"]}, "map[delivered:2]", [][]string{{"a:3"}, {"b:2"}}},
			{"the first", outbox.ReplayRequest{UpTo: seqs["a:1"]}, "map[delivered:1]", [][]string{{"a:1"}}},
			{"times", outbox.ReplayRequest{Since: rows[1].CreatedAt, Until: rows[3].CreatedAt}, "map[delivered:2]", [][]string{{"a:3"}, {"b:2"}}},
			{"key and time", outbox.ReplayRequest{Key: "b", Until: rows[4].CreatedAt}, "map[delivered:1]", [][]string{{"b:2"}}},
			{"time and position", outbox.ReplayRequest{Since: rows[2].CreatedAt, UpTo: seqs[":4"]}, "map[delivered:2]", [][]string{{":4"}, {"a:3"}}},
		} {
			before := w.list(outbox.Filter{})
			c.req.DryRun = true
			w.replayed(c.req, c.counts)
			w.same(c.what+": after a dry run", w.list(outbox.Filter{}), before)
			c.req.DryRun = false
			w.replayed(c.req, c.counts)
			r = w.reader(claim(1))
			w.same(c.what, r.due(), c.want)
			for _, lane := range r.dueRows() {
				_, err := r.StoreParked(w.ctx, outcomes(lane, func(string) outbox.Outcome { return outbox.Outcome{} }))
				w.ok(err)
			}
		}
	}},
	{"a replay comes before what is parked, and wakes it", func(w *suite) {
		w.send("a:1", "b:1", ":1")
		r := w.reader(claim(1))
		r.drain()
		w.send("a:2", "a:3", "b:2")
		r.advanceAll(func(text string) outbox.Outcome {
			switch text {
			case "a:2":
				return fails(outbox.Waiting, 3, time.Hour)
			case "a:3":
				return outbox.Outcome{Kind: outbox.Behind}
			}
			return fails(outbox.Held, 10, 0)
		})
		w.replayed(outbox.ReplayRequest{UpTo: seqOf(w, "b:2")}, "map[delivered:3 waiting:3]")
		r = w.reader(claim(1))
		w.same("due", r.due(), [][]string{{":1"}, {"a:1", "a:2", "a:3"}, {"b:1", "b:2"}})
		w.same("held", w.stats().HeldKeys, 0)
		for _, lane := range r.dueRows() {
			w.same("attempt", lane[0].Attempt, 1)
		}
		w.replayed(outbox.ReplayRequest{Key: "a"}, "map[waiting:3]")
		w.same("a second one adds nothing", w.reader(claim(1)).due(), [][]string{{":1"}, {"a:1", "a:2", "a:3"}, {"b:1", "b:2"}})
	}},
	{"a replay of everything comes before what is parked, and wakes it", func(w *suite) {
		for i, kind := range []outbox.Kind{outbox.Held, outbox.Waiting} {
			key := fmt.Sprint("k", i)
			r := replayedBefore(w, key, kind)
			w.same("due before it was read again", len(r.due()), 0)
			r.advanceAll(func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Behind} })
			lane := r.dueLane()
			w.same("due", texts(lane), []string{key + ":3", key + ":5", key + ":7", key + ":8"})
			w.same("attempt", lane[0].Attempt, 1)
			w.same("listed", w.list(outbox.Filter{Key: key})[0], key+":3 waiting")
			w.ok(w.Operator.Skip(w.ctx, sub, lane[0].Seq))
			w.same("cause", w.entry(outbox.Filter{Key: key, Kind: outbox.Dead}).Cause, "skipped by an operator")
			for _, row := range r.dueLane() {
				r.settle(row, outbox.Outcome{Kind: outbox.Delivered})
			}
		}
	}},
	{"a replay from a parked message on changes nothing of its lane", func(w *suite) {
		w.send("a:3", "a:7", "a:8")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Held, 9, 0), "a:7", "a:8"))
		w.replayed(outbox.ReplayRequest{After: seqOf(w, "a:7") - 1}, "map[waiting:2]")
		r = w.reader(claim(1))
		r.advanceAll(func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Behind} })
		w.same("due", len(r.due()), 0)
		w.same("listed", w.list(outbox.Filter{}), []string{"a:7 held", "a:8 behind"})
	}},
	{"what was at the sink while a replay put others before it changes nothing of them", func(w *suite) {
		r := replayedBefore(w, "a", outbox.Waiting)
		_, err := w.Operator.Retry(w.ctx, sub, seqOf(w, "a:7"))
		w.ok(err)
		rows := r.dueLane()
		w.same("at the sink", texts(rows), []string{"a:7", "a:8"})
		r.advanceAll(func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Behind} })
		w.same("emptied", len(r.settle(rows[0], fails(outbox.Waiting, 1, time.Hour))), 0)
		lane := r.dueLane()
		w.same("due", texts(lane), []string{"a:3", "a:5", "a:7", "a:8"})
		w.same("attempt", lane[0].Attempt, 1)
		for _, row := range rows {
			w.same("emptied", len(r.settle(row, outbox.Outcome{Kind: outbox.Delivered})), 0)
		}
		w.same("due after the delivery", r.due(), [][]string{{"a:3", "a:5", "a:7", "a:8"}})
	}},
	{"what a replay puts between messages that are at the sink comes before the later ones", func(w *suite) {
		r := w.reader(claim(1))
		w.send("a:1", "a:2", "b:1", "a:3")
		r.drain()
		w.send("a:4")
		r.advanceAll(failing(fails(outbox.Waiting, 1, 0), "a:4"))
		w.replayed(outbox.ReplayRequest{}, "map[delivered:4 waiting:1]")
		r = w.reader(claim(1))
		behind := func(p outbox.Page) (out []outbox.Outcome) {
			for _, row := range p.Rows {
				out = append(out, outbox.Outcome{Row: row, Kind: outbox.Behind})
			}
			return out
		}
		first := r.page(outbox.Limit{Rows: 1, Bytes: full.Bytes})
		w.same("first page", texts(first.Rows), []string{"a:1"})
		w.ok(r.Advance(w.ctx, first.Mark, behind(first)))
		rows := r.dueLane()
		w.same("at the sink", texts(rows), []string{"a:1", "a:4"})
		for p := r.page(full); len(p.Rows) > 0; p = r.page(full) {
			w.ok(r.Advance(w.ctx, p.Mark, behind(p)))
		}
		var taken []outbox.Outcome
		for _, row := range rows {
			taken = append(taken, outbox.Outcome{Row: row, Kind: outbox.Delivered})
		}
		emptied, err := r.StoreParked(w.ctx, taken)
		w.ok(err)
		w.same("emptied", len(emptied), 0)
		lanes := r.due()
		slices.SortFunc(lanes, slices.Compare)
		w.same("due after the delivery", lanes, [][]string{{"a:2", "a:3", "a:4"}, {"b:1"}})
	}},
	{"a message that was put back stays in its own lane when it is read again", func(w *suite) {
		for i, o := range []outbox.Outcome{{Kind: outbox.Behind}, fails(outbox.Waiting, 1, 0), fails(outbox.Held, 1, 0)} {
			text := fmt.Sprint("k", i, ":1")
			w.send(text)
			r := w.reader(claim(1))
			r.advanceAll(func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Dead, Attempts: 4, Cause: "bad"} })
			_, err := w.Operator.Retry(w.ctx, sub)
			w.ok(err)
			w.replayed(outbox.ReplayRequest{After: seqOf(w, text) - 1}, "map[waiting:1]")
			r = w.reader(claim(1))
			r.advanceAll(func(string) outbox.Outcome { return o })
			w.same("due", r.due(), [][]string{{text}})
			r.settle(r.dueLane()[0], outbox.Outcome{Kind: outbox.Delivered})
			w.same("another lane is due", r.page(full).Due, false)
			w.same("parked keys", int(w.stats().ParkedKeys), 0)
		}
	}},
	{"a replay with an empty list of topics is one of all", func(w *suite) {
		w.send("a:1", "b:2")
		r := w.reader(claim(1))
		r.drain()
		w.replayed(outbox.ReplayRequest{Topics: []string{}}, "map[delivered:2]")
		w.same("messages", texts(r.drain()), []string{"a:1", "b:2"})
		w.replayed(outbox.ReplayRequest{Topics: []string{}, Key: "a"}, "map[delivered:1]")
		w.same("due", w.reader(claim(1)).due(), [][]string{{"a:1"}})
	}},
	{"a dead letter stays one until its replay is delivered or dies", func(w *suite) {
		w.send("a:1", "a:2")
		r := w.reader(claim(1))
		r.advanceAll(failing(outbox.Outcome{Kind: outbox.Dead, Attempts: 4, Cause: "bad"}, "a:1"))
		r.drain()
		w.send("a:3")
		r.drain()
		w.replayed(outbox.ReplayRequest{Key: "a"}, "map[delivered:3]")
		r = w.reader(claim(1))
		lane := r.dueLane()
		w.same("due", texts(lane), []string{"a:1", "a:2", "a:3"})
		r.settle(lane[0], outbox.Outcome{Kind: outbox.Dead, Attempts: 1, Cause: "still bad"})
		w.same("dead", w.entry(outbox.Filter{Kind: outbox.Dead}).Cause, "still bad")
	}},
	{"dead letters are retried, and one whose replay is parked is not parked a second time", func(w *suite) {
		w.send("a:1", "a:2", "b:1")
		r := w.reader(claim(1))
		r.advanceAll(func(text string) outbox.Outcome {
			if text == "a:2" {
				return outbox.Outcome{}
			}
			return outbox.Outcome{Kind: outbox.Dead, Attempts: 4, Cause: "bad"}
		})
		w.replayed(outbox.ReplayRequest{Key: "a"}, "map[delivered:2]")
		r = w.reader(claim(1))
		w.settled(outbox.Filter{}, outbox.Waiting, "map[dead:2]")
		w.same("due", r.due(), [][]string{{"a:1", "a:2"}, {"b:1"}})
		for _, lane := range r.dueRows() {
			_, err := r.StoreParked(w.ctx, outcomes(lane, func(string) outbox.Outcome { return outbox.Outcome{} }))
			w.ok(err)
		}
		w.same("due after the deliveries", r.page(full).Due, false)
		w.same("listed", len(w.list(outbox.Filter{})), 0)
	}},
	{"a replay delivers what a subscription that began later never had", func(w *suite) {
		w.send("a:1", "b:1", "a:2")
		c := claim(1)
		c.Newest = true
		r := w.reader(c)
		w.same("at first", len(r.drain()), 0)
		w.replayed(outbox.ReplayRequest{Key: "a"}, "map[delivered:2]")
		w.same("due", w.reader(c).due(), [][]string{{"a:1", "a:2"}})
	}},
	{"a replay while the subscription is paused waits with it", func(w *suite) {
		w.send("a:1")
		r := w.reader(claim(1))
		r.drain()
		w.ok(w.Operator.Pause(w.ctx, sub, true))
		w.replayed(outbox.ReplayRequest{Key: "a"}, "map[delivered:1]")
		r = w.reader(claim(1))
		w.same("due", r.page(full).Due, false)
		w.ok(w.Operator.Pause(w.ctx, sub, false))
		w.same("due after that", r.page(full).Due, true)
	}},
	{"a replay that makes no sense is refused", func(w *suite) {
		w.send("a:1", "a:2")
		r := w.reader(claim(1))
		rows := r.drain()
		last := rows[1].Seq
		hour := time.Now().Add(time.Hour)
		for _, req := range []outbox.ReplayRequest{
			{Subscription: "nobody"},
			{Subscription: "nobody", Key: "a", DryRun: true},
			{Subscription: sub, After: last + 1_000_000},
			{Subscription: sub, Key: "a", After: last + 1_000_000},
			{Subscription: sub, UpTo: last + 1_000_000},
			{Subscription: sub, Since: hour},
			{Subscription: sub, Key: "a", Since: hour},
			{Subscription: sub, Until: hour},
			{Subscription: sub, Until: rows[0].CreatedAt.Add(-time.Hour)},
		} {
			_, _, err := w.Operator.Replay(w.ctx, req)
			w.is(err, outbox.ErrNotFound)
		}
		for _, req := range []outbox.ReplayRequest{
			{},
			{Subscription: sub, After: -1},
			{Subscription: sub, UpTo: -1},
			{Subscription: sub, After: last, UpTo: last},
			{Subscription: sub, Since: rows[1].CreatedAt, Until: rows[1].CreatedAt},
			{Subscription: sub, Topics: []string{"a*b"}},
			{Subscription: sub, Topics: []string{""}},
		} {
			if _, _, err := w.Operator.Replay(w.ctx, req); err == nil {
				w.Errorf("%+v was not refused", req)
			}
		}
		w.replayed(outbox.ReplayRequest{After: last}, "map[]")
		w.same("listed", len(w.list(outbox.Filter{})), 0)
		w.same("messages", len(r.drain()), 0)
	}},
}

// replayedBefore parks messages 7 and 8 of a key for an hour or until an operator acts, after 3 and 5 were delivered, and
// replays everything. It returns a reader that has read nothing again.
func replayedBefore(w *suite, key string, kind outbox.Kind) *reader {
	w.Helper()
	r := w.reader(claim(1))
	w.send(key+":3", key+":5")
	rows := r.drain()
	w.send(key+":7", key+":8")
	o := fails(kind, 9, 0)
	if kind == outbox.Waiting {
		o.RetryIn = time.Hour
	}
	r.advanceAll(failing(o, key+":7", key+":8"))
	w.replayed(outbox.ReplayRequest{After: rows[0].Seq - 1}, "map[delivered:2 waiting:2]")
	return w.reader(claim(1))
}

// replayed replays messages of sub, and ends the test unless the counts are these.
func (w *suite) replayed(r outbox.ReplayRequest, counts string) {
	w.Helper()
	r.Subscription = sub
	_, got, err := w.Operator.Replay(w.ctx, r)
	w.ok(err)
	w.same("replayed", got, counts)
}
