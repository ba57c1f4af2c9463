package api_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/broker"
)

// live is a broker on a bucket in memory. It serves the queues that are declared in its directory.
type live struct {
	*broker.Broker

	mu   sync.Mutex
	runs map[string]func() // ends the run of a queue
}

// directory is the list of queues of a live broker.
type directory struct{ *live }

var _ api.Directory = directory{}

// newLive returns a broker without queues.
func newLive(t testing.TB, bucket mem.Config) *live {
	t.Helper()
	b, err := broker.New(broker.Config{
		Bucket: mem.New(bucket), StoreID: "s", Owner: "o", Address: "127.0.0.1:7070", Now: time.Now, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	l := &live{Broker: b, runs: map[string]func(){}}
	t.Cleanup(func() {
		for _, end := range l.runs {
			end()
		}
	})
	return l
}

// startBroker returns a broker that serves q and default.
func startBroker(t testing.TB, bucket mem.Config) *live {
	t.Helper()
	l := newLive(t, bucket)
	for _, name := range []string{"q", "default"} {
		if _, err := (directory{l}).Amend(t.Context(), name, func(s queue.Settings) (queue.Settings, error) { return s, nil }); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// List implements api.Directory.
func (l directory) List(ctx context.Context) ([]queue.Settings, error) { return l.Registry().List(ctx) }

// Reshard implements api.Directory.
func (l directory) Reshard(ctx context.Context, name string, shards int) (queue.Settings, error) {
	return l.Registry().Reshard(ctx, name, shards)
}

// Amend implements api.Directory.
func (l directory) Amend(ctx context.Context, name string, revise func(queue.Settings) (queue.Settings, error)) (queue.Settings, error) {
	set, err := l.Registry().Amend(ctx, name, revise)
	if err != nil {
		return set, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs[set.Name] != nil {
		return set, nil
	}
	ends := make([]func(), max(set.Shards, 1))
	for shard := range ends {
		if ends[shard], err = l.serve(ctx, daemon.Unit{Daemon: set.Spec().ID, Index: shard}); err != nil {
			return set, err
		}
	}
	l.runs[set.Name] = func() {
		for _, end := range ends {
			end()
		}
	}
	return set, nil
}

// serve runs a shard until the returned function is called.
func (l *live) serve(ctx context.Context, u daemon.Unit) (func(), error) {
	a := daemon.NewAssignment(daemon.Fence{Unit: u, Generation: 1}, 1, "o", func(int64) {})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx, a) }()
	end := sync.OnceFunc(func() { cancel(); <-ended })
	select {
	case <-a.ReadyDone():
		return end, nil
	case err := <-ended:
		ended <- err
		return end, err
	}
}

// Remove implements api.Directory.
func (l directory) Remove(ctx context.Context, name string) error {
	if err := l.Registry().Remove(ctx, name); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := l.runs[name]; end != nil {
		end()
		delete(l.runs, name)
	}
	return nil
}

// newLiveAPI returns the API over a broker without queues.
func newLiveAPI(t testing.TB) *api.Handler {
	t.Helper()
	l := newLive(t, mem.Config{})
	h, err := api.New(l, api.Options{Logger: quiet, Queues: directory{l}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestOsqueueAtTheBroker: a job's life with osqueue's calls, and stale claims, against a real
// broker.
func TestOsqueueAtTheBroker(t *testing.T) {
	t.Parallel()
	served, err := api.New(startBroker(t, mem.Config{}), api.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	h := newConforming(t, served)
	for _, path := range []string{"/healthz", "/v1/throttle-stats"} {
		if a := send(h, "GET", path, ""); a.status != 200 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	a := send(h, "POST", "/v1/jobs", `{"payload":{"a":1},"type":"t","maxAttempts":2}`)
	id, _ := a.field(t, "jobId").(string)
	if a.status != 200 || id == "" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	claim := `{"workerId":"w","types":["t"]}`
	if a = send(h, "POST", "/v1/jobs/claim", claim); a.body != fmt.Sprintf(`{"jobId":%q,"payload":{"a":1},"type":"t"}`, id) {
		t.Fatal(a.body)
	}
	if a = send(h, "POST", "/v1/jobs/claim", claim); a.body != `{}` {
		t.Error(a.body)
	}
	want(t, send(h, "POST", "/v1/jobs/"+id+"/complete", `{"workerId":"other"}`), 409, queue.StaleClaim)
	want(t, send(h, "POST", "/v1/jobs/"+id+"/heartbeat", `{"workerId":"other"}`), 409, queue.StaleClaim)
	if a = send(h, "POST", "/v1/jobs/"+id+"/heartbeat", `{"workerId":"w"}`); a.status != 204 {
		t.Error(a.status, a.body)
	}
	if a = send(h, "GET", "/v1/jobs", ""); !strings.Contains(a.body, `"status":"in_progress"`) || !strings.Contains(a.body, `"workerId":"w"`) {
		t.Error(a.body)
	}
	for range 2 { // the second repeats a complete whose answer was lost
		if a = send(h, "POST", "/v1/jobs/"+id+"/complete", `{"workerId":"w"}`); a.status != 204 {
			t.Error(a.status, a.body)
		}
	}
	want(t, send(h, "POST", "/v1/jobs/"+id+"/heartbeat", `{"workerId":"w"}`), 409, queue.StaleClaim)
	if a = send(h, "GET", "/v1/stats", ""); !strings.HasPrefix(a.body, `{"total":0,"unclaimed":0,"inProgress":0,"completedTotal":1,`) {
		t.Error(a.body)
	}
}
