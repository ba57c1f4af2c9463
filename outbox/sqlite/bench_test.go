package sqlite

import (
	"context"
	"fmt"
	"testing"

	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/outbox"
)

// payload is that of a small event.
var payload = make([]byte, 200)

// BenchmarkRead reads and advances in pages of 1,000 as a relay does, without a sink.
func BenchmarkRead(b *testing.B) {
	for _, backlog := range []int{20_000, 400_000} {
		b.Run(fmt.Sprint("backlog=", backlog), func(b *testing.B) {
			w := newWorld(b, Config{Sync: SyncNormal})
			fill(b, w, backlog)
			b.ResetTimer()
			before := testproc.ProcessTime()
			for n, epoch := 0, int64(1); n < b.N; epoch++ {
				c := w.claim(b, fmt.Sprint("s", epoch), 1)
				for n < b.N {
					p, err := c.Next(b.Context(), outbox.Limit{Rows: 1000})
					ok(b, err)
					if len(p.Rows) == 0 {
						break
					}
					ok(b, c.Advance(b.Context(), p.Mark, nil))
					n += len(p.Rows)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			b.ReportMetric(float64((testproc.ProcessTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/message")
		})
	}
}

func fill(b *testing.B, w *world, n int) {
	b.Helper()
	batch := make([]outbox.Message, 2000)
	for i := range batch {
		batch[i] = outbox.Message{Topic: "orders", Type: "order.placed", Key: fmt.Sprint("key-", i%500), Payload: payload}
	}
	for range n / len(batch) {
		w.publish(b, batch...)
	}
}

// BenchmarkPublish publishes n messages in each transaction.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{1, 10, 500} {
		for _, sync := range []string{"full", "normal"} {
			b.Run(fmt.Sprintf("tx=%d/%s", n, sync), func(b *testing.B) {
				w := newWorld(b, Config{})
				w.db.SetMaxOpenConns(1)
				_, err := w.db.Exec("PRAGMA synchronous = " + sync)
				ok(b, err)
				batch := make([]outbox.Message, n)
				for i := range batch {
					batch[i] = outbox.Message{Topic: "orders", Type: "order.placed", Key: fmt.Sprint("key-", i), Payload: payload}
				}
				b.ResetTimer()
				for i := 0; i < b.N; i += n {
					ok(b, w.pub.InTx(context.Background(), w.db, func(tx *Tx) error { return w.pub.Publish(b.Context(), tx, batch...) }))
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			})
		}
	}
}

// BenchmarkIdle measures a poll that finds nothing.
func BenchmarkIdle(b *testing.B) {
	w := newWorld(b, Config{})
	fill(b, w, 20_000)
	c := w.claim(b, "s", 1)
	drain(b, c)
	b.ResetTimer()
	for b.Loop() {
		_, err := c.Next(b.Context(), outbox.Limit{})
		ok(b, err)
	}
}
