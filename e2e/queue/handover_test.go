package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/queue"
)

// TestDrillHandOver measures for how long the queue accepts no job when its broker stops cleanly, and
// when it is killed.
func TestDrillHandOver(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		t.Run(name, func(t *testing.T) {
			drill.ParallelUnlessMeasured(t)
			handOver(t, name)
		})
	}
}

func handOver(t *testing.T, name string) {
	objects := buckets[name](t)
	clean := drill.Bound{Max: 300 * time.Millisecond}
	if name == "s3" || name == "gcs" {
		l := objects.latency(t)
		clean = drill.Bound{Max: (8*l + 100*time.Millisecond).Round(time.Millisecond), Other: "8 store latencies + 100 ms"}
	}
	h := &handover{T: t, c: cluster(t, objects)}
	for range 3 {
		h.start()
	}
	h.q = reach(t, h.c)
	killed := drill.Bound{Max: h.c.Timing().NodeRegistrationTTL + 1500*time.Millisecond}
	var stop, kill []time.Duration
	for range drill.Times(10) {
		stop = append(stop, h.gap((*drill.Node).Stop, time.Second))
	}
	for range drill.Times(10) {
		kill = append(kill, h.gap((*drill.Node).Kill, killed.Max))
	}
	drill.Measure(t, "queue on "+name+": clean stop of the broker, longest a submit took", clean, stop)
	drill.Measure(t, "queue on "+name+": kill -9 of the broker, longest a submit took", killed, kill)
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

// put submits a job and returns how long that took.
func (h *handover) put() time.Duration {
	began := time.Now()
	if _, err := h.q.Enqueue(context.Background(), queue.DefaultQueue, []queue.Job{{Payload: []byte("1")}}); err != nil {
		h.Fatal(err)
	}
	return time.Since(began)
}

// settled waits until all nodes have been members for a while, because a cluster of only new nodes waits
// for more.
func (h *handover) settled() { h.c.Known(h.c.Timing().SettleWindow) }

// gap ends the broker's node, starts another one, and returns the longest time that a submit took until
// another node served the queue. If that is longer than slow, it logs the events.
func (h *handover) gap(end func(n *drill.Node), slow time.Duration) (longest time.Duration) {
	h.settled()
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

// TestDrillHandOverLoaded does the same with many waiting jobs, all of which the successor must read.
func TestDrillHandOverLoaded(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	jobs := 20_000
	if drill.Full() {
		jobs = 1_000_000
	}
	h := &handover{T: t, c: cluster(t, buckets["directory"](t))}
	for range 3 {
		h.start()
	}
	h.q = reach(t, h.c)
	if n := len(submit(t.Context(), t, h.q, jobs)); n != jobs {
		t.Fatalf("%d of %d jobs were submitted", n, jobs)
	}
	promised := drill.Bound{Max: 2 * time.Second}
	var stop []time.Duration
	for range drill.Times(5) {
		stop = append(stop, h.gap((*drill.Node).Stop, promised.Max))
	}
	drill.Measure(t, fmt.Sprintf("queue on directory, %d jobs waiting: clean stop of the broker, longest a submit took", jobs), promised, stop)
	if s, err := h.q.(queue.Operator).Stats(t.Context(), queue.DefaultQueue); err != nil || s.Waiting < int64(jobs) {
		t.Errorf("%+v, %v", s, err)
	}
}
