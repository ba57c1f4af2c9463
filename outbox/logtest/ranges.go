package logtest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/emitd/emitd/outbox"
)

// How ranges of shards are split and merged.
var ranges = []story{
	{"units share the messages, none twice", func(w *suite) {
		want := spread(w, 200)
		var got []string
		for i := range 7 {
			rows := w.reader(unit(i, 7, 1)).drain()
			for _, row := range rows {
				if r := outbox.RangeOf(i, 7); row.Shard < r.Lo || row.Shard > r.Hi {
					w.Errorf("unit %d of shards %v got a message of shard %d", i, r, row.Shard)
				}
			}
			got = append(got, texts(rows)...)
		}
		sameSet(w, got, want)
	}},
	{"a split goes on at the position of the whole", func(w *suite) {
		all := spread(w, 100)
		whole := w.reader(claim(1))
		p := whole.page(outbox.Limit{Rows: 37, Bytes: 1 << 20})
		w.ok(whole.Advance(w.ctx, p.Mark, nil))
		got := texts(p.Rows)
		for i := range 3 {
			got = append(got, texts(w.reader(unit(i, 3, 2)).drain())...)
		}
		sameSet(w, got, all)
	}},
	{"what is outside a new claim keeps its position, and its owner claims again", func(w *suite) {
		all := spread(w, 60)
		whole := w.reader(claim(1))
		p := whole.page(outbox.Limit{Rows: 20, Bytes: 1 << 20})
		w.ok(whole.Advance(w.ctx, p.Mark, nil))
		lost := whole.page(outbox.Limit{Rows: 20, Bytes: 1 << 20})
		right := w.reader(unit(1, 2, 2))
		err := whole.Advance(w.ctx, lost.Mark, nil)
		if !errors.Is(err, outbox.ErrFenced) && !errors.Is(err, outbox.ErrMoved) {
			w.Errorf("an owner whose bounds are gone was answered %v", err)
		}
		left := w.reader(unit(0, 2, 2))
		sameSet(w, slices.Concat(texts(p.Rows), texts(left.drain()), texts(right.drain())), all)
	}},
	{"parts at different positions are one reader's, each message once", unevenMerge},
	{"parts that have caught up are one row", func(w *suite) {
		spread(w, 40)
		w.reader(unit(0, 2, 1)).drain()
		whole := w.reader(claim(2))
		w.same("rows before", len(w.stats().Cursors), 2)
		for range 3 {
			spread(w, 3)
			whole.drain()
		}
		w.same("rows after", len(w.stats().Cursors), 1)
		w.same("its range", w.stats().Cursors[0].Range, outbox.Range{Lo: 0, Hi: outbox.Shards - 1})
		spread(w, 10)
		w.same("and reading goes on", len(whole.drain()), 10)
	}},
	{"a claim of parts may be repeated", func(w *suite) {
		all := spread(w, 60)
		left := w.reader(unit(0, 2, 1))
		p := left.page(outbox.Limit{Rows: 10, Bytes: 1 << 20})
		w.ok(left.Advance(w.ctx, p.Mark, nil))
		got := texts(p.Rows)
		whole := w.reader(claim(2))
		p = whole.page(outbox.Limit{Rows: 5, Bytes: 1 << 20})
		w.ok(whole.Advance(w.ctx, p.Mark, nil))
		got = append(got, texts(p.Rows)...)
		got = append(got, texts(w.reader(claim(2)).drain())...)
		sameSet(w, got, all)
	}},
	{"lanes go with their shards", func(w *suite) {
		left, right := keyIn(outbox.RangeOf(0, 2), 1), keyIn(outbox.RangeOf(1, 2), 2)
		w.send(left+":1", right+":1", left+":2")
		w.reader(claim(1)).advanceAll(func(string) outbox.Outcome { return outbox.Outcome{Kind: outbox.Behind} })
		a, b := w.reader(unit(0, 2, 2)), w.reader(unit(1, 2, 2))
		w.same("parked left", a.Parked(), []string{left})
		w.same("parked right", b.Parked(), []string{right})
		w.eventually("lanes are due", func() bool { return len(a.due()) == 1 && len(b.due()) == 1 })
		w.same("left", a.due(), [][]string{{left + ":1", left + ":2"}})
		w.same("right", b.due(), [][]string{{right + ":1"}})
	}},
}

// spread sends n messages of many keys.
func spread(w *suite, n int) (out []string) {
	var all []outbox.Message
	for i := range n {
		text := fmt.Sprintf("spread-%d:%d", i%23, i)
		out, all = append(out, text), append(all, msg(text))
	}
	w.publish(all...)
	return out
}

// sameSet compares two lists regardless of their order.
func sameSet(w *suite, got, want []string) {
	w.Helper()
	got, want = slices.Clone(got), slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Fatalf("got %d messages, want %d (or others):\n%v\n%v", len(got), len(want), got, want)
	}
}

// unevenMerge lets four units progress unequally and then gives the whole range to one.
func unevenMerge(w *suite) {
	all := spread(w, 200)
	var got []string
	for i := range 4 {
		r := w.reader(unit(i, 4, 1))
		for range i {
			p := r.page(outbox.Limit{Rows: 11, Bytes: 1 << 20})
			w.ok(r.Advance(w.ctx, p.Mark, nil))
			got = append(got, texts(p.Rows)...)
		}
	}
	all = append(all, spread(w, 50)...)
	whole := w.reader(claim(2))
	rest := whole.drainBy(outbox.Limit{Rows: 13, Bytes: 1 << 20})
	sameSet(w, append(got, texts(rest)...), all)
	last := map[string]int64{}
	for _, row := range rest {
		if row.Seq <= last[row.Key] {
			w.Errorf("key %q: message %d came after %d", row.Key, row.Seq, last[row.Key])
		}
		last[row.Key] = row.Seq
	}
	w.same("afterwards", len(w.reader(claim(2)).drain()), 0)
}
