package queue

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/daemon/queue/client"
	"github.com/emitd/emitd/daemon/queue/worker"
	"github.com/emitd/emitd/e2e/blob"
	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/storage"
	objectstore "github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/sqlite"
)

func TestMain(m *testing.M) {
	blob.Main(after{m})
}

// after is the tests, with what is done when they have ended.
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

// place is an object store as the nodes reach it, and as the test does.
type place struct {
	url    string
	env    []string // that reaching it needs
	bucket objectstore.Bucket
}

// buckets open an object store each.
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

// latency returns what a write takes, the median of some.
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

// TestDrillDrain submits many jobs and works them off with two workers while the node with the
// broker is killed again and again: every acknowledged job is completed exactly once.
func TestDrillDrain(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		t.Run(name, func(t *testing.T) { drain(t, name) })
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
	d := &record{executed: map[string]int{}, completed: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for i := range 2 {
		w, err := worker.New(q, worker.Config{Name: fmt.Sprintf("worker-%d", i), Concurrency: 200, Visibility: 5 * time.Second, Hooks: worker.Hooks{
			OnCompleted: func(j queue.Info, _ time.Duration) { d.add(d.completed, j.ID) },
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
	c.Until(10*time.Minute, "all jobs are completed", func() bool { return d.done() >= jobs })
	took := time.Since(began)
	d.judge(t, name, submitted, took, kills)
	s, err := q.Stats(ctx, queue.DefaultQueue)
	if err != nil {
		t.Fatal(err)
	}
	if s.Waiting+s.Delayed+s.Active+s.Dead != 0 {
		t.Errorf("the queue is not empty: %+v", s)
	}
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

// reach makes a client of the nodes that live. Nodes that were killed are tried as well, as
// addresses of a real client would be.
func reach(t *testing.T, c *drill.Cluster) *client.Client {
	q, err := client.New(client.Config{Locator: locator{c.Store}, RetryFor: 2 * time.Minute, Backoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

// locator finds brokers in the cluster store.
type locator struct{ store storage.Store }

// Broker implements client.Locator.
func (l locator) Broker(ctx context.Context, _ string, _ int) (string, int64, error) {
	s, err := l.store.Snapshot(ctx)
	if err != nil {
		return "", 0, err
	}
	for _, u := range s.Units {
		if u.Unit.Daemon != "emit:queue/default" || u.State != daemon.Active {
			continue
		}
		for _, n := range s.Nodes {
			if n.Incarnation == u.Holder.Incarnation {
				return n.Address, u.Generation, nil
			}
		}
	}
	return "", 0, nil
}

// broker returns the living node that serves the default queue.
func broker(c *drill.Cluster) *drill.Node {
	address, _, err := locator{c.Store}.Broker(context.Background(), queue.DefaultQueue, 0)
	if err != nil {
		return nil
	}
	for _, n := range c.Nodes() {
		if n.Address == address && n.Alive() {
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

// record counts what happened to each job.
type record struct {
	mu                  sync.Mutex
	executed, completed map[string]int
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

func (r *record) judge(t *testing.T, name string, submitted []string, took time.Duration, kills int) {
	r.mu.Lock()
	defer r.mu.Unlock()
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
	drill.Count(t, what+", lost", lost, "0")
	drill.Count(t, what+", completed twice", twice, "0")
	t.Logf("%s: executed again %d, %.0f jobs/s", what, again, float64(len(submitted))/took.Seconds())
	drill.Note("| %s, executed again | %d | | | | counted |", what, again)
	if lost+twice > 0 {
		t.Error(strings.TrimSpace(what + ": a promise was broken"))
	}
}

// TestDrillHandOver measures for how long the queue takes no job when its broker stops cleanly,
// and when it is killed.
func TestDrillHandOver(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		t.Run(name, func(t *testing.T) { handOver(t, name) })
	}
}

func handOver(t *testing.T, name string) {
	objects := buckets[name](t)
	clean := "≤ 300 ms"
	if name == "s3" || name == "gcs" {
		l := objects.latency(t)
		clean = fmt.Sprintf("≤ 8 store latencies + 100 ms = %v", (8*l + 100*time.Millisecond).Round(time.Millisecond))
	}
	h := &handover{T: t, c: cluster(t, objects)}
	for range 3 {
		h.start()
	}
	h.q = reach(t, h.c)
	x := h.c.Timing()
	var stop, kill []time.Duration
	for range drill.Times(10) {
		stop = append(stop, h.gap((*drill.Node).Stop, time.Second))
	}
	for range drill.Times(10) {
		kill = append(kill, h.gap((*drill.Node).Kill, x.NodeRegistrationTTL+1500*time.Millisecond))
	}
	drill.Measure(t, "queue on "+name+": clean stop of the broker, longest a submit took", clean, stop)
	drill.Measure(t, "queue on "+name+": kill -9 of the broker, longest a submit took", fmt.Sprintf("≤ %v", x.NodeRegistrationTTL+1500*time.Millisecond), kill)
}

// handover is a cluster whose broker changes while jobs are submitted.
type handover struct {
	*testing.T
	c       *drill.Cluster
	q       queue.Producer
	started int
}

func (h *handover) start() {
	h.started++
	h.c.Start(fmt.Sprintf("n%d", h.started))
}

// put submits a job and returns what that took.
func (h *handover) put() time.Duration {
	began := time.Now()
	if _, err := h.q.Enqueue(context.Background(), queue.DefaultQueue, []queue.Job{{Payload: []byte("1")}}); err != nil {
		h.Fatal(err)
	}
	return time.Since(began)
}

// gap ends the broker's node, starts another one, and returns the longest that a job took to be
// taken until another node served the queue. What is longer than slow is told with its events.
func (h *handover) gap(end func(n *drill.Node), slow time.Duration) (longest time.Duration) {
	h.c.Known(h.c.Timing().SettleWindow) // a cluster that has just come together waits for more nodes
	defer func() {
		if longest > slow {
			h.Logf("a submit took %v:\n%s", longest, h.c.History())
		}
	}()
	h.put()
	n := broker(h.c)
	for n == nil {
		h.put()
		n = broker(h.c)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); end(n) }()
	for {
		longest = max(longest, h.put())
		if b := broker(h.c); b != nil && b != n {
			break
		}
	}
	<-ended
	h.start()
	return max(longest, h.put())
}
