package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/queue"
)

// meters are the worker's instruments and tracer. Their names follow OpenTelemetry's messaging
// conventions where there is one.
type meters struct {
	queue    attribute.KeyValue
	tracer   trace.Tracer
	duration metric.Float64Histogram
	active   metric.Int64UpDownCounter
}

func newMeters(p metric.MeterProvider, tp trace.TracerProvider, name string) (meters, error) {
	if p == nil {
		p = otel.GetMeterProvider()
	}
	if tp == nil {
		tp = otel.GetTracerProvider()
	}
	const scope = "github.com/emitd/emitd/queue/worker"
	m := p.Meter(scope)
	duration, err1 := m.Float64Histogram("messaging.process.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of a handler."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300))
	active, err2 := m.Int64UpDownCounter("emitd.queue.worker.active", metric.WithUnit("{job}"),
		metric.WithDescription("Handlers that are running."))
	if err := errors.Join(err1, err2); err != nil {
		return meters{}, fmt.Errorf("worker: instruments: %w", err)
	}
	return meters{queue: attribute.String("messaging.destination.name", name), tracer: tp.Tracer(scope), duration: duration, active: active}, nil
}

func (m meters) attributes(typ string, more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(more, m.queue, attribute.String("messaging.system", "emitd"),
		attribute.String("messaging.operation.name", "process"), attribute.String("emitd.job.type", typ))...)
}

// begin counts a handler that starts, and begins its span.
func (m meters) begin(ctx context.Context, i queue.Info) (context.Context, trace.Span) {
	m.active.Add(ctx, 1, m.attributes(i.Type))
	return m.tracer.Start(ctx, "process "+m.queue.Value.AsString(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		m.queue, attribute.String("messaging.system", "emitd"), attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.message.id", i.ID), attribute.String("emitd.job.type", i.Type), attribute.Int("emitd.job.attempt", i.Attempts+1)))
}

// end records how long a handler took and, if it failed, the kind of the failure. The text of the
// error is not used, because each text would make a time series of its own.
func (m meters) end(span trace.Span, typ string, took time.Duration, err error) {
	ctx := context.Background()
	m.active.Add(ctx, -1, m.attributes(typ))
	var failed []attribute.KeyValue
	if err != nil {
		failed = append(failed, attribute.String("error.type", kindOf(err)))
		span.SetAttributes(failed...)
		span.SetStatus(codes.Error, kindOf(err))
	}
	span.End()
	m.duration.Record(ctx, took.Seconds(), m.attributes(typ, failed...))
}

func kindOf(err error) string {
	v, marked := errors.AsType[*outcomeError](err)
	switch {
	case isPanic(err):
		return "panic"
	case errors.Is(err, ErrRelease):
		return "release"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case marked && v.dead:
		return "permanent"
	default:
		return "_OTHER"
	}
}
