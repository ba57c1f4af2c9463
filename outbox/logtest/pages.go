package logtest

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
)

// What pages contain.
var pages = []story{
	{"an empty log has nothing", func(w *suite) {
		p := w.reader(claim(1)).page(full)
		w.same("rows", len(p.Rows), 0)
		w.same("more, paused, due, delayed", []bool{p.More, p.Paused, p.Due, p.Delayed}, []bool{false, false, false, false})
	}},
	{"every field comes back", everyField},
	{"a page is bounded in rows", func(w *suite) {
		w.send(numbered("k", 25)...)
		r := w.reader(claim(1))
		for i, want := range []int{10, 10, 5, 0} {
			p := r.page(outbox.Limit{Rows: 10, Bytes: 1 << 20})
			w.same(fmt.Sprint("rows of page ", i), len(p.Rows), want)
			if i < 2 {
				w.same("more", p.More, true)
			}
		}
	}},
	{"a page is bounded in bytes, but has a message", func(w *suite) {
		big := strings.Repeat("x", 100<<10)
		for i := range 6 {
			w.publish(msg(fmt.Sprint("k:", i, big)))
		}
		r := w.reader(claim(1))
		total := 0
		for i := range 6 {
			p := r.page(outbox.Limit{Rows: 100, Bytes: 150 << 10})
			if len(p.Rows) > 2 {
				w.Fatalf("page %d has %d rows of 100 KiB, want 150 KiB or about", i, len(p.Rows))
			}
			total += len(p.Rows)
		}
		w.same("messages", total+len(r.drain()), 6)
		w.publish(msg("k:" + big))
		w.same("a page smaller than its message", len(r.page(outbox.Limit{Rows: 1, Bytes: 1}).Rows), 1)
	}},
	{"messages of a key come in order, over pages and transactions", func(w *suite) {
		var want []string
		for i := range 30 {
			var all []outbox.Message
			for j := range 1 + i%4 {
				text := fmt.Sprintf("k:%02d.%d", i, j)
				want = append(want, text)
				all = append(all, msg(text), msg(":noise"))
			}
			w.publish(all...)
		}
		var got []string
		for _, text := range texts(w.reader(claim(1)).drainBy(outbox.Limit{Rows: 7, Bytes: 1 << 20})) {
			if text != ":noise" {
				got = append(got, text)
			}
		}
		w.same("order", got, want)
	}},
	{"large transactions come whole", func(w *suite) {
		for _, n := range []int{2, 49, 50, 51, 1200} {
			var all []outbox.Message
			for i := range n {
				all = append(all, msg(fmt.Sprintf("k%d:%d", i%7, i)))
			}
			w.publish(all...)
			rows := w.reader(outbox.ClaimRequest{Subscription: fmt.Sprint("large-", n), Instances: 1, Epoch: 1}).drain()
			last := rows[len(rows)-n:]
			for i, text := range texts(last) {
				w.same("message", text, fmt.Sprintf("k%d:%d", i%7, i))
			}
		}
	}},
	{"what is rolled back was never there", func(w *suite) {
		r := w.reader(claim(1))
		tx := w.begin()
		w.ok(tx.Publish(w.ctx, msg("k:gone"), msg(":gone")))
		w.same("before the end", len(r.page(full).Rows), 0)
		w.ok(tx.Rollback(w.ctx))
		w.send("k:there")
		w.same("messages", texts(r.drain()), []string{"k:there"})
	}},
	{"an open transaction is not seen until it commits", func(w *suite) {
		r := w.reader(claim(1))
		tx := w.begin()
		w.ok(tx.Publish(w.ctx, msg("k:late")))
		w.same("before the commit", len(r.page(full).Rows), 0)
		w.ok(tx.Commit(w.ctx))
		w.same("after the commit", texts(r.drain()), []string{"k:late"})
	}},
	{"an open transaction holds nobody back", openTransaction},
	{"what was not advanced over comes again", func(w *suite) {
		w.send(numbered("k", 6)...)
		r := w.reader(claim(1))
		w.ok(r.Advance(w.ctx, r.page(outbox.Limit{Rows: 2, Bytes: 1 << 20}).Mark, nil))
		r.page(outbox.Limit{Rows: 2, Bytes: 1 << 20}) // read, but its position is never stored
		w.same("after another claim", texts(w.reader(claim(2)).drain()), numbered("k", 6)[2:])
	}},
	{"marks may be left out", func(w *suite) {
		w.send(numbered("k", 6)...)
		r := w.reader(claim(1))
		var last outbox.Page
		for range 3 {
			last = r.page(outbox.Limit{Rows: 2, Bytes: 1 << 20})
		}
		w.ok(r.Advance(w.ctx, last.Mark, nil))
		w.same("left", len(w.reader(claim(2)).drain()), 0)
	}},
	{"reading goes on while earlier pages are advanced over", func(w *suite) {
		w.send(numbered("k", 9)...)
		r := w.reader(claim(1))
		var got []string
		var marks []outbox.Mark
		for range 3 {
			p := r.page(outbox.Limit{Rows: 3, Bytes: 1 << 20})
			got, marks = append(got, texts(p.Rows)...), append(marks, p.Mark)
		}
		for _, m := range marks {
			w.ok(r.Advance(w.ctx, m, nil))
		}
		w.same("messages", got, numbered("k", 9))
		w.send("k:later")
		w.same("and then", texts(r.drain()), []string{"k:later"})
	}},
	{"subscriptions do not know of each other", func(w *suite) {
		w.send("k:1", "k:2")
		a := w.reader(outbox.ClaimRequest{Subscription: "a", Instances: 1, Epoch: 5})
		w.same("a", len(a.drain()), 2)
		b := w.reader(outbox.ClaimRequest{Subscription: "b", Instances: 3, Index: 1, Epoch: 2})
		b.drain()
		w.send("k:3")
		w.same("a", texts(a.drain()), []string{"k:3"})
		total := 0
		for i := range 3 {
			total += len(w.reader(outbox.ClaimRequest{Subscription: "c", Instances: 3, Index: i, Epoch: 1}).drain())
		}
		w.same("c", total, 3)
	}},
	{"a commit wakes", func(w *suite) {
		if !w.Wakes {
			return
		}
		c := w.Log.WakeUps(w.ctx)
		w.eventually("a wake-up after a commit", func() bool {
			w.send("k:1")
			select {
			case <-c:
				return true
			case <-time.After(500 * time.Millisecond):
				return false
			}
		})
	}},
}

// everyField publishes the extreme values of each field.
func everyField(w *suite) {
	headers := map[string]string{}
	for i := range outbox.MaxHeaders {
		headers[fmt.Sprintf("Name-%d", i)] = "value \"quoted\" {}, \\ and ünïcödé\t"
	}
	long := outbox.Message{
		ID: uuid.New(), Key: strings.Repeat("k", outbox.MaxKey), Topic: strings.Repeat("t", outbox.MaxTopic), Type: strings.Repeat("y", outbox.MaxType),
		Headers: headers, Payload: bytes.Repeat([]byte{0, 1, 0xff, '\''}, outbox.MaxPayload/4),
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", TraceState: "a=1",
	}
	want := []outbox.Message{
		{Topic: "t"},
		{Topic: "a'b\"; --", Key: "日本語 ☃", Payload: []byte{0}},
		long,
		{Topic: "t", Key: "k", Headers: map[string]string{"a": ""}, Payload: []byte(`{"json": true}`)},
	}
	began := time.Now()
	w.publish(want...)
	rows := w.reader(claim(1)).drain()
	w.same("messages", len(rows), len(want))
	for i, row := range rows {
		m := want[i]
		if row.Key != m.Key || row.Topic != m.Topic || row.Type != m.Type || !bytes.Equal(row.Payload, m.Payload) || !maps.Equal(row.Headers, m.Headers) ||
			row.TraceParent != m.TraceParent || row.TraceState != m.TraceState {
			w.Errorf("message %d came back as another one", i)
		}
		if m.ID != uuid.Nil && row.ID != m.ID || row.ID == uuid.Nil {
			w.Errorf("message %d has ID %v, was published with %v", i, row.ID, m.ID)
		}
		if m.Key != "" && row.Shard != outbox.ShardOf(m.Key) || row.Shard < 0 || row.Shard >= outbox.Shards {
			w.Errorf("message %d is in shard %d", i, row.Shard)
		}
		if i > 0 && row.Seq <= rows[i-1].Seq {
			w.Errorf("message %d is at %d, after %d", i, row.Seq, rows[i-1].Seq)
		}
		if age := row.CreatedAt.Sub(began).Abs(); age > time.Hour {
			w.Errorf("message %d was created %v away from now", i, age)
		}
	}
}

// openTransaction leaves a transaction open while others commit.
func openTransaction(w *suite) {
	r := w.reader(claim(1))
	if !w.Concurrent {
		// Nobody else can commit meanwhile, but messages committed before must be read.
		w.send("k:before")
		tx := w.begin()
		w.ok(tx.Publish(w.ctx, msg("slow:1")))
		w.same("beside an open transaction", texts(r.page(full).Rows), []string{"k:before"})
		w.ok(tx.Rollback(w.ctx))
		return
	}
	tx := w.begin()
	w.ok(tx.Publish(w.ctx, msg("slow:1")))
	var want, got []string
	for i := range 5 {
		w.send(fmt.Sprint("fast:", i))
		want = append(want, fmt.Sprint("fast:", i))
	}
	got = texts(r.drain())
	w.same("beside an open transaction", got, want)
	w.ok(tx.Commit(w.ctx))
	w.same("when it has committed", texts(r.drain()), []string{"slow:1"})
}
