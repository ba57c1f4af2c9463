package journal_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/storage/blob/dir"
)

// desk is a minimal broker: one goroutine that owns the log and answers when a slot is durable.
type desk struct {
	log      *journal.Log
	requests chan query
}

type query struct {
	records [][]byte
	done    chan error
}

type waiter struct {
	slot uint64
	done chan error
}

func (d *desk) run(stop <-chan struct{}) {
	var waiters []waiter
	for {
		select {
		case a := <-d.requests:
			slot, err := d.log.Append(time.Now(), a.records...)
			if err != nil {
				a.done <- err
				continue
			}
			waiters = append(waiters, waiter{slot, a.done})
		case durable := <-d.log.Acks():
			n := 0
			for ; n < len(waiters) && waiters[n].slot <= durable; n++ {
				waiters[n].done <- nil
			}
			waiters = waiters[n:]
		case <-stop:
			return
		}
	}
}

// BenchmarkAppend: 2,048 clients at 60 ms per request, records of 100 bytes.
func BenchmarkAppend(b *testing.B) {
	for _, perCall := range []int{1, 100} {
		b.Run(fmt.Sprintf("%d per call", perCall), func(b *testing.B) { benchmarkAppend(b, perCall) })
	}
}

// randomRecords returns records of 100 bytes each, half of them random, like jobs with a name and
// an ID.
func randomRecords(seed, n int) [][]byte {
	rng := rand.New(rand.NewPCG(1, uint64(seed)))
	records := make([][]byte, n)
	for i := range records {
		records[i] = fmt.Appendf(nil, `{"type":"email:send","to":"%016x@example.com","template":"welcome","id":"%016x%016x"}`, rng.Uint64(), rng.Uint64(), rng.Uint64())[:100]
	}
	return records
}

func benchmarkAppend(b *testing.B, perCall int) {
	bucket := slowBucket()
	log, err := journal.Open(b.Context(), config(bucket), &book{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = log.Close(context.WithoutCancel(b.Context())) }()
	d := &desk{log: log, requests: make(chan query, 256)}
	stop := make(chan struct{})
	var broker, clients sync.WaitGroup
	broker.Go(func() { d.run(stop) })
	begin, until := time.Now(), time.Now().Add(time.Duration(b.N)*time.Millisecond)
	var mu sync.Mutex
	calls := 0
	for client := range 2048 {
		records := randomRecords(client, perCall)
		clients.Go(func() {
			done, n := make(chan error, 1), 0
			for time.Now().Before(until) {
				d.requests <- query{records, done}
				if err := <-done; err != nil {
					b.Error(err)
					return
				}
				n++
			}
			mu.Lock()
			calls += n
			mu.Unlock()
		})
	}
	clients.Wait()
	took := time.Since(begin)
	close(stop)
	broker.Wait()
	s := log.Stats()
	b.ReportMetric(float64(calls*perCall)/took.Seconds(), "records/s")
	b.ReportMetric(float64(s.Segments)/took.Seconds(), "writes/s")
	b.ReportMetric(float64(s.SegmentBytes)/float64(s.Records), "B/record")
	b.ReportMetric(0, "ns/op")
}

// sink is a state that costs nothing.
type sink struct{ chunks, records int }

func (s *sink) Reset() { *s = sink{} }

func (s *sink) Restore([]byte) error {
	s.chunks++
	return nil
}

func (s *sink) Replay(_ uint64, _ time.Time, records iter.Seq[[]byte]) error {
	for range records {
		s.records++
	}
	return nil
}

// BenchmarkOpen takes over the most that a broker with a million waiting jobs leaves in a
// directory: a checkpoint of 53 MB and 64 MiB of log.
func BenchmarkOpen(b *testing.B) {
	bucket, err := dir.Open(dir.Config{Path: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	cfg := config(bucket)
	cfg.MinGap = time.Microsecond
	log, err := journal.Open(b.Context(), cfg, &sink{})
	if err != nil {
		b.Fatal(err)
	}
	c, _, err := log.Checkpoint()
	if err != nil {
		b.Fatal(err)
	}
	state := randomRecords(1, 10_000)
	for range 53 {
		if err := c.Write(bytes.Join(state, nil)); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.Commit(nil); err != nil {
		b.Fatal(err)
	}
	for range 64 {
		for range 40 { // 26 KB of records at a time
			if _, err := log.Append(time.Now(), state[:260]...); err != nil {
				b.Fatal(err)
			}
		}
		for log.Durable() < log.NewestSlot() {
			<-log.Acks()
		}
	}
	<-c.Done()
	if err := log.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		cfg.Generation++
		s := &sink{}
		log, err := journal.Open(b.Context(), cfg, s)
		if err != nil || s.chunks != 53 || s.records != 64*40*260 {
			b.Fatalf("%+v, %v", s, err)
		}
		if err := log.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
