package queue

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/blob/mem"
)

// BenchmarkBroker measures in process, with 60 ms of storage latency, clients that do one thing at a
// time: whole cycles (submit, claim, complete: two waits for storage), or submissions alone. jobs is
// how many a call has, waiting how many others wait in the queue.
func BenchmarkBroker(b *testing.B) {
	for _, work := range []string{"submit", "cycle"} {
		for _, c := range []struct{ clients, jobs int }{{2048, 1}, {512, 100}} {
			for _, waiting := range []int{0, 10_000, 100_000, 1_000_000} {
				b.Run(fmt.Sprintf("%s/clients=%d/jobs=%d/waiting=%d", work, c.clients, c.jobs, waiting), func(b *testing.B) {
					bench(b, work == "cycle", c.clients, c.jobs, waiting)
				})
			}
		}
	}
}

const benchTime = 3 * time.Second

func bench(b *testing.B, whole bool, clients, jobs, waiting int) {
	var slow atomic.Bool
	bucket := mem.New(mem.Config{Latency: func(mem.Call) time.Duration {
		if slow.Load() {
			return 60 * time.Millisecond
		}
		return 0
	}})
	w := newWorld(b, bucket)
	w.declare(Settings{})
	n := w.node("n1")
	n.serve(DefaultQueue, 0)
	payload := make([]byte, 100)
	for i := 0; i < waiting; i += MaxCall {
		batch := make([]Job, min(MaxCall, waiting-i))
		for j := range batch {
			batch[j] = Job{Payload: payload, Type: "waiting"}
		}
		n.enqueue(batch...)
	}
	index := float64(n.stat().IndexBytes)
	slow.Store(true)
	before := bucket.Stats()[mem.Create]
	var done atomic.Int64
	var callers sync.WaitGroup
	cpuBefore := cpu()
	begun := time.Now()
	for b.Loop() { // once: it takes its time by itself
		for range clients {
			callers.Go(func() {
				for time.Since(begun) < benchTime {
					done.Add(int64(cycle(b, n, payload, jobs, whole)))
				}
			})
		}
		callers.Wait()
	}
	took := time.Since(begun)
	used := cpu() - cpuBefore
	after := bucket.Stats()[mem.Create]
	total := float64(done.Load())
	if waiting > 0 {
		b.ReportMetric(index/float64(waiting), "B/waiting")
	}
	b.ReportMetric(total/took.Seconds(), "jobs/s")
	b.ReportMetric(used.Seconds()*1e6/total, "cpu-µs/job")
	b.ReportMetric(float64(after.Calls-before.Calls)/total*1000, "PUT/1000jobs")
	b.ReportMetric(float64(after.BytesIn-before.BytesIn)/total, "B/job")
	b.ReportMetric(0, "ns/op")
}

// cycle submits, claims and completes jobs, and returns how many.
func cycle(b *testing.B, n *node, payload []byte, jobs int, whole bool) int {
	batch := make([]Job, jobs)
	for i := range batch {
		batch[i] = Job{ID: uuid.NewString(), Payload: payload, Type: "busy"}
	}
	if _, err := n.Enqueue(n.w.ctx, DefaultQueue, batch); err != nil {
		b.Error(err)
		return 0
	}
	if !whole {
		return jobs
	}
	claims, err := n.Claim(n.w.ctx, DefaultQueue, ClaimRequest{Worker: "w", Max: jobs, Types: []string{"busy"}, Wait: time.Second})
	if err != nil {
		b.Error(err)
		return 0
	}
	all := make([]Settlement, len(claims))
	for i, c := range claims {
		all[i] = Settlement{Verb: Complete, ID: c.Job.ID, Token: c.Token}
	}
	out, err := n.Settle(n.w.ctx, DefaultQueue, all)
	if err != nil {
		b.Error(err)
		return 0
	}
	for _, o := range out {
		if o.Err != nil {
			b.Error(o.Err)
		}
	}
	return len(claims)
}

// cpu is what this process has used: on a busy machine it says more than the clock.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTakeover measures, on a directory, from the start of a run until it serves, with a million
// jobs waiting; after a kill, and after a drain.
func BenchmarkTakeover(b *testing.B) {
	bucket, err := dir.Open(dir.Config{Path: b.TempDir(), NoSync: true})
	if err != nil {
		b.Fatal(err)
	}
	w := newWorld(b, bucket)
	w.declare(Settings{})
	n := w.node("n")
	r := n.serve(DefaultQueue, 0)
	payload := make([]byte, 100)
	for range 1000 {
		batch := make([]Job, MaxCall)
		for i := range batch {
			batch[i].Payload = payload
		}
		n.enqueue(batch...)
	}
	for b.Loop() {
		r.kill()
		begun := time.Now()
		r = n.serve(DefaultQueue, 0)
		b.ReportMetric(time.Since(begun).Seconds(), "s/kill")
		begun = time.Now()
		r.drain(b)
		r = n.serve(DefaultQueue, 0)
		b.ReportMetric(time.Since(begun).Seconds(), "s/drain")
	}
	if st := n.stat(); st.Waiting != 1_000_000 {
		b.Fatalf("%+v", st)
	}
}
