// Package instrument adds metrics and traces to a bucket: every call of an object store passes
// through it, whatever the backend.
//
// Metrics (OpenTelemetry):
//
//	emitd.objects.operation.duration   histogram, s: from the call to its answer, with all that the
//	                                   backend repeated
//	emitd.objects.io                   counter, By: of objects read and written
//
// with the attributes emitd.objects.system (the scheme of the address: file, gs, mem, s3),
// emitd.objects.use, emitd.objects.operation (read, create, replace, write, list, delete) and
// emitd.outcome. The outcome is ok, or an answer in one word (exists, changed, unchanged,
// not_found), which is no failure. A call that failed has error.type instead: denied, no_bucket,
// throttled, budget, unavailable, corrupt, too_large, unfit, bad_key, unknown_outcome, or _OTHER.
//
// Spans have the name "objects.<operation>" and the kind client. They have the same attributes and
// emitd.objects.key. None of them contains addresses, credentials, error texts or data.
package instrument

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/storage/blob"
)

const scope = "github.com/emitd/emitd/cmd/emitd/internal/instrument"

// Config says how the calls are named.
type Config struct {
	System string // the scheme of the address: file, gs, mem, s3
	Use    string // what the bucket holds: queues, cluster
	// Roots also traces calls that belong to no span of the caller's. Leave it out for a bucket
	// with periodic calls, such as a cluster store with its heartbeats: its spans would outnumber
	// all others.
	Roots bool
	// MeterProvider and TracerProvider; nil: OpenTelemetry's global ones.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Bucket is a blob.Bucket that measures and traces its calls. Use New.
type Bucket struct {
	inner    blob.Bucket
	config   Config
	tracer   trace.Tracer
	common   []attribute.KeyValue
	duration metric.Float64Histogram
	io       metric.Int64Counter

	mu   sync.RWMutex
	sets map[attributesKey]attributes
}

// attributes are those of one operation with one outcome, ready for use: to sort and hash them at each
// call would cost more than the measurement.
type attributes struct {
	duration []metric.RecordOption
	io       []metric.AddOption
}

// attributesKey distinguishes attributes; operations and outcomes are few.
type attributesKey struct {
	op     string
	result attribute.Key
	word   string
}

// attributesOf returns the attributes of an operation with this outcome.
func (b *Bucket) attributesOf(op string, result attribute.KeyValue) attributes {
	key := attributesKey{op, result.Key, result.Value.AsString()}
	b.mu.RLock()
	a, ok := b.sets[key]
	b.mu.RUnlock()
	if ok {
		return a
	}
	all := slices.Concat(b.common, []attribute.KeyValue{attribute.String("emitd.objects.operation", op), result})
	a.io = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(slices.Clone(all[:len(all)-1])...))}
	a.duration = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(all...))}
	b.mu.Lock()
	b.sets[key] = a
	b.mu.Unlock()
	return a
}

var _ blob.Bucket = (*Bucket)(nil)

// New wraps a bucket.
func New(inner blob.Bucket, c Config) (*Bucket, error) {
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	b := &Bucket{
		inner: inner, config: c, tracer: c.TracerProvider.Tracer(scope), sets: map[attributesKey]attributes{},
		common: []attribute.KeyValue{attribute.String("emitd.objects.system", c.System), attribute.String("emitd.objects.use", c.Use)},
	}
	m := c.MeterProvider.Meter(scope)
	var errs [2]error
	b.duration, errs[0] = m.Float64Histogram("emitd.objects.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of calls to the object store."),
		metric.WithExplicitBucketBoundaries(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))
	b.io, errs[1] = m.Int64Counter("emitd.objects.io", metric.WithUnit("By"), metric.WithDescription("Bytes of objects read and written."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make the object store's instruments: %w", err)
	}
	return b, nil
}

// call is one measured call.
type call struct {
	b     *Bucket
	ctx   context.Context
	op    string
	begun time.Time
	span  trace.Span // nil: not traced
}

func (b *Bucket) begin(ctx context.Context, op, key string) (context.Context, *call) {
	c := &call{b: b, op: op, begun: time.Now()}
	if b.config.Roots || trace.SpanContextFromContext(ctx).IsValid() {
		ctx, c.span = b.tracer.Start(ctx, "objects."+op, trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(b.common...), trace.WithAttributes(attribute.String("emitd.objects.operation", op), attribute.String("emitd.objects.key", key)))
	}
	c.ctx = ctx
	return ctx, c
}

// end records the outcome of the call, and how many bytes it moved.
func (c *call) end(size int, err error) {
	result, failed := outcome(err)
	if c.b.duration.Enabled(c.ctx) {
		a := c.b.attributesOf(c.op, result)
		c.b.duration.Record(c.ctx, time.Since(c.begun).Seconds(), a.duration...)
		if size > 0 && err == nil {
			c.b.io.Add(c.ctx, int64(size), a.io...)
		}
	}
	if c.span == nil {
		return
	}
	c.span.SetAttributes(result, attribute.Int("emitd.objects.size", size))
	if failed {
		c.span.SetStatus(codes.Error, result.Value.AsString())
	}
	c.span.End()
}

// answers are the errors of a bucket that works.
var answers = []struct {
	kind error
	word string
}{
	{blob.ErrExists, "exists"},
	{blob.ErrChanged, "changed"},
	{blob.ErrNotModified, "unchanged"},
	{blob.ErrNotFound, "not_found"},
}

var failures = []struct {
	kind error
	word string
}{
	{blob.ErrDenied, "denied"},
	{blob.ErrNoBucket, "no_bucket"},
	{blob.ErrThrottled, "throttled"},
	{blob.ErrBudget, "budget"},
	{blob.ErrUnavailable, "unavailable"},
	{blob.ErrCorrupt, "corrupt"},
	{blob.ErrTooLarge, "too_large"},
	{blob.ErrUnfit, "unfit"},
	{blob.ErrKey, "bad_key"},
}

// outcome returns the attribute that names the outcome of a call, and whether the call failed. An
// unknown outcome takes precedence over every other kind.
func outcome(err error) (attribute.KeyValue, bool) {
	if err == nil {
		return attribute.String("emitd.outcome", "ok"), false
	}
	if errors.Is(err, blob.ErrUnknownOutcome) {
		return attribute.String("error.type", "unknown_outcome"), true
	}
	for _, a := range answers {
		if errors.Is(err, a.kind) {
			return attribute.String("emitd.outcome", a.word), false
		}
	}
	for _, f := range failures {
		if errors.Is(err, f.kind) {
			return attribute.String("error.type", f.word), true
		}
	}
	return attribute.String("error.type", "_OTHER"), true
}

// read measures a call that returns an object.
func (b *Bucket) read(ctx context.Context, key string, do func(ctx context.Context) (*blob.Object, error)) (*blob.Object, error) {
	ctx, c := b.begin(ctx, "read", key)
	o, err := do(ctx)
	size := 0
	if err == nil {
		size = len(o.Data)
	}
	c.end(size, err)
	return o, err
}

// put measures a call that writes.
func (b *Bucket) put(ctx context.Context, op, key string, size int, do func(ctx context.Context) (blob.Version, error)) (blob.Version, error) {
	ctx, c := b.begin(ctx, op, key)
	v, err := do(ctx)
	c.end(size, err)
	return v, err
}

// Unwrap returns the bucket that is wrapped.
func (b *Bucket) Unwrap() blob.Bucket { return b.inner }

// Read implements blob.Bucket.
func (b *Bucket) Read(ctx context.Context, key string) (*blob.Object, error) {
	return b.read(ctx, key, func(ctx context.Context) (*blob.Object, error) { return b.inner.Read(ctx, key) })
}

// ReadPrefix implements blob.Bucket.
func (b *Bucket) ReadPrefix(ctx context.Context, key string, n int) (*blob.Object, error) {
	return b.read(ctx, key, func(ctx context.Context) (*blob.Object, error) { return b.inner.ReadPrefix(ctx, key, n) })
}

// ReadNewer implements blob.Bucket.
func (b *Bucket) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	return b.read(ctx, key, func(ctx context.Context) (*blob.Object, error) { return b.inner.ReadNewer(ctx, key, known) })
}

// Create implements blob.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	return b.put(ctx, "create", key, len(data), func(ctx context.Context) (blob.Version, error) { return b.inner.Create(ctx, key, data) })
}

// Replace implements blob.Bucket.
func (b *Bucket) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	return b.put(ctx, "replace", key, len(data), func(ctx context.Context) (blob.Version, error) {
		return b.inner.Replace(ctx, key, data, old)
	})
}

// Write implements blob.Bucket.
func (b *Bucket) Write(ctx context.Context, key string, data []byte) (blob.Version, error) {
	return b.put(ctx, "write", key, len(data), func(ctx context.Context) (blob.Version, error) { return b.inner.Write(ctx, key, data) })
}

// List implements blob.Bucket.
func (b *Bucket) List(ctx context.Context, prefix, after string, limit int) (*blob.Page, error) {
	ctx, c := b.begin(ctx, "list", prefix)
	page, err := b.inner.List(ctx, prefix, after, limit)
	c.end(0, err)
	return page, err
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	ctx, c := b.begin(ctx, "delete", key)
	err := b.inner.Delete(ctx, key)
	c.end(0, err)
	return err
}
