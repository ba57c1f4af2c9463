package supervisor

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/internal/coordinator/member"
)

const scope = "github.com/emitd/emitd/internal/coordinator/supervisor"

// telemetry counts runs and attempts. Without a provider it costs next to nothing.
type telemetry struct {
	tracer   trace.Tracer
	restarts metric.Int64Counter
	running  metric.Int64UpDownCounter
}

func newTelemetry(cfg Config) telemetry {
	meters, tracers := cfg.MeterProvider, cfg.TracerProvider
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	meter := meters.Meter(scope)
	// The API returns a usable instrument with every error, and the names are constants.
	restarts, _ := meter.Int64Counter("emitd.daemon.restarts", metric.WithUnit("{restart}"),
		metric.WithDescription("Attempts of a run that were restarted"))
	running, _ := meter.Int64UpDownCounter("emitd.daemon.active", metric.WithUnit("{daemon}"),
		metric.WithDescription("Agents whose Run has been called and has not returned"))
	return telemetry{tracer: tracers.Tracer(scope), restarts: restarts, running: running}
}

func daemonID(r *run) attribute.KeyValue {
	return attribute.String("emitd.daemon.id", string(r.fence.Unit.Daemon))
}

func (t telemetry) active(r *run, n int64) {
	t.running.Add(context.Background(), n, metric.WithAttributes(daemonID(r)))
}

// restarted counts a repeated attempt by what ended the previous one.
func (t telemetry) restarted(r *run, err error) {
	kind := "error"
	switch {
	case err == nil:
		kind = "returned"
	case errors.Is(err, errPanic):
		kind = "panic"
	case errors.Is(err, ErrStalled):
		kind = "stalled"
	}
	t.restarts.Add(context.Background(), 1, metric.WithAttributes(daemonID(r), attribute.String("error.type", kind)))
}

// spans are those of one run: from Start to Started, and from Drain to Ended.
type spans struct{ start, drain trace.Span }

// started begins the run's telemetry and returns the function that ends it.
func (t telemetry) started(r *run) (stop func(Report)) {
	about := trace.WithAttributes(daemonID(r),
		attribute.Int("emitd.unit.index", r.fence.Unit.Index), attribute.Int64("emitd.generation", r.fence.Generation))
	_, r.spans.start = t.tracer.Start(context.Background(), "emitd.daemon.start", about)
	return func(end Report) {
		if end.Err != nil && end.Ending != member.Returned {
			r.spans.start.SetStatus(codes.Error, end.Err.Error())
		}
		r.spans.start.End() // no effect if ready has already ended it
		if r.spans.drain != nil {
			r.spans.drain.End()
		}
	}
}

func (t telemetry) ready(r *run) { r.spans.start.End() }

func (t telemetry) drained(r *run) {
	_, r.spans.drain = t.tracer.Start(context.Background(), "emitd.daemon.drain", trace.WithAttributes(daemonID(r)))
}
