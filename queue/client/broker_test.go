package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/broker"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/queue/worker"
	"github.com/emitd/emitd/storage/blob"
)

// cluster is a few nodes on one bucket, each with a broker, a forwarder and the API.
type cluster struct {
	t      testing.TB
	bucket blob.Bucket
	where  locator
	nodes  []*brokerNode
	gen    int64
}

type brokerNode struct {
	broker *broker.Broker
	addr   string
	url    string
	end    func() // ends the run as if the process had crashed
}

func newCluster(t testing.TB, nodes int) *cluster {
	t.Helper()
	c := &cluster{t: t, bucket: mem.New(mem.Config{})}
	c.where.err = fmt.Errorf("nobody serves yet")
	for i := range nodes {
		n := &brokerNode{}
		var h http.Handler
		s := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) }))
		n.addr, n.url = s.Listener.Addr().String(), s.URL
		var err error
		n.broker, err = broker.New(broker.Config{
			Bucket: c.bucket, StoreID: "store", Owner: fmt.Sprint("node-", i), Address: n.addr, Now: time.Now,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		f, err := api.NewForwarder(api.ForwarderConfig{Locator: &c.where, Self: n.addr, Local: n.broker})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if h, err = api.New(f, api.Options{Queues: n.broker.Registry(), Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
	}
	return c
}

// assign makes a node serve the queue in place of the previous one.
func (c *cluster) assign(i int) {
	c.t.Helper()
	c.gen++
	n := c.nodes[i]
	unit := daemon.Unit{Daemon: queue.Settings{Name: "q"}.Spec().ID}
	a := daemon.NewAssignment(daemon.Fence{Unit: unit, Generation: c.gen}, 1, fmt.Sprint("node-", i), func(int64) {})
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- n.broker.Run(ctx, a) }()
	n.end = sync.OnceFunc(func() { cancel(); <-ended })
	c.t.Cleanup(n.end)
	select {
	case <-a.ReadyDone():
	case err := <-ended:
		c.t.Fatalf("the broker ended: %v", err)
	case <-time.After(time.Minute):
		c.t.Fatal("the broker is not ready")
	}
	c.where.move(n.addr, c.gen)
}

// TestWorkSurvivesFailovers: jobs are enqueued and worked on through any node while the broker dies
// three times. Every job is completed exactly once and none is lost.
func TestWorkSurvivesFailovers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	var urls []string
	for _, n := range c.nodes {
		urls = append(urls, n.url)
	}
	front := dial(t, client.Config{Addresses: urls})
	if err := front.Declare(t.Context(), queue.Settings{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	c.assign(0)

	const jobs = 600
	var mu sync.Mutex
	completed, ran := map[string]int{}, map[string]int{}
	all := make(chan struct{})
	w, err := worker.New(dial(t, client.Config{Locator: &c.where}), worker.Config{
		Queue: "q", Name: "w", Concurrency: 20, Visibility: 30 * time.Second, Logger: slog.New(slog.DiscardHandler),
		Hooks: worker.Hooks{
			OnCompleted: func(j queue.Info, _ time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				if completed[j.ID]++; len(completed) == jobs {
					close(all)
				}
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	worker.Handle(w, "t", func(_ context.Context, j worker.Job[int]) error {
		mu.Lock()
		defer mu.Unlock()
		ran[j.ID]++
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()

	for batch := range 6 {
		var list []queue.Job
		for i := range jobs / 6 {
			list = append(list, queue.Job{ID: fmt.Sprintf("%d-%d", batch, i), Type: "t", Payload: fmt.Append(nil, i)})
		}
		if _, err := front.Enqueue(t.Context(), "q", list); err != nil {
			t.Fatal(err)
		}
		if batch%2 == 0 {
			c.nodes[batch/2].end()
			c.assign((batch/2 + 1) % 3)
		}
	}
	select {
	case <-all:
	case <-time.After(time.Minute):
		mu.Lock()
		s, err := front.Stats(t.Context(), "q")
		t.Errorf("%d of %d completed; %+v %v", len(completed), jobs, s, err)
		mu.Unlock()
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	again := 0
	for id, n := range ran {
		again += n - 1
		if completed[id] != 1 {
			t.Errorf("%s was completed %d times", id, completed[id])
		}
	}
	s, err := front.Stats(t.Context(), "q")
	if err != nil || s.Completed != jobs || s.Waiting+s.Active+s.Delayed+s.Dead != 0 {
		t.Errorf("%+v %v", s, err)
	}
	t.Logf("%d handlers ran more than once", again)
}

// TestBrokerThroughTheWire tests what a caller of the API sees of a broker: a stale claim, a forged
// one, an unknown queue, dead letters and their redrive, pause, results.
func TestBrokerThroughTheWire(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, json bool) {
		c := newCluster(t, 2)
		far := dial(t, client.Config{Addresses: []string{c.nodes[1].url}, JSON: json})
		ctx := t.Context()
		if _, err := c.nodes[0].broker.Registry().Declare(ctx, queue.Settings{Name: "q"}); err != nil {
			t.Fatal(err)
		}
		c.assign(0)
		if _, err := far.Stats(ctx, "q"); err != nil {
			t.Fatal(err)
		}
		must := func(ok bool, err error) {
			t.Helper()
			if err != nil || !ok {
				t.Fatalf("%v %v", ok, err)
			}
		}
		r, err := far.Enqueue(ctx, "q", []queue.Job{{Payload: []byte(`{ "a": 1 }`)}, {ID: "x", Retry: queue.Retry{MaxAttempts: 1}}})
		must(len(r) == 2 && r[1].State == queue.Waiting, err)
		again, err := far.Enqueue(ctx, "q", []queue.Job{{ID: "x"}})
		must(again[0].Duplicate, err)
		claims, err := far.Claim(ctx, "q", queue.ClaimRequest{Worker: "w", Max: 10})
		must(len(claims) == 2 && string(claims[0].Payload) == `{ "a": 1 }`, err)
		o, err := far.Settle(ctx, "q", []queue.Settlement{
			{Verb: queue.Complete, ID: claims[0].Job.ID, Token: claims[0].Token, Result: []byte(`{"ok": true}`)},
			{Verb: queue.Fail, ID: "x", Token: claims[1].Token, Cause: "no luck"},
			{Verb: queue.Complete, ID: "x", Token: claims[0].Token},
			{Verb: queue.Complete, ID: "x", Token: "forged"},
		})
		must(o[0].State == queue.Completed && o[1].State == queue.Dead, err)
		for _, stale := range o[2:] {
			if stale.Err == nil || stale.Err.Tag != queue.StaleClaim {
				t.Errorf("%+v", stale)
			}
		}
		page, err := far.List(ctx, "q", queue.Query{State: queue.Dead})
		must(len(page.Jobs) == 1 && page.Jobs[0].Cause == "no luck", err)
		info, _, err := far.Get(ctx, "q", claims[0].Job.ID)
		must(string(info.Result) == `{"ok": true}`, err)
		n, err := far.Do(ctx, "q", queue.Command{Act: queue.Redrive})
		must(n == 1, err)
		_, err = far.Do(ctx, "q", queue.Command{Act: queue.Pause})
		must(true, err)
		claims, err = far.Claim(ctx, "q", queue.ClaimRequest{})
		must(len(claims) == 0, err)
		if _, err = far.Enqueue(ctx, "unheard-of", []queue.Job{{}}); queue.TagOf(err) != queue.QueueNotFound {
			t.Errorf("%v", err)
		}
	})
}

// BenchmarkWorker works off jobs over HTTP with one worker whose handlers do nothing.
func BenchmarkWorker(b *testing.B) {
	c := newCluster(b, 1)
	if _, err := c.nodes[0].broker.Registry().Declare(b.Context(), queue.Settings{Name: "q"}); err != nil {
		b.Fatal(err)
	}
	c.assign(0)
	q, err := client.New(client.Config{Addresses: []string{c.nodes[0].url}})
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	list := make([]queue.Job, 100)
	for i := range list {
		list[i] = queue.Job{Type: "t", Payload: []byte("1")}
	}
	jobs := 0
	for ; jobs < b.N; jobs += len(list) {
		if _, err := q.Enqueue(b.Context(), "q", list); err != nil {
			b.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var left atomic.Int64
	left.Store(int64(jobs))
	w, err := worker.New(q, worker.Config{Queue: "q", Concurrency: 500, Hooks: worker.Hooks{
		OnCompleted: func(queue.Info, time.Duration) {
			if left.Add(-1) == 0 {
				stop()
			}
		},
	}})
	if err != nil {
		b.Fatal(err)
	}
	worker.Handle(w, "t", func(context.Context, worker.Job[int]) error { return nil })
	b.ResetTimer()
	if err := w.Run(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(jobs)/b.Elapsed().Seconds(), "jobs/s")
}

// TestWorkerInTheBrokersProcess: a worker can use a broker in its process directly. After the stop,
// no job is still claimed.
func TestWorkerInTheBrokersProcess(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	broker := c.nodes[0].broker
	if _, err := broker.Registry().Declare(t.Context(), queue.Settings{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	c.assign(0)
	list := make([]queue.Job, 50)
	for i := range list {
		list[i] = queue.Job{Type: "t", Payload: []byte("1")}
	}
	if _, err := broker.Enqueue(t.Context(), "q", list); err != nil {
		t.Fatal(err)
	}
	w, err := worker.New(broker, worker.Config{Queue: "q", Concurrency: 5, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var ran atomic.Int32
	worker.Handle(w, "t", func(context.Context, worker.Job[int]) error {
		if ran.Add(1) == 20 {
			stop()
		}
		return nil
	})
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := broker.Stats(t.Context(), "q")
	if err != nil || s.Active != 0 || s.Completed != int64(ran.Load()) || s.Waiting+s.Completed != 50 {
		t.Errorf("%d ran: %+v %v", ran.Load(), s, err)
	}
}
