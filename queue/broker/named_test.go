package broker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/emitd/emitd/queue"
)

// TestMetricsOfAThousandQueues checks that 1,000 queues have a bounded number of series, whose sums are
// exact.
func TestMetricsOfAThousandQueues(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	before := otel.GetMeterProvider()
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	t.Cleanup(func() { otel.SetMeterProvider(before) })
	const queues, most = 1000, 50
	b := newWorld(t, nil).node("n1").Broker
	for i := range queues {
		s := &shard{}
		s.counts.published.Store(&queue.Stats{Waiting: int64(i), EnqueueRate: float64(i), OldestAge: time.Duration(i) * time.Millisecond})
		b.queues[fmt.Sprint("q", i)] = &servedQueue{shards: []*shard{s}}
		b.instruments.sent(t.Context(), fmt.Sprint("q", i), i)
	}
	b.damaged[shardID{"broken", 0}] = queue.Refuse(queue.Damaged, "an object is missing")
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	want := int64(queues * (queues - 1) / 2)
	if series, sum := sumOf(t, &all, "emitd.queue.depth"); series != 4*(most+1) || sum != want {
		t.Errorf("depth: %d series with the sum %d, want %d with %d", series, sum, 4*(most+1), want)
	}
	if series, sum := sumOf(t, &all, "messaging.client.sent.messages"); series != most+1 || sum != want {
		t.Errorf("sent: %d series with the sum %d, want %d with %d", series, sum, most+1, want)
	}
	if series, sum := sumOf(t, &all, "emitd.queue.shards.damaged"); series != 1 || sum != 1 {
		t.Errorf("damaged: %d series with the sum %d", series, sum)
	}
	for i := range queues { // the busiest have been chosen since, and have series of their own
		b.instruments.sent(t.Context(), fmt.Sprint("q", i), i)
		b.instruments.sent(t.Context(), fmt.Sprint("unknown", i), 1)
	}
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	if series, sum := sumOf(t, &all, "messaging.client.sent.messages"); series > 2*most+1 || sum != 2*want+queues {
		t.Errorf("sent: %d series with the sum %d, want at most %d with %d", series, sum, 2*most+1, 2*want+queues)
	}
}

func sumOf(t *testing.T, all *metricdata.ResourceMetrics, name string) (series int, sum int64) {
	t.Helper()
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if data, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
				for _, p := range data.DataPoints {
					sum += p.Value
				}
				return len(data.DataPoints), sum
			}
		}
	}
	t.Fatalf("%s is missing", name)
	return 0, 0
}

// TestNamedQueuesAreStable checks who is shown by name: queues with a problem at any rate, and a newcomer only with more
// than twice the rate of one that is shown, and not before a minute has passed.
func TestNamedQueuesAreStable(t *testing.T) {
	n := newNamedQueues(2, func(string) bool { return true })
	at := time.Unix(1000, 0)
	rated := func(a, b, c, d float64) map[string]*measured {
		out := map[string]*measured{}
		for i, r := range []float64{a, b, c, d} {
			out[string(rune('a'+i))] = &measured{Stats: queue.Stats{EnqueueRate: r}}
		}
		return out
	}
	dead := rated(1, 99, 99, 0)
	dead["d"].Dead = 1
	for _, c := range []struct {
		after time.Duration
		all   map[string]*measured
		want  string
	}{
		{0, rated(10, 9, 8, 0), "map[a:true b:true]"},
		{time.Hour, rated(10, 9, 17, 0), "map[a:true b:true]"},
		{time.Second, rated(10, 9, 1000, 0), "map[a:true b:true]"},
		{time.Minute, rated(10, 9, 1000, 0), "map[a:true c:true]"},
		{time.Minute, dead, "map[c:true d:true]"},
	} {
		at = at.Add(c.after)
		if got := fmt.Sprint(n.choose(at, c.all)); got != c.want {
			t.Errorf("after %v: %v, want %v", c.after, got, c.want)
		}
	}
}
