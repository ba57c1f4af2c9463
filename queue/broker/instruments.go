package broker

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/emitd/emitd/queue"
)

// instruments are the broker's metrics, from OpenTelemetry's global provider.
type instruments struct {
	calls     metric.Float64Histogram
	commits   metric.Float64Histogram
	mutations metric.Int64Histogram
	conflicts metric.Int64Counter
	out, in   metric.Int64Counter

	named *namedQueues

	mu   sync.RWMutex
	sets map[attributesKey]metric.MeasurementOption // see attributes
}

// attributesKey distinguishes the attributes of measurements.
type attributesKey struct{ queue, name, kind, failed string }

// maxAttributeSets is how many attribute sets are kept.
const maxAttributeSets = 10_000

// attributes returns those of a measurement. They are kept, because to sort and hash them at each call
// would cost more than the measurement.
func (i *instruments) attributes(k attributesKey) metric.MeasurementOption {
	k.queue = i.named.counter(k.queue)
	i.mu.RLock()
	o := i.sets[k]
	i.mu.RUnlock()
	if o != nil {
		return o
	}
	o = metric.WithAttributeSet(attribute.NewSet(k.list()...))
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.sets == nil || len(i.sets) >= maxAttributeSets {
		i.sets = map[attributesKey]metric.MeasurementOption{}
	}
	i.sets[k] = o
	return o
}

// list returns the attributes of a call, or, without kind, the queue alone under the key in name.
func (k attributesKey) list() []attribute.KeyValue {
	if k.kind == "" {
		return []attribute.KeyValue{attribute.String(k.name, k.queue)}
	}
	attrs := []attribute.KeyValue{
		attribute.String("messaging.system", "emitd"), attribute.String("messaging.destination.name", k.queue),
		attribute.String("messaging.operation.name", k.name), attribute.String("messaging.operation.type", k.kind),
	}
	if k.failed != "" {
		attrs = append(attrs, attribute.String("error.type", k.failed))
	}
	return attrs
}

var seconds = metric.WithExplicitBucketBoundaries(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

func newInstruments(b *Broker) (*instruments, error) {
	m := otel.GetMeterProvider().Meter("github.com/emitd/emitd/queue")
	i := instruments{named: newNamedQueues(cmp.Or(b.cfg.MetricQueues, defaultMetricQueues), b.serves)}
	var errs [6]error
	i.calls, errs[0] = m.Float64Histogram("messaging.client.operation.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Duration of calls to the queue broker."))
	i.commits, errs[1] = m.Float64Histogram("emitd.queue.commit.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from a decision until its segment is durable."))
	i.mutations, errs[2] = m.Int64Histogram("emitd.queue.commit.mutations", metric.WithUnit("{mutation}"),
		metric.WithDescription("Records per append."), metric.WithExplicitBucketBoundaries(1, 3, 10, 30, 100, 300, 1000, 3000, 10_000))
	i.conflicts, errs[3] = m.Int64Counter("emitd.queue.cas.conflicts", metric.WithUnit("{conflict}"),
		metric.WithDescription("Times the broker found that another owner had taken the journal over."))
	i.out, errs[4] = m.Int64Counter("messaging.client.sent.messages", metric.WithUnit("{message}"), metric.WithDescription("Jobs enqueued."))
	i.in, errs[5] = m.Int64Counter("messaging.client.consumed.messages", metric.WithUnit("{message}"), metric.WithDescription("Jobs claimed."))
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("create the queue's instruments: %w", err)
		}
	}
	return &i, i.observe(m, b)
}

// observe reports the state of the shards that this node serves, from snapshots. It never waits for
// a shard.
func (i *instruments) observe(m metric.Meter, b *Broker) error {
	depth, err := m.Int64ObservableUpDownCounter("emitd.queue.depth", metric.WithUnit("{message}"), metric.WithDescription("Jobs by state."))
	if err != nil {
		return fmt.Errorf("create emitd.queue.depth: %w", err)
	}
	age, err := m.Float64ObservableGauge("emitd.queue.oldest.age", metric.WithUnit("s"), metric.WithDescription("Age of the oldest waiting job."))
	if err != nil {
		return fmt.Errorf("create emitd.queue.oldest.age: %w", err)
	}
	size, err := m.Int64ObservableGauge("emitd.queue.state.size", metric.WithUnit("By"), metric.WithDescription("Memory of a queue's jobs."))
	if err != nil {
		return fmt.Errorf("create emitd.queue.state.size: %w", err)
	}
	damaged, err := m.Int64ObservableUpDownCounter("emitd.queue.shards.damaged", metric.WithUnit("{shard}"),
		metric.WithDescription("Shards that are assigned to this node but not served, because stored objects are missing or damaged."))
	if err != nil {
		return fmt.Errorf("create emitd.queue.shards.damaged: %w", err)
	}
	_, err = m.Float64ObservableGauge("emitd.queue.write.budget", metric.WithUnit("{write}/s"),
		metric.WithDescription("How many segments with few records each shard may write per second; 0: no limit."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(b.cfg.WritesPerSecond)
			return nil
		}))
	if err != nil {
		return fmt.Errorf("create emitd.queue.write.budget: %w", err)
	}
	_, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for name, st := range i.named.series(time.Now(), b.measure()) {
			q := attribute.String("queue", name)
			for state, n := range map[string]int64{"ready": st.Waiting, "delayed": st.Delayed, "claimed": st.Active, "dead": st.Dead} {
				o.ObserveInt64(depth, n, metric.WithAttributes(q, attribute.String("emitd.queue.state", state)))
			}
			o.ObserveFloat64(age, st.OldestAge.Seconds(), metric.WithAttributes(q))
			o.ObserveInt64(size, st.IndexBytes+st.PayloadBytes+st.DedupBytes, metric.WithAttributes(q))
			if st.damaged > 0 {
				o.ObserveInt64(damaged, int64(st.damaged), metric.WithAttributes(q))
			}
		}
		return nil
	}, depth, age, size, damaged)
	if err != nil {
		return fmt.Errorf("observe the queues: %w", err)
	}
	return nil
}

// operation is the measurement of a call.
type operation struct {
	i     *instruments // nil: it is not measured
	ctx   context.Context
	key   attributesKey
	begun time.Time
}

// begin begins to measure a call. End it with the address of the call's error.
func (i *instruments) begin(ctx context.Context, queue, name, kind string) operation {
	if !i.calls.Enabled(ctx) {
		return operation{}
	}
	return operation{i, ctx, attributesKey{queue: queue, name: name, kind: kind}, time.Now()}
}

func (o operation) end(err *error) {
	if o.i == nil {
		return
	}
	if *err != nil {
		o.key.failed = errorType(*err)
	}
	o.i.calls.Record(o.ctx, time.Since(o.begun).Seconds(), o.i.attributes(o.key))
}

func errorType(err error) string {
	if tag := queue.TagOf(err); tag != "" {
		return string(tag)
	}
	return "_OTHER"
}

func (i *instruments) sent(ctx context.Context, queue string, n int) {
	if i.out.Enabled(ctx) {
		i.out.Add(ctx, int64(n), i.attributes(attributesKey{queue: queue, name: "messaging.destination.name"}))
	}
}

func (i *instruments) consumed(ctx context.Context, queue string, n int) {
	if n > 0 && i.in.Enabled(ctx) {
		i.in.Add(ctx, int64(n), i.attributes(attributesKey{queue: queue, name: "messaging.destination.name"}))
	}
}

func (i *instruments) batch(queue string, records int) {
	if ctx := context.Background(); i.mutations.Enabled(ctx) {
		i.mutations.Record(ctx, int64(records), i.attributes(attributesKey{queue: queue, name: "queue"}))
	}
}

func (i *instruments) commit(queue string, d time.Duration) {
	if ctx := context.Background(); i.commits.Enabled(ctx) {
		i.commits.Record(ctx, d.Seconds(), i.attributes(attributesKey{queue: queue, name: "queue"}))
	}
}

func (i *instruments) conflict(queue string) {
	if ctx := context.Background(); i.conflicts.Enabled(ctx) {
		i.conflicts.Add(ctx, 1, i.attributes(attributesKey{queue: queue, name: "queue"}))
	}
}
