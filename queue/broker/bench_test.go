package broker

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob/dir"
)

// BenchmarkBroker measures clients in the same process, with 60 ms of storage latency. Each client
// does one thing at a time: whole cycles (submit, claim, complete: two waits for storage), or
// submissions only. jobs is the number of jobs per call, waiting the number of other jobs in the
// queue.
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

// filled returns a broker with this many jobs waiting. Its bucket has latency from now on.
func filled(b *testing.B, waiting int) (*node, *mem.Bucket) {
	var slow atomic.Bool
	bucket := mem.New(mem.Config{Latency: func(mem.Call) time.Duration {
		if slow.Load() {
			return 60 * time.Millisecond
		}
		return 0
	}})
	w := newWorld(b, bucket)
	w.declare(queue.Settings{})
	n := w.node("n1")
	n.serve(queue.DefaultQueue, 0)
	payload := make([]byte, 100)
	for i := 0; i < waiting; i += queue.MaxCall {
		batch := make([]queue.Job, min(queue.MaxCall, waiting-i))
		for j := range batch {
			batch[j] = queue.Job{Payload: payload, Type: "waiting"}
		}
		n.enqueue(batch...)
	}
	slow.Store(true)
	return n, bucket
}

// drive lets clients work for a while. It returns how many jobs they did, and the elapsed and
// processor time.
func drive(b *testing.B, n *node, clients, jobs int, whole bool, during time.Duration) (done float64, took, used time.Duration) {
	var count atomic.Int64
	var callers sync.WaitGroup
	before, begun := testproc.ProcessTime(), time.Now()
	payload := make([]byte, 100)
	for range clients {
		callers.Go(func() {
			for time.Since(begun) < during {
				count.Add(int64(cycle(b, n, payload, jobs, whole)))
			}
		})
	}
	callers.Wait()
	return float64(count.Load()), time.Since(begun), testproc.ProcessTime() - before
}

func bench(b *testing.B, whole bool, clients, jobs, waiting int) {
	n, bucket := filled(b, waiting)
	index := float64(n.stats().IndexBytes)
	before := bucket.Stats()[mem.Create]
	var total float64
	var took, used time.Duration
	for b.Loop() { // once: it measures its own time
		total, took, used = drive(b, n, clients, jobs, whole, benchTime)
	}
	after := bucket.Stats()[mem.Create]
	if waiting > 0 {
		b.ReportMetric(index/float64(waiting), "B/waiting")
	}
	b.ReportMetric(total/took.Seconds(), "jobs/s")
	b.ReportMetric(used.Seconds()*1e6/total, "cpu-µs/job")
	b.ReportMetric(float64(after.Calls-before.Calls)/total*1000, "PUT/1000jobs")
	b.ReportMetric(float64(after.BytesIn-before.BytesIn)/total, "B/job")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkWaiting compares whole cycles on brokers with 10,000, 100,000 and a million jobs
// waiting. It alternates between them, so that all run under the same conditions. It reports jobs
// per second and processor time per job, relative to the first.
func BenchmarkWaiting(b *testing.B) {
	for _, c := range []struct{ clients, jobs int }{{2048, 1}, {512, 100}} {
		b.Run(fmt.Sprintf("clients=%d/jobs=%d", c.clients, c.jobs), func(b *testing.B) {
			sizes := []int{10_000, 100_000, 1_000_000}
			var nodes [3]*node
			for i, waiting := range sizes {
				nodes[i], _ = filled(b, waiting)
			}
			var rate, cost [3]float64
			for b.Loop() {
				for i := range nodes {
					done, took, used := drive(b, nodes[i], c.clients, c.jobs, true, benchTime/2)
					rate[i] += done / took.Seconds()
					cost[i] += used.Seconds() / done
				}
			}
			for i, waiting := range sizes[1:] {
				b.ReportMetric(rate[i+1]/rate[0], fmt.Sprintf("x-jobs/s-%dk", waiting/1000))
				b.ReportMetric(cost[i+1]/cost[0], fmt.Sprintf("x-cpu-%dk", waiting/1000))
			}
			b.ReportMetric(rate[0]/float64(b.N), "jobs/s-10k")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// cycle submits, claims and completes jobs, and returns how many.
func cycle(b *testing.B, n *node, payload []byte, jobs int, whole bool) int {
	batch := make([]queue.Job, jobs)
	for i := range batch {
		batch[i] = queue.Job{ID: uuid.NewString(), Payload: payload, Type: "busy"}
	}
	if _, err := n.Enqueue(n.w.ctx, queue.DefaultQueue, batch); err != nil {
		b.Error(err)
		return 0
	}
	if !whole {
		return jobs
	}
	return workOff(b, n, queue.ClaimRequest{Worker: "w", Max: jobs, Types: []string{"busy"}, Wait: time.Second})
}

// workOff claims and completes jobs, and returns how many.
func workOff(b *testing.B, n *node, req queue.ClaimRequest) int {
	claims, err := n.Claim(n.w.ctx, queue.DefaultQueue, req)
	if err != nil {
		b.Error(err)
		return 0
	}
	all := make([]queue.Settlement, len(claims))
	for i, c := range claims {
		all[i] = queue.Settlement{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token}
	}
	out, err := n.Settle(n.w.ctx, queue.DefaultQueue, all)
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

// BenchmarkTakeover measures takeovers on a directory with a million jobs waiting and a full
// deduplication window, all submitted with keys. It measures the time from the start of a run until
// it serves, after a kill. It also measures how long no broker serves when one drains: the
// checkpoint is written before, while it serves; drain is the whole time.
func BenchmarkTakeover(b *testing.B) {
	bucket, err := dir.Open(dir.Config{Path: b.TempDir(), NoSync: true})
	if err != nil {
		b.Fatal(err)
	}
	w := newWorld(b, bucket)
	w.declare(queue.Settings{})
	n := w.node("n")
	r := n.serve(queue.DefaultQueue, 0)
	payload := make([]byte, 100)
	keys := 0
	fill := func(jobs int) {
		for range jobs / queue.MaxCall {
			batch := make([]queue.Job, queue.MaxCall)
			for i := range batch {
				_, _ = rand.Read(payload[:50])
				batch[i] = queue.Job{Key: fmt.Sprint("order-", keys), Payload: slices.Clone(payload)}
				keys++
			}
			n.enqueue(batch...)
		}
	}
	for range 1_000_000 / queue.MaxCall { // the default size of the deduplication window
		fill(queue.MaxCall)
		if done := workOff(b, n, queue.ClaimRequest{Worker: "w", Max: queue.MaxCall}); done != queue.MaxCall {
			b.Fatalf("%d of %d jobs were completed", done, queue.MaxCall)
		}
	}
	fill(1_000_000)
	if ids := n.stats().DedupIDs; ids != 1_000_000 {
		b.Fatalf("%d IDs are in the dedup window", ids)
	}
	var kill, used, drain, gap []time.Duration
	for b.Loop() {
		r.kill()
		begun, before := time.Now(), testproc.ProcessTime()
		r = n.serve(queue.DefaultQueue, 0)
		kill, used = append(kill, time.Since(begun)), append(used, testproc.ProcessTime()-before)
		fill(100_000) // a log to replay
		begun = time.Now()
		r.a.BeginDrain()
		last := begun
		for n.shard(queue.DefaultQueue, 0) != nil { // it continues to serve
			last = time.Now()
			runtime.Gosched()
		}
		<-r.done
		r = n.serve(queue.DefaultQueue, 0)
		gap, drain = append(gap, time.Since(last)), append(drain, time.Since(begun))
	}
	for name, all := range map[string][]time.Duration{"kill": kill, "kill-cpu": used, "drain": drain, "gap": gap} {
		b.ReportMetric(slices.Min(all).Seconds(), "s/"+name)
		b.ReportMetric(slices.Max(all).Seconds(), "most-s/"+name)
	}
	if st := n.stats(); st.Waiting != int64(1_000_000+100_000*len(kill)) {
		b.Fatalf("%+v", st)
	}
}
