package logtest

import (
	"context"
	"errors"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Which cursors may read and write which ranges.
var claims = []story{
	{"a new subscription begins with the oldest message, or behind the newest", func(w *suite) {
		w.send("k:1", "k:2")
		oldest := w.reader(claim(1))
		newest := w.reader(outbox.ClaimRequest{Subscription: "newest", Instances: 1, Epoch: 1, Newest: true})
		w.send("k:3")
		w.same("oldest", texts(oldest.drain()), []string{"k:1", "k:2", "k:3"})
		w.same("newest", texts(newest.drain()), []string{"k:3"})
	}},
	{"Newest means nothing to a subscription that is known", func(w *suite) {
		w.reader(claim(1))
		w.send("k:1")
		again := claim(2)
		again.Newest = true
		w.same("messages", texts(w.reader(again).drain()), []string{"k:1"})
	}},
	{"the first claim of one unit covers the shards of all", func(w *suite) {
		w.reader(outbox.ClaimRequest{Subscription: sub, Index: 0, Instances: 4, Epoch: 1, Newest: true})
		w.send(numbered(keyIn(outbox.RangeOf(3, 4), 0), 3)...)
		w.same("unit 3", len(w.reader(unit(3, 4, 1)).drain()), 3)
	}},
	{"a higher epoch fences reading's effects", higherEpoch},
	{"a lower epoch is refused", func(w *suite) {
		w.send("k:1")
		r := w.reader(claim(7))
		for _, epoch := range []int64{1, 6} {
			_, err := w.Log.Claim(w.ctx, claim(epoch))
			w.fencedBy(err, 7)
		}
		w.same("its owner", texts(r.drain()), []string{"k:1"})
	}},
	{"the same epoch may claim again, and refuses its earlier claim", func(w *suite) {
		w.send(numbered("k", 4)...)
		first := w.claimed(claim(3))
		p, err := first.Next(w.ctx, outbox.Limit{Rows: 2, Bytes: 1 << 20})
		w.ok(err)
		second := w.reader(claim(3))
		if err := first.Advance(w.ctx, p.Mark, nil); err == nil {
			w.Fatal("an earlier claim advanced")
		}
		w.same("messages", texts(second.drain()), numbered("k", 4))
		w.same("a third claim", len(w.reader(claim(3)).drain()), 0)
	}},
	{"an earlier claim stores nothing, whatever it tries", func(w *suite) {
		w.send("a:1", "a:2", "b:1")
		r := w.reader(claim(1))
		r.advanceAll(failing(fails(outbox.Waiting, 1, 0), "a:1", "a:2"))
		stale := w.claimed(claim(1))
		w.eventually("a lane is due", func() bool {
			lanes, err := stale.Due(w.ctx, 10)
			w.ok(err)
			return len(lanes) == 1
		})
		lanes, err := stale.Due(w.ctx, 10)
		w.ok(err)
		w.claimed(claim(1))
		if _, err := stale.StoreParked(w.ctx, []outbox.Outcome{{Row: lanes[0][0], Kind: outbox.Delivered}}); err == nil {
			w.Error("an earlier claim settled")
		}
		w.same("lanes", w.list(outbox.Filter{}), []string{"a:1 waiting", "a:2 behind"})
	}},
	{"a resize refuses the former number at its epochs", resize},
	{"a unit of a low epoch does not make the log forget a higher one", func(w *suite) {
		w.reader(unit(1, 2, 12))
		w.reader(unit(0, 2, 10))
		_, err := w.Log.Claim(w.ctx, unit(0, 4, 11)) // overlaps only rows with epoch 10
		w.fencedBy(err, 12)
		w.same("resized", w.fenced(err).Resized, true)
		w.same("instances", w.stats().Instances, 2)
	}},
	{"other bounds at the same epoch are refused", func(w *suite) {
		w.reader(unit(0, 2, 4))
		_, err := w.Log.Claim(w.ctx, unit(0, 1, 4))
		w.fencedBy(err, 4)
		_, err = w.Log.Claim(w.ctx, unit(0, 4, 4))
		w.fencedBy(err, 4)
	}},
	{"a page of one cursor is no mark for another", func(w *suite) {
		w.send("k:1")
		p := w.reader(claim(1)).page(full)
		if err := w.claimed(claim(2)).Advance(w.ctx, p.Mark, nil); err == nil {
			w.Error("advanced by the mark of an earlier claim")
		}
		w.same("messages", texts(w.reader(claim(3)).drain()), []string{"k:1"})
	}},
	{"a call whose context has ended changes nothing", func(w *suite) {
		w.send("k:1")
		r := w.reader(claim(1))
		p := r.page(full)
		ended, cancel := context.WithCancel(w.ctx)
		cancel()
		if err := r.Advance(ended, p.Mark, nil); err == nil {
			w.Error("advanced after the end")
		}
		if _, err := w.Log.Claim(ended, claim(2)); err == nil {
			w.Error("claimed after the end")
		}
		w.same("messages", texts(w.reader(claim(1)).drain()), []string{"k:1"})
	}},
}

// higherEpoch claims with a higher epoch while the former owner has a page, a due lane and a delayed
// message to deal with.
func higherEpoch(w *suite) {
	w.send("a:1", "a:2", "b:1", "c:1")
	w.publish(outbox.Message{Topic: "t", Key: "later", Payload: []byte("later:1"), NotBefore: time.Now().Add(soon)})
	old := w.reader(claim(1))
	old.advanceAll(failing(fails(outbox.Waiting, 1, 0), "a:1", "a:2"))
	w.eventually("a lane is due", func() bool { return len(old.due()) == 1 })
	lanes := old.dueRows()
	w.send("d:1")
	p := old.page(full)
	w.eventually("a delayed message is due", func() bool { return old.page(full).Delayed })
	taker := w.reader(claim(9))

	w.fencedBy(old.Advance(w.ctx, p.Mark, []outbox.Outcome{{Row: p.Rows[0], Kind: outbox.Dead, Attempts: 1, Cause: "x"}}), 9)
	_, err := old.StoreParked(w.ctx, []outbox.Outcome{{Row: lanes[0][0], Kind: outbox.Delivered}})
	w.fencedBy(err, 9)
	_, err = old.Promote(w.ctx, 10)
	w.fencedBy(err, 9)
	if _, err := old.Next(w.ctx, full); err != nil && !errors.Is(err, outbox.ErrFenced) {
		w.Errorf("reading on was refused with %v, want nothing or %v", err, outbox.ErrFenced)
	}
	w.same("lanes and dead letters", w.list(outbox.Filter{}), []string{"a:1 waiting", "a:2 behind"})
	n, err := taker.Promote(w.ctx, 10)
	w.ok(err)
	w.same("promoted by its successor", n, 1)
	w.same("messages of its successor", texts(taker.drain()), []string{"d:1", "later:1"})
}

// resize goes from two units to one and back.
func resize(w *suite) {
	w.send("k:1")
	w.reader(unit(0, 2, 10))
	w.reader(unit(1, 2, 12))
	_, err := w.Log.Claim(w.ctx, unit(0, 1, 11))
	w.fencedBy(err, 12)
	one := w.reader(unit(0, 1, 13))
	for i := range 2 {
		_, err := w.Log.Claim(w.ctx, unit(i, 2, 13))
		w.fencedBy(err, 13)
	}
	w.same("messages", texts(one.drain()), []string{"k:1"})
	w.same("instances", w.stats().Instances, 1)

	// Unit 1 of 2 owns a range that does not overlap unit 0 of 4: only the number of instances shows that
	// the claim is stale.
	w.reader(unit(1, 2, 20))
	_, err = w.Log.Claim(w.ctx, unit(0, 4, 15))
	w.fencedBy(err, 20)
	w.same("resized", w.fenced(err).Resized, true)
	w.same("instances", w.fenced(err).Instances, 2)
}
