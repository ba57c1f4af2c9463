package supervisor

import (
	"context"
	"errors"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/daemon"
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

// MetricID returns the attribute that stands for a daemon in metrics: its ID, and of a built-in one only what is before
// the slash, so emit:queue for emit:queue/orders. A cluster may have thousands of queues, and a scrape should not grow
// with them.
func MetricID(id daemon.ID) attribute.KeyValue {
	name := id
	if strings.HasPrefix(string(id), daemon.Reserved) {
		kind, _, _ := strings.Cut(string(id), "/")
		name = daemon.ID(kind)
		if id.Group() != name.Group() {
			name = name.In(id.Group())
		}
	}
	return attribute.String("emitd.daemon.id", string(name))
}

func daemonID(r *run) attribute.KeyValue {
	return attribute.String("emitd.daemon.id", string(r.fence.Unit.Daemon))
}

func (t telemetry) active(r *run, n int64) {
	t.running.Add(context.Background(), n, metric.WithAttributes(MetricID(r.fence.Unit.Daemon)))
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
	t.restarts.Add(context.Background(), 1, metric.WithAttributes(MetricID(r.fence.Unit.Daemon), attribute.String("error.type", kind)))
}

// spans are those of one run: from Start to Started, and from Drain to Ended.
type spans struct {
	mu           sync.Mutex
	start, drain trace.Span // nil: not begun
	ended        bool
}

// started begins the run's telemetry.
func (t telemetry) started(r *run) {
	about := trace.WithAttributes(daemonID(r),
		attribute.Int("emitd.unit.index", r.fence.Unit.Index), attribute.Int64("emitd.generation", r.fence.Generation))
	_, r.spans.start = t.tracer.Start(context.Background(), "emitd.daemon.start", about)
}

// ended ends the run's telemetry, if it has begun.
func (t telemetry) ended(r *run, end Report) {
	r.spans.mu.Lock()
	defer r.spans.mu.Unlock()
	r.spans.ended = true
	if start := r.spans.start; start != nil {
		if end.Err != nil && end.Ending != member.Returned {
			start.SetStatus(codes.Error, end.Err.Error())
		}
		start.End() // no effect if ready has already ended it
	}
	if r.spans.drain != nil {
		r.spans.drain.End()
	}
}

func (t telemetry) ready(r *run) { r.spans.start.End() }

// drained begins the span of the drain, once. The caller of Drain and the run may both call it.
func (t telemetry) drained(r *run) {
	r.spans.mu.Lock()
	defer r.spans.mu.Unlock()
	if r.spans.drain == nil && !r.spans.ended {
		_, r.spans.drain = t.tracer.Start(context.Background(), "emitd.daemon.drain", trace.WithAttributes(daemonID(r)))
	}
}
