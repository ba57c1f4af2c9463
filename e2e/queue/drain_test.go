package queue

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/blob"
	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/queue/worker"
	objectstore "github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/sqlite"
)

func TestMain(m *testing.M) {
	blob.Main(after{m})
}

// after runs the tests and then cleans up.
type after struct{ *testing.M }

// Run runs the tests.
func (a after) Run() int {
	defer drill.Cleanup()
	code := a.M.Run()
	if err := drill.WriteMeasurements(filepath.Join("..", "..", "docs", "measurements.md"), "queue drills"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// place is an object store with what nodes and the test need to reach it.
type place struct {
	url    string
	env    []string // that are needed to reach it
	bucket objectstore.Bucket
}

// buckets open one object store each.
var buckets = map[string]func(t *testing.T) place{
	"directory": func(t *testing.T) place {
		path := t.TempDir()
		b, err := dir.Open(dir.Config{Path: filepath.Join(path, "latency")})
		if err != nil {
			t.Fatal(err)
		}
		return place{url: "file://" + filepath.Join(path, "objects"), bucket: b}
	},
	"memory": func(t *testing.T) place { return served(t, blob.Memory) },
	"s3":     func(t *testing.T) place { return served(t, blob.Versity) },
	"gcs":    func(t *testing.T) place { return served(t, blob.FakeGCS) },
}

func served(t *testing.T, kind blob.Kind) place {
	s := blob.Start(t, kind)
	return place{url: s.URL("queues"), env: s.Credentials(), bucket: s.Open(t, "latency")}
}

// latency returns the median duration of a write.
func (p place) latency(t *testing.T) time.Duration {
	var took []time.Duration
	for i := range 51 {
		began := time.Now()
		if _, err := p.bucket.Create(t.Context(), fmt.Sprintf("key-%02d", i), make([]byte, 200)); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// TestDrillDrain submits many jobs, and two workers work them off while the broker's node is killed again
// and again. Every acknowledged job must be completed exactly once.
func TestDrillDrain(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		t.Run(name, func(t *testing.T) {
			drill.ParallelUnlessMeasured(t)
			drain(t, name)
		})
	}
}

func drain(t *testing.T, name string) {
	jobs, kills := 10_000, 2
	if drill.Full() {
		jobs, kills = 100_000, 5
	}
	c := cluster(t, buckets[name](t))
	for _, name := range []string{"a", "b", "c"} {
		c.Start(name)
	}
	q := reach(t, c)
	d := &record{executed: map[string]int{}, completed: map[string]int{}, unheard: map[string]bool{}, requested: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for i := range 2 {
		w, err := worker.New(q, worker.Config{Name: fmt.Sprintf("worker-%d", i), Concurrency: 200, Visibility: 5 * time.Second, Hooks: worker.Hooks{
			OnCompleted: func(j queue.Info, _ time.Duration) { d.add(d.completed, j.ID) },
			OnLost:      func(j queue.Info, _ error) { d.lost(j.ID) },
		}})
		if err != nil {
			t.Fatal(err)
		}
		worker.Handle(w, "drill:work", func(_ context.Context, j worker.Job[int]) error {
			d.add(d.executed, j.ID)
			return nil
		})
		all.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	began := time.Now()
	var submitted []string
	sent := make(chan struct{})
	go func() { defer close(sent); submitted = submit(ctx, t, q, jobs) }()
	for i := range kills {
		at := (i + 1) * jobs / (kills + 1)
		c.Until(10*time.Minute, "some jobs are completed", func() bool { return d.done() >= at })
		if n := broker(c); n != nil {
			n.Kill()
			c.Start(fmt.Sprintf("r%d", i))
		}
	}
	<-sent
	c.Until(10*time.Minute, "all jobs are completed", func() bool {
		return d.done()+len(d.open()) >= jobs && empty(ctx, q)
	})
	took := time.Since(began)
	d.hear(ctx, t, q)
	d.check(t, name, submitted, took, kills)
}

// empty reports whether the queue has no job left.
func empty(ctx context.Context, q *client.Client) bool {
	s, err := q.Stats(ctx, queue.DefaultQueue)
	return err == nil && s.Waiting+s.Delayed+s.Active+s.Dead == 0
}

// cluster prepares nodes on a SQLite file and an object store.
func cluster(t *testing.T, objects place) *drill.Cluster {
	path := filepath.Join(t.TempDir(), "emitd.db")
	store, err := sqlite.Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	c := drill.New(t, "sqlite://"+path, store)
	c.Instances, c.Args, c.Env = 0, []string{"--objects", objects.url}, objects.env
	return c
}

// reach makes a client of the live nodes. It also tries killed nodes, as a real client with their
// addresses would.
func reach(t *testing.T, c *drill.Cluster) *client.Client {
	q, err := client.New(client.Config{Locator: client.NewLocator(client.LocatorConfig{Cluster: c.Store}), RetryFor: 2 * time.Minute, Backoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

// broker returns the live node that serves the default queue.
func broker(c *drill.Cluster) *drill.Node {
	address, _, err := client.NewLocator(client.LocatorConfig{Cluster: c.Store}).Broker(context.Background(), queue.DefaultQueue, 0)
	if err != nil || address == "" {
		return nil
	}
	for _, n := range c.Nodes() {
		if n.Alive() && n.Address() == address {
			return n
		}
	}
	return nil
}

// submit submits jobs in calls of a hundred, from several clients.
func submit(ctx context.Context, t *testing.T, q queue.Producer, jobs int) []string {
	const call, clients = 100, 8
	var mu sync.Mutex
	var ids []string
	var all sync.WaitGroup
	next := make(chan int, jobs/call)
	for i := 0; i < jobs; i += call {
		next <- i
	}
	close(next)
	for range clients {
		all.Go(func() {
			for first := range next {
				batch := make([]queue.Job, call)
				for i := range batch {
					batch[i] = queue.Job{ID: fmt.Sprintf("job-%07d", first+i), Type: "drill:work", Payload: fmt.Appendf(nil, "%d", first+i)}
				}
				receipts, err := q.Enqueue(ctx, queue.DefaultQueue, batch)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, r := range receipts {
					ids = append(ids, r.ID)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return ids
}

// record counts the executions and completions of each job.
type record struct {
	mu                  sync.Mutex
	executed, completed map[string]int
	// unheard holds jobs whose result a worker could not report. A killed broker may have stored the
	// completion without answering, and the next attempt came too late.
	unheard   map[string]bool
	requested map[string]bool // those of them that are completed according to the queue
}

func (r *record) lost(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unheard[id] = true
}

// open returns the jobs that may have been completed without an answer to the worker.
func (r *record) open() (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.unheard {
		if r.completed[id] == 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// hear asks the queue, which is empty by then, how those jobs ended.
func (r *record) hear(ctx context.Context, t *testing.T, q *client.Client) {
	for _, id := range r.open() {
		info, _, err := q.Get(ctx, queue.DefaultQueue, id)
		if err != nil || info.State != queue.Completed {
			t.Errorf("job %s ended unheard, and not as completed: %+v, %v", id, info, err)
			continue
		}
		r.request(id)
	}
}

// ask records a job that is completed according to the queue. A worker may still report it.
func (r *record) request(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requested[id] = true
}

func (r *record) add(to map[string]int, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	to[id]++
}

func (r *record) done() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.completed)
}

func (r *record) check(t *testing.T, name string, submitted []string, took time.Duration, kills int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.requested {
		r.completed[id] = max(r.completed[id], 1)
	}
	lost, twice, again := 0, 0, 0
	for _, id := range submitted {
		switch n := r.completed[id]; {
		case n == 0:
			lost++
		case n > 1:
			twice++
		}
		again += max(r.executed[id]-1, 0)
	}
	slices.Sort(submitted)
	if n := len(slices.Compact(submitted)); n != len(r.completed) {
		t.Errorf("%d jobs were acknowledged, %d were completed", n, len(r.completed))
	}
	what := fmt.Sprintf("queue on %s, %d jobs, broker killed %d times", name, len(submitted), kills)
	drill.Never(t, what+", lost", lost)
	drill.Never(t, what+", completed twice", twice)
	drill.Count(t, what+", executed again", again, "counted")
	t.Logf("%s: %.0f jobs/s", what, float64(len(submitted))/took.Seconds())
}
