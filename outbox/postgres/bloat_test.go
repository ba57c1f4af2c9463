package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/outbox"
)

// bloatMessages is how many messages BenchmarkBloat has; EMITD_BENCH_MESSAGES changes it.
func bloatMessages(b *testing.B) int {
	text := os.Getenv("EMITD_BENCH_MESSAGES")
	if text == "" {
		return 200_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1000 {
		b.Fatalf("EMITD_BENCH_MESSAGES is %q, want a number of messages from 1,000 on", text)
	}
	return n
}

// BenchmarkBloat publishes messages, 100 a transaction, while they are delivered and removed: by the outbox, with a
// relay and the sweeper, without retention and with partitions of a second, and by a plain table whose poller deletes what it has sent. It
// measures what that writes to the server's log, and how large the database is at most, at the end, and after a VACUUM.
// Autovacuum is on.
func BenchmarkBloat(b *testing.B) {
	for name, carry := range map[string]func(b *testing.B, w *world, n int, size func() float64){"outbox": carryByOutbox, "plain": carryByPoller} {
		b.Run(name, func(b *testing.B) {
			n := bloatMessages(b)
			_, w := bench(b, Config{Retention: -1, age: time.Second}, map[string]string{"autovacuum": "on", "autovacuum_naptime": "1s"})
			w.exec("create table plain (id bigint generated always as identity primary key, dedup uuid not null, key text not null, payload bytea not null)")
			empty := value[int64](w, "select pg_database_size(current_database())")
			largest := 0.0
			size := func() float64 {
				now := float64(value[int64](w, "select pg_database_size(current_database())")-empty) / 1e6
				largest = max(largest, now)
				return now
			}
			began := value[string](w, "select pg_current_wal_insert_lsn()::text")
			carry(b, w, n, size)
			written := value[int64](w, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::pg_lsn)::bigint", began)
			end := size()
			w.exec("vacuum")
			b.ReportMetric(float64(written)/float64(n), "WAL-B/message")
			b.ReportMetric(largest, "largest-MB")
			b.ReportMetric(end, "end-MB")
			b.ReportMetric(size(), "vacuumed-MB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// inBatches calls publish for n messages, 100 at a time, and every n/50 messages the function each.
func inBatches(n int, publish func(count int), each func()) {
	for i := 0; i < n; i += 100 {
		publish(min(100, n-i))
		if i/100%max(n/5000, 1) == 0 {
			each()
		}
	}
}

func carryByOutbox(b *testing.B, w *world, n int, size func() float64) {
	took := make([]atomic.Bool, n) // by the message's number, because an interrupted relay delivers some again
	var left atomic.Int64
	left.Store(int64(n))
	all := make(chan struct{})
	w.relay(b, outbox.Config{Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		for i := range d.Rows {
			number := binary.BigEndian.Uint64(d.Rows[i].ID[8:])
			if number < uint64(n) && !took[number].Swap(true) && left.Add(-1) == 0 {
				close(all)
			}
		}
		return nil
	})})
	// Without retention, messages from before the first claim may be removed: nobody has subscribed to them.
	eventually(b, "the relay has claimed", func() bool { return value[int](w, "select count(*) from ~outbox_cursor") > 0 })
	i := 0
	inBatches(n, func(count int) {
		batch := make([]outbox.Message, count)
		for j := range batch {
			m := outbox.Message{ID: uuid.New(), Topic: "orders", Type: "order.placed", Key: fmt.Sprint("key-", i%500), Payload: payload}
			binary.BigEndian.PutUint64(m.ID[8:], uint64(i))
			batch[j] = m
			i++
		}
		w.publish(batch...)
	}, func() {
		w.sweepAll()
		size()
	})
	select {
	case <-all:
	case <-time.After(5 * time.Minute): // the relay keeps up with the publisher
		first := 0
		for first < n && took[first].Load() {
			first++
		}
		b.Fatalf("%d of %d messages were not delivered; the first is number %d", left.Load(), n, first)
	}
	// What is removed last waits for positions that the relay stores with newer messages.
	for range 1000 {
		w.publish(outbox.Message{Topic: "orders", Key: "last", Payload: payload})
		if w.sweepAll(); w.left() <= n/10 {
			return
		}
	}
	b.Errorf("%d messages are left of %d", w.left(), n)
}

func carryByPoller(b *testing.B, w *world, n int, size func() float64) {
	ctx := context.Background()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for left := n; left > 0; <-tick.C {
			err := pgx.BeginFunc(ctx, w.owner, func(tx pgx.Tx) error {
				found, err := tx.Query(ctx, "select id, dedup, key, payload from plain order by id limit 1000 for update skip locked")
				if err != nil {
					return err
				}
				var ids []int64
				for found.Next() {
					row, err := found.Values()
					if err != nil {
						return err
					}
					ids = append(ids, row[0].(int64)) //nolint:errcheck // the column's type
				}
				if found.Err() != nil {
					return found.Err()
				}
				left -= len(ids)
				_, err = tx.Exec(ctx, "delete from plain where id = any($1)", ids)
				return err
			})
			if err != nil {
				b.Errorf("poll: %v", err)
				return
			}
		}
	})
	i := 0
	inBatches(n, func(count int) {
		w.exec("insert into plain (dedup, key, payload) select gen_random_uuid(), 'key-' || ($1::int + i) % 500, $3::bytea from generate_series(1, $2::int) i", i, count, payload)
		i += count
	}, func() { size() })
}
