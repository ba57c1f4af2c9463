package api_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/broker"
)

// brokers are several nodes on one bucket, each serving some shards of the queue q, and a node that
// serves none.
type brokers struct {
	t     *testing.T
	nodes []*brokerNode
	door  *api.Forwarder

	mu    sync.Mutex
	where map[int]int // node of each shard, as the cluster knows it
	runs  int64       // runs begun, which is the newest generation
}

type brokerNode struct {
	*broker.Broker
	addr string
	runs map[int]func() // ends the run of a shard
}

// Broker implements api.Locator.
func (b *brokers) Broker(_ context.Context, _ string, shard int) (string, int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n, ok := b.where[shard]; ok {
		return b.nodes[n].addr, 1, nil
	}
	return "", 0, nil
}

// notify makes the cluster's snapshot say that a node serves a shard; -1: none.
func (b *brokers) notify(shard, node int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.where[shard] = node; node < 0 {
		delete(b.where, shard)
	}
}

// newBrokers creates a queue with these shards and distributes them over the nodes in turn.
func newBrokers(t *testing.T, nodes, shards int) *brokers {
	t.Helper()
	b := &brokers{t: t, where: map[int]int{}}
	bucket := mem.New(mem.Config{})
	for n := range nodes {
		b.node(bucket, n)
	}
	if _, err := b.nodes[0].Registry().Declare(t.Context(), queue.Settings{Name: "q", Shards: shards}); err != nil {
		t.Fatal(err)
	}
	for shard := range shards {
		b.serve(shard, shard%nodes)
	}
	b.door = b.forwarder("door:1", nil, b.nodes[0].Registry())
	return b
}

func (b *brokers) node(bucket *mem.Bucket, n int) {
	b.t.Helper()
	var handler atomic.Pointer[api.Handler]
	server := listen(b.t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Load().ServeHTTP(w, r) }))
	node := &brokerNode{addr: server.Listener.Addr().String(), runs: map[int]func(){}}
	var err error
	node.Broker, err = broker.New(broker.Config{
		Bucket: bucket, StoreID: "s", Owner: fmt.Sprint("owner-", n), Address: node.addr, Now: time.Now, Logger: quiet,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	h, err := api.New(b.forwarder(node.addr, node.Broker, node.Registry()), api.Options{Logger: quiet})
	if err != nil {
		b.t.Fatal(err)
	}
	handler.Store(h)
	b.nodes = append(b.nodes, node)
}

func (b *brokers) forwarder(self string, local queue.Service, s api.Sharding) *api.Forwarder {
	b.t.Helper()
	f, err := api.NewForwarder(api.ForwarderConfig{Locator: b, Sharding: s, Self: self, Local: local})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { f.Close() })
	return f
}

// serve makes a node serve a shard.
func (b *brokers) serve(shard, n int) {
	b.t.Helper()
	node := b.nodes[n]
	b.runs++
	fence := daemon.Fence{Unit: daemon.Unit{Daemon: "emit:queue/q", Index: shard}, Generation: b.runs}
	a := daemon.NewAssignment(fence, 1, "o", func(int64) {})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx, a) }()
	end := sync.OnceFunc(func() { cancel(); <-ended })
	node.runs[shard] = end
	b.t.Cleanup(end)
	select {
	case <-a.ReadyDone():
	case err := <-ended:
		b.t.Fatalf("shard %d: %v", shard, err)
	}
	b.notify(shard, n)
}

// fill submits jobs and returns how many are on each shard.
func (b *brokers) fill(n int) (perShard map[int]int) {
	b.t.Helper()
	jobs := make([]queue.Job, n)
	perShard = map[int]int{}
	for i := range jobs {
		jobs[i] = queue.Job{ID: fmt.Sprintf("job-%03d", i), Type: []string{"even", "odd"}[i%2], Payload: fmt.Appendf(nil, "%d", i)}
		perShard[b.nodes[0].Registry().ShardOfJob(&jobs[i], 6)]++
	}
	if _, err := b.door.Enqueue(b.t.Context(), "q", jobs); err != nil {
		b.t.Fatal(err)
	}
	return perShard
}

// list reads all pages.
func (b *brokers) list(f *api.Forwarder, q queue.Query, between func(page int)) []string {
	b.t.Helper()
	var ids []string
	for n := 0; ; n++ {
		page, err := f.List(b.t.Context(), "q", q)
		if err != nil || n > 1000 {
			b.t.Fatalf("page %d: %v", n, err)
		}
		if q.Limit > 0 && len(page.Jobs) > q.Limit || q.Payload && len(page.Payloads) != len(page.Jobs) {
			b.t.Fatalf("page %d has %d jobs and %d payloads", n, len(page.Jobs), len(page.Payloads))
		}
		for i, j := range page.Jobs {
			ids = append(ids, j.ID)
			if q.Payload && "job-"+fmt.Sprintf("%03s", page.Payloads[i]) != j.ID {
				b.t.Errorf("%s has the payload %s", j.ID, page.Payloads[i])
			}
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return ids
		}
		between(n)
	}
}

func quietly(int) {}

// TestSeveralBrokers: whichever node is called, the answer covers the whole queue, although three
// brokers serve two shards of it each.
func TestSeveralBrokers(t *testing.T) {
	t.Parallel()
	b := newBrokers(t, 3, 6)
	const jobs = 120
	b.fill(jobs)
	ctx := t.Context()
	for name, f := range map[string]*api.Forwarder{
		"a node without a broker": b.door,
		"a broker":                b.forwarder(b.nodes[1].addr, b.nodes[1].Broker, b.nodes[1].Registry()),
	} {
		s, err := f.Stats(ctx, "q")
		if err != nil || s.Waiting != jobs || s.Enqueued != jobs || s.Shards != 6 {
			t.Errorf("%s: stats %+v, %v", name, s, err)
		}
		for _, limit := range []int{0, 1, 7, 50, 1000} {
			ids := b.list(f, queue.Query{Limit: limit, Payload: true}, quietly)
			if slices.Sort(ids); len(ids) != jobs || len(slices.Compact(ids)) != jobs {
				t.Errorf("%s: pages of %d list %d jobs", name, limit, len(ids))
			}
		}
		if ids := b.list(f, queue.Query{Type: "odd", Limit: 9}, quietly); len(ids) != jobs/2 {
			t.Errorf("%s: %d odd jobs", name, len(ids))
		}
		for i := range jobs {
			id := fmt.Sprintf("job-%03d", i)
			if info, payload, err := f.Get(ctx, "q", id); err != nil || info.ID != id || string(payload) != fmt.Sprint(i) {
				t.Fatalf("%s: %s: %+v %q %v", name, id, info, payload, err)
			}
		}
		if _, _, err := f.Get(ctx, "q", "none"); queue.TagOf(err) != queue.JobNotFound {
			t.Errorf("%s: a job that is not there: %v", name, err)
		}
	}
}

// TestListWhileShardsMeet: the pages of a list fit together, although all shards are at one node for some of them.
func TestListWhileShardsMeet(t *testing.T) {
	t.Parallel()
	b := newBrokers(t, 2, 4)
	b.fill(60)
	move := func(from, to int) {
		for _, shard := range []int{1, 3} {
			b.nodes[from].runs[shard]()
			b.serve(shard, to)
		}
	}
	ids := b.list(b.door, queue.Query{Limit: 7, Payload: true}, func(page int) {
		switch page {
		case 0:
			move(1, 0)
		case 4:
			move(0, 1)
		}
	})
	if slices.Sort(ids); len(ids) != 60 || len(slices.Compact(ids)) != 60 {
		t.Errorf("%d jobs are listed: %q", len(ids), ids)
	}
}

// TestBulkActsOnSeveralBrokers: a command affects the jobs of every shard, once.
func TestBulkActsOnSeveralBrokers(t *testing.T) {
	t.Parallel()
	b := newBrokers(t, 3, 6)
	b.fill(120)
	do := func(want int, c queue.Command) {
		t.Helper()
		n, err := b.door.Do(t.Context(), "q", c)
		if err != nil || n != want {
			t.Errorf("%s %+v: %d jobs, %v; want %d", c.Act, c, n, err, want)
		}
	}
	do(0, queue.Command{Act: queue.Pause})
	for i, node := range b.nodes {
		if s, err := node.Stats(queue.OnShards(t.Context(), []int{i, i + 3}, 0), "q"); err != nil || !s.Paused || s.Shards != 2 {
			t.Errorf("node %d: %+v, %v", i, s, err)
		}
	}
	if c, err := b.door.Claim(t.Context(), "q", queue.ClaimRequest{Max: 10}); err != nil || len(c) != 0 {
		t.Errorf("a paused queue hands out %d jobs, %v", len(c), err)
	}
	do(0, queue.Command{Act: queue.Resume})
	var named []string
	for i := range 30 {
		named = append(named, fmt.Sprintf("job-%03d", i))
	}
	do(30, queue.Command{Act: queue.Cancel, IDs: named})
	do(0, queue.Command{Act: queue.Cancel, IDs: named})
	do(45, queue.Command{Act: queue.Purge, State: queue.Waiting, Type: "odd"})
	do(45, queue.Command{Act: queue.Cancel})
	if s, err := b.door.Stats(t.Context(), "q"); err != nil || s.Waiting != 0 || s.Cancelled != 75 || s.Paused {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestNoAnswerAboutAPart: a shard has moved and a node does not know it yet, or no node serves it.
// No caller then gets an answer about the rest as if it were the whole queue, and a command that
// may have been carried out in part says so.
func TestNoAnswerAboutAPart(t *testing.T) {
	t.Parallel()
	b := newBrokers(t, 2, 6)
	perShard := b.fill(120)
	ctx := t.Context()
	b.nodes[1].runs[3]()
	for notify, name := range []string{"the cluster knows", "the cluster does not know yet"} {
		b.notify(3, 2*notify-1) // no node, then the node that does not serve it any more
		if s, err := b.door.Stats(ctx, "q"); queue.TagOf(err) != queue.Unavailable {
			t.Errorf("%s: stats %+v, %v", name, s, err)
		}
		if _, _, err := b.door.Get(ctx, "q", "none"); queue.TagOf(err) != queue.Unavailable {
			t.Errorf("%s: a job that may be there: %v", name, err)
		}
		if _, err := b.door.Do(ctx, "q", queue.Command{Act: queue.Purge, State: queue.Dead}); queue.TagOf(err) != queue.UnknownOutcome {
			t.Errorf("%s: a purge: %v", name, err)
		}
	}
	b.notify(3, 1)
	met, err := b.door.Do(ctx, "q", queue.Command{Act: queue.Cancel})
	if queue.TagOf(err) != queue.UnknownOutcome || met != 120-perShard[1]-perShard[3]-perShard[5] {
		t.Errorf("%d jobs, %v", met, err)
	}
	b.serve(3, 0)
	if met, err = b.door.Do(ctx, "q", queue.Command{Act: queue.Cancel}); err != nil || met != perShard[1]+perShard[3]+perShard[5] {
		t.Errorf("repeated: %d jobs, %v", met, err)
	}
	if s, err := b.door.Stats(ctx, "q"); err != nil || s.Cancelled != 120 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestListWhileShardsMove: jobs that stay are listed once, wherever their shards go meanwhile.
func TestListWhileShardsMove(t *testing.T) {
	t.Parallel()
	b := newBrokers(t, 3, 6)
	b.fill(120)
	ids := b.list(b.door, queue.Query{Limit: 5}, func(page int) {
		shard := page % 6
		b.mu.Lock()
		from := b.where[shard]
		b.mu.Unlock()
		b.nodes[from].runs[shard]()
		b.serve(shard, (from+1)%3)
	})
	if slices.Sort(ids); len(ids) != 120 || len(slices.Compact(ids)) != 120 {
		t.Errorf("listed %d jobs, %d of them different", len(ids), len(slices.Compact(ids)))
	}
}
