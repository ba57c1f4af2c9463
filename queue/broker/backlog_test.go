package broker

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/garbage"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/dir"
)

// BenchmarkBacklog measures a shard on a directory with many waiting jobs of 1 KiB that do not compress:
// submitting them, in calls of 1,000 jobs by 4 clients; the memory of the process, as the heap that is in
// use and as the most that the system has seen; the bytes written, as a multiple of the payloads; a takeover
// after a kill; and working off jobs of the backlog. EMITD_BACKLOG sets the number of jobs.
func BenchmarkBacklog(b *testing.B) {
	jobs := 1_000_000
	if n, err := strconv.Atoi(os.Getenv("EMITD_BACKLOG")); err == nil {
		jobs = n
	}
	path := os.Getenv("EMITD_BACKLOG_DIR")
	if path == "" {
		path = b.TempDir()
	}
	bucket, err := dir.Open(dir.Config{Path: path, NoSync: true})
	if err != nil {
		b.Fatal(err)
	}
	garbage.Limit(garbage.DefaultLimit) // as the program does
	for b.Loop() {
		backlog(b, bucket, jobs)
	}
	b.ReportMetric(0, "ns/op")
}

const backlogPayload = 1024

func backlog(b *testing.B, bucket blob.Bucket, jobs int) {
	counted := &countingBucket{Bucket: bucket}
	w := newWorld(b, counted)
	w.declare(queue.Settings{})
	n := w.node("n1")
	r := n.serve(queue.DefaultQueue, 0)
	begun, before := time.Now(), testproc.ProcessTime()
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for range jobs / 4 / queue.MaxCall {
				noise := make([]byte, queue.MaxCall*backlogPayload)
				_, _ = rand.Read(noise)
				batch := make([]queue.Job, queue.MaxCall)
				for i := range batch {
					batch[i].Payload = noise[i*backlogPayload:][:backlogPayload]
				}
				for {
					_, err := n.Enqueue(w.ctx, queue.DefaultQueue, batch)
					if err == nil {
						break
					}
					if queue.TagOf(err) != queue.QueueFull || !strings.Contains(err.Error(), "being written") {
						b.Errorf("client %d: %v", client, err)
						return
					}
					runtime.Gosched()
				}
			}
		})
	}
	clients.Wait()
	took, used := time.Since(begun), testproc.ProcessTime()-before
	st := n.stats()
	b.ReportMetric(float64(st.Waiting)/took.Seconds(), "jobs/s-submitted")
	b.ReportMetric(float64(used.Microseconds())/float64(st.Waiting), "cpu-µs/job")
	b.ReportMetric(float64(counted.bytes.Load())/float64(st.Waiting*backlogPayload), "written/submitted")
	b.ReportMetric(float64(st.IndexBytes+st.PayloadBytes)/(1<<20), "MiB-counted")
	b.ReportMetric(float64(peakRSS())/(1<<20), "MiB-peak")
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MiB-heap")
	r.kill()
	runtime.GC()
	next := w.node("n2")
	begun = time.Now()
	r = next.serve(queue.DefaultQueue, 0)
	b.ReportMetric(time.Since(begun).Seconds(), "s/takeover")
	b.ReportMetric(float64(peakRSS())/(1<<20), "MiB-peak-takeover")
	if got := next.stats().Waiting; got != st.Waiting || got < int64(jobs)*99/100 {
		b.Fatalf("%d jobs of %d", got, st.Waiting)
	}
	begun = time.Now()
	done := 0
	for done < min(jobs/2, 100_000) {
		done += workOff(b, next, queue.ClaimRequest{Worker: "w", Max: queue.MaxCall})
	}
	b.ReportMetric(float64(done)/time.Since(begun).Seconds(), "jobs/s-worked-off")
	r.kill()
}

// peakRSS returns the most memory that the process had, in bytes; 0 if the system does not say.
func peakRSS() (bytes int64) {
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &bytes); err == nil {
			return bytes << 10
		}
	}
	return 0
}

// countingBucket counts the bytes that are written.
type countingBucket struct {
	blob.Bucket
	bytes atomic.Int64
}

func (c *countingBucket) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	c.bytes.Add(int64(len(data)))
	return c.Bucket.Create(ctx, key, data)
}

func (c *countingBucket) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	c.bytes.Add(int64(len(data)))
	return c.Bucket.Replace(ctx, key, data, old)
}
