package outbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/daemon"
)

// scope is the name of this package in OpenTelemetry.
const scope = "github.com/emitd/emitd/outbox"

const (
	maxLinks    = 128  // links of one span; tracers keep this many by default
	maxTopics   = 1000 // topics whose options are cached
	sampleEvery = 15 * time.Second
)

// The values of the attribute emitd.outcome: the outcome of one call of the sink.
const (
	outcomeDelivered = "delivered"
	outcomePartly    = "partly"
	outcomeFailed    = "failed"
)

// instruments holds every metric and span of a relay. Without a provider they cost next to nothing.
type instruments struct {
	name   attribute.KeyValue
	tracer trace.Tracer
	sink   metric.MeasurementOption
	// The options are built once, because building a set of attributes costs more than recording with it.
	outcomes map[string][]metric.RecordOption
	mu       sync.Mutex
	topics   map[string][]metric.RecordOption

	latency   metric.Float64Histogram // from publish to delivery
	publish   metric.Float64Histogram
	sent      metric.Int64Counter
	fences    metric.Int64Counter
	polls     metric.Int64Counter
	hookDrops metric.Int64Counter

	stats   atomic.Pointer[Stats] // the newest sample of unit 0, if it runs on this node
	observe metric.Registration
}

func newInstruments(cfg Config) *instruments {
	meters, tracers := cfg.MeterProvider, cfg.TracerProvider
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	m := meters.Meter(scope)
	i := &instruments{name: attribute.String("emitd.outbox.subscription", cfg.Name), tracer: tracers.Tracer(scope)}
	i.sink = metric.WithAttributeSet(attribute.NewSet(i.name))
	i.topics, i.outcomes = map[string][]metric.RecordOption{}, map[string][]metric.RecordOption{}
	for _, outcome := range []string{outcomeDelivered, outcomePartly, outcomeFailed} {
		i.outcomes[outcome] = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(i.name, attribute.String("emitd.outcome", outcome)))}
	}
	// The API returns a usable instrument beside every error, and the names are constants, so errors are
	// ignored.
	bounds := metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300)
	i.latency, _ = m.Float64Histogram("emitd.outbox.delivery.duration", metric.WithUnit("s"), bounds,
		metric.WithDescription("Time from publishing a message (the log's clock) to its delivery (this node's clock). Replayed messages are not included."))
	i.publish, _ = m.Float64Histogram("emitd.outbox.publish.duration", metric.WithUnit("s"), bounds, metric.WithDescription("Duration of calls to the sink."))
	i.sent, _ = m.Int64Counter("messaging.client.sent.messages", metric.WithUnit("{message}"), metric.WithDescription("Messages that a receiver has accepted."))
	i.fences, _ = m.Int64Counter("emitd.outbox.fenced", metric.WithUnit("{relay}"), metric.WithDescription("Relays that were fenced because another relay owns their shards."))
	i.polls, _ = m.Int64Counter("emitd.outbox.poll.empty", metric.WithUnit("{poll}"), metric.WithDescription("Reads of the log that found nothing."))
	i.hookDrops, _ = m.Int64Counter("emitd.outbox.hook.missed", metric.WithUnit("{event}"), metric.WithDescription("Events that were dropped because a hook was too slow."))
	i.gauges(m)
	return i
}

// gauges registers the gauges. A collection reports the newest sample.
func (i *instruments) gauges(m metric.Meter) {
	count := func(name, unit, about string) metric.Int64ObservableUpDownCounter {
		c, _ := m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(about))
		return c
	}
	pending := count("emitd.outbox.pending", "{message}", "Messages that are not delivered yet; an estimate beyond 10,000.")
	delayed := count("emitd.outbox.delayed", "{message}", "Delayed messages that are not due yet; counting stops at 10,000.")
	dead := count("emitd.outbox.dead", "{message}", "Dead letters: messages that are tried no more and kept.")
	parked := count("emitd.outbox.parked", "{key}", "Parked keys: keys whose first message waits for another attempt or for an operator.")
	retained := count("emitd.outbox.retained.size", "By", "Size of the log on disk.")
	ahead := count("emitd.outbox.partitions", "{partition}", "Partitions that are ready for new messages.")
	oldest, _ := m.Float64ObservableGauge("emitd.outbox.oldest.age", metric.WithUnit("s"), metric.WithDescription("Age of the oldest message that is not delivered yet."))
	i.observe, _ = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := i.stats.Load()
		if s == nil {
			return nil
		}
		o.ObserveInt64(pending, s.Pending, i.sink)
		o.ObserveInt64(delayed, s.Delayed, i.sink)
		o.ObserveInt64(dead, s.Dead, i.sink)
		o.ObserveInt64(parked, s.ParkedKeys, i.sink)
		o.ObserveInt64(retained, s.Retained, i.sink)
		if s.PartitionsAhead >= 0 {
			o.ObserveInt64(ahead, int64(s.PartitionsAhead), i.sink)
		}
		age := 0.0
		if !s.OldestAt.IsZero() {
			age = max(s.Now.Sub(s.OldestAt).Seconds(), 0)
		}
		o.ObserveFloat64(oldest, age, i.sink)
		return nil
	}, pending, delayed, dead, parked, retained, ahead, oldest)
}

func (i *instruments) close() {
	if i.observe != nil {
		_ = i.observe.Unregister()
	}
}

// delivered measures messages that a receiver has taken. Messages up to the sequence number replayed are
// left out of the latency: they may have been delivered before, so their age says nothing about this
// delivery.
func (i *instruments) delivered(rows []Row, replayed int64) {
	ctx := context.Background()
	i.sent.Add(ctx, int64(len(rows)), i.sink)
	if !i.latency.Enabled(ctx) {
		return
	}
	now := time.Now()
	var topic string
	var about []metric.RecordOption
	for n := range rows {
		if rows[n].Seq <= replayed {
			continue
		}
		if row := &rows[n]; about == nil || row.Topic != topic {
			topic = row.Topic
			about = i.topic(topic)
		}
		i.latency.Record(ctx, max(now.Sub(rows[n].CreatedAt).Seconds(), 0), about...)
	}
}

// topic returns the options of a measurement for a topic, from a cache.
func (i *instruments) topic(name string) []metric.RecordOption {
	i.mu.Lock()
	defer i.mu.Unlock()
	about := i.topics[name]
	if about == nil {
		about = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(i.name, attribute.String("messaging.destination.name", name)))}
		if len(i.topics) >= maxTopics {
			clear(i.topics) // bounds the cache if there are endless topics
		}
		i.topics[name] = about
	}
	return about
}

// spans are the spans of one call of the sink: as many as are needed to link all producers.
type spans []trace.Span

// publishing starts the spans of one call of the sink, linked to the producers of its messages. Spans
// that the sink starts are children of the first.
func (i *instruments) publishing(ctx context.Context, d Delivery) (context.Context, spans) {
	begin := func() (context.Context, trace.Span) {
		return i.tracer.Start(ctx, "send "+d.Subscription, trace.WithSpanKind(trace.SpanKindProducer))
	}
	first, span := begin()
	all := spans{span}
	if !span.IsRecording() {
		return first, all
	}
	links := 0
	for n := range d.Rows {
		row := &d.Rows[n]
		sc, ok := spanContext(row.TraceParent, row.TraceState)
		if !ok {
			continue
		}
		if links++; links > maxLinks {
			_, span = begin()
			all, links = append(all, span), 1
		}
		span.AddLink(trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{attribute.String("messaging.message.id", row.ID.String())}})
	}
	for _, span := range all {
		span.SetAttributes(i.name, attribute.Int("messaging.batch.message_count", len(d.Rows)),
			attribute.Int64("emitd.generation", d.Epoch), attribute.String("emitd.outbox.shards", d.Range))
	}
	return first, all
}

// published ends the spans of a call and records its duration.
func (i *instruments) published(all spans, took time.Duration, errs []error) {
	outcome, failed := outcomeDelivered, 0
	var first error
	for _, err := range errs {
		if err != nil {
			failed++
			first = cmp.Or(first, err)
		}
	}
	if failed > 0 {
		outcome = outcomePartly
		if failed == len(errs) {
			outcome = outcomeFailed
		}
	}
	for _, span := range all {
		if failed > 0 {
			span.SetStatus(codes.Error, first.Error())
			span.SetAttributes(attribute.Int("emitd.outbox.failed", failed))
		}
		span.End()
	}
	i.publish.Record(context.Background(), took.Seconds(), i.outcomes[outcome]...)
}

func (i *instruments) fenced() { i.fences.Add(context.Background(), 1, i.sink) }

func (i *instruments) polled(rows int) {
	if rows == 0 {
		i.polls.Add(context.Background(), 1, i.sink)
	}
}

func (i *instruments) missed(hook string) {
	i.hookDrops.Add(context.Background(), 1, metric.WithAttributes(i.name, attribute.String("emitd.observer.event", hook)))
}

// sample reads the subscription's state every sampleEvery for the metrics. Only the node that runs unit 0
// does this. The returned function stops it.
func (r *Relay) sample(ctx context.Context, a *daemon.Assignment, log *slog.Logger) (stop func()) {
	op, ok := r.cfg.Log.(Operator)
	if !ok || a.Index != 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for more := true; more; more = sleep(ctx, nil, sampleEvery) {
			all, err := op.Stats(ctx, r.cfg.Name)
			if err != nil && !errors.Is(err, context.Canceled) {
				log.Debug("cannot read the outbox's statistics", "error", err)
			}
			for _, s := range all {
				r.metrics.stats.Store(&s)
			}
		}
		r.metrics.stats.Store(nil)
	}()
	return func() { cancel(); <-ended }
}
