package api_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// countingLocator is a locator that counts its calls and invalidations.
type countingLocator struct {
	api.Locator
	times, doubts atomic.Int32
}

func (a *countingLocator) Broker(ctx context.Context, name string, shard int) (string, int64, error) {
	a.times.Add(1)
	return a.Locator.Broker(ctx, name, shard)
}

func (a *countingLocator) Invalidate() { a.doubts.Add(1) }

// until waits for something that other goroutines do.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("it does not happen")
		}
	}
}

// TestHandOverIsADelay: a call that comes between two brokers is answered by the next one. This
// holds on the node that had the queue, on any other, and across shards. No call takes effect
// twice.
func TestHandOverIsADelay(t *testing.T) {
	t.Parallel()
	for name, shards := range map[string]int{"one shard": 1, "two shards": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBrokers(t, 2, 1)
			if shards > 1 {
				b = newBrokers(t, 2, shards)
			}
			where := &countingLocator{Locator: b}
			patient := func(self string, local queue.Service) *api.Forwarder {
				f, err := api.NewForwarder(api.ForwarderConfig{
					Locator: where, Sharding: b.nodes[0].Registry(), Self: self, Local: local, HandoverWait: time.Minute,
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
				return f
			}
			had, door := patient(b.nodes[0].addr, b.nodes[0].Broker), patient("door:1", nil)
			b.nodes[0].runs[0]() // the cluster does not know it yet
			answers := make(chan error, 2)
			for i, f := range []*api.Forwarder{had, door} {
				go func() {
					jobs := ids(20)
					for n := range jobs {
						jobs[n].ID += []string{"-had", "-door"}[i]
					}
					r, err := f.Enqueue(context.Background(), "q", jobs)
					if err == nil && (len(r) != 20 || r[7].Duplicate) {
						err = errors.New("the jobs were there already")
					}
					answers <- err
				}()
			}
			before := where.times.Load()
			until(t, func() bool { return where.times.Load() > before+20 && where.doubts.Load() > 2 })
			b.notify(0, -1)
			until(t, func() bool { return where.times.Load() > before+40 })
			b.serve(0, 1)
			for range 2 {
				if err := <-answers; err != nil {
					t.Error(err)
				}
			}
			if s, err := door.Stats(t.Context(), "q"); err != nil || s.Waiting != 40 {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}

// TestAssignedAndNotYetServing: a node that forwards can learn of an assignment before the assigned node
// does. That node refuses the call, and is called again although nothing has changed in the cluster.
func TestAssignedAndNotYetServing(t *testing.T) {
	t.Parallel()
	b := newBrokers(t, 2, 1)
	where := &countingLocator{Locator: b}
	door, err := api.NewForwarder(api.ForwarderConfig{Locator: where, Sharding: b.nodes[0].Registry(), Self: "door:1", HandoverWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()
	b.nodes[0].runs[0]()
	b.notify(0, 1)
	answer := make(chan error, 1)
	go func() {
		_, err := door.Enqueue(context.Background(), "q", ids(1))
		answer <- err
	}()
	until(t, func() bool { return where.times.Load() > 3 })
	b.serve(0, 1)
	select {
	case err := <-answer:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the assigned node is not called again")
	}
}

// TestUnavailableBrokerIsCalledOnce: a broker that serves the queue and cannot store a payload is not called
// again by the node that forwards, because that would add to its trouble.
func TestUnavailableBrokerIsCalledOnce(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	broker := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"_tag":"QueueUnavailable","message":"store the payload"}`)
	}))
	door, err := api.NewForwarder(api.ForwarderConfig{
		Locator: &nodes{addr: broker.Listener.Addr().String()}, Self: "door:1", HandoverWait: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()
	if _, err := door.Enqueue(t.Context(), "q", ids(1)); queue.TagOf(err) != queue.Unavailable || calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}

// TestWaitTimesOut: without a next broker, a call is refused when its waiting time is over. A call
// that was forwarded already, or meets a cluster store that does not answer, is refused at once.
func TestWaitTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		moved := broken{err: queue.Refuse(queue.QueueNotOwner, "deposed")}
		for _, c := range []struct {
			where     *nodes
			waitBound time.Duration
			header    string
			want      time.Duration
		}{
			{&nodes{}, 0, "", time.Second},
			{&nodes{}, 3 * time.Second, "", 3 * time.Second},
			{&nodes{}, -1, "", 0},
			{&nodes{addr: "me:1"}, 0, "", time.Second},
			{&nodes{addr: "me:1"}, 0, "7", 0},
			{&nodes{}, 0, "7", 0},
			{&nodes{err: errors.New("the cluster store is away")}, 0, "", 0},
		} {
			f, err := api.NewForwarder(api.ForwarderConfig{Locator: c.where, Self: "me:1", Local: moved, HandoverWait: c.waitBound})
			if err != nil {
				t.Fatal(err)
			}
			h, err := api.New(f, api.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var headers []string
			if c.header != "" {
				headers = []string{"Emitd-Forwarded", c.header}
			}
			begun := time.Now()
			want(t, send(h, "POST", "/v1/jobs", `{"payload":1}`, headers...), 503, queue.Unavailable)
			if took := time.Since(begun); took > c.want || took < c.want-50*time.Millisecond {
				t.Errorf("%+v: it took %v", c, took)
			}
			f.Close()
		}
	})
}
