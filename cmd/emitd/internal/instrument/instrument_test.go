package instrument_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/emitd/emitd/cmd/emitd/internal/instrument"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
)

// TestConformance: measuring a bucket does not change its behaviour.
func TestConformance(t *testing.T) {
	t.Parallel()
	blobtest.Run(t, blobtest.Config{Open: func(t *testing.T) func() blob.Bucket {
		inner := mem.New(mem.Config{})
		return func() blob.Bucket {
			b, err := instrument.New(inner, instrument.Config{System: "mem"})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}})
}

const secret = "hunter2"

// leaky refuses to read one key, with an error that contains a secret.
type leaky struct{ *mem.Bucket }

// Read implements blob.Bucket.
func (l leaky) Read(ctx context.Context, key string) (*blob.Object, error) {
	if key == "leaky" {
		return nil, fmt.Errorf("%w: password=%s", blob.ErrDenied, secret)
	}
	return l.Bucket.Read(ctx, key)
}

// watched is a bucket in memory whose metrics and spans are recorded.
type watched struct {
	*instrument.Bucket
	inner  *mem.Bucket
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer *sdktrace.TracerProvider
}

func watch(t *testing.T, roots bool) *watched {
	t.Helper()
	w := &watched{inner: mem.New(mem.Config{}), reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	w.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans))
	b, err := instrument.New(leaky{w.inner}, instrument.Config{
		System: "mem", Use: "queues", Roots: roots,
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader)), TracerProvider: w.tracer,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Bucket = b
	return w
}

// counted returns how many calls were recorded by operation and outcome, and the bytes by operation.
func (w *watched) counted(t *testing.T) (calls map[string]uint64, bytes map[string]int64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := w.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	calls, bytes = map[string]uint64{}, map[string]int64{}
	word := func(s attribute.Set, names ...string) string {
		out := make([]string, len(names))
		for i, n := range names {
			v, _ := s.Value(attribute.Key(n))
			out[i] = v.AsString()
		}
		return strings.Join(out, " ")
	}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					calls[word(p.Attributes, "emitd.objects.operation", "emitd.outcome", "error.type")] += p.Count
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					bytes[word(p.Attributes, "emitd.objects.operation")] += p.Value
				}
			}
		}
	}
	return calls, bytes
}

// TestMetrics: each call is counted once, with its operation and outcome.
func TestMetrics(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t, false), t.Context()
	v, err := w.Create(ctx, "a", []byte("12345"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Create(ctx, "a", []byte("12345"))
	_, _ = w.Replace(ctx, "a", []byte("1234567"), v)
	_, _ = w.Replace(ctx, "a", []byte("x"), v)
	o, _ := w.Read(ctx, "a")
	_, _ = w.ReadNewer(ctx, "a", o.Version)
	_, _ = w.ReadPrefix(ctx, "a", 2)
	_, _ = w.Read(ctx, "none")
	_, _ = w.Read(ctx, "..")
	_, _ = w.Write(ctx, "b", []byte("123"))
	_, _ = w.List(ctx, "", "", 0)
	_ = w.Delete(ctx, "a")
	w.inner.Inject(mem.Create, "", mem.Fault{Kind: mem.LostReply})
	_, _ = w.Create(ctx, "c", []byte("1"))
	calls, bytes := w.counted(t)
	want := map[string]uint64{
		"create ok ": 1, "create exists ": 1, "replace ok ": 1, "replace changed ": 1, "read ok ": 2, "read unchanged ": 1,
		"read not_found ": 1, "read  bad_key": 1, "write ok ": 1, "list ok ": 1, "delete ok ": 1, "create  unknown_outcome": 1,
	}
	if fmt.Sprint(calls) != fmt.Sprint(want) {
		t.Errorf("calls %v\nwant  %v", calls, want)
	}
	if fmt.Sprint(bytes) != fmt.Sprint(map[string]int64{"create": 5, "replace": 7, "read": 9, "write": 3}) {
		t.Errorf("bytes %v", bytes)
	}
}

// TestSpans: calls of a traced caller are traced, others only if Roots is set. Spans contain no
// part of an error's text.
func TestSpans(t *testing.T) {
	t.Parallel()
	w := watch(t, false)
	if _, err := w.Create(t.Context(), "a", nil); err != nil {
		t.Fatal(err)
	}
	if n := len(w.spans.Ended()); n != 0 {
		t.Errorf("%d spans of nobody's", n)
	}
	ctx, parent := w.tracer.Tracer("test").Start(t.Context(), "caller")
	_, _ = w.Create(ctx, "a", []byte("1"))
	_, _ = w.Read(ctx, "leaky")
	parent.End()
	ended := w.spans.Ended()
	if len(ended) != 3 {
		t.Fatalf("%d spans", len(ended))
	}
	if s := ended[0]; s.Name() != "objects.create" || s.Parent().SpanID() != parent.SpanContext().SpanID() || s.Status().Code != codes.Unset {
		t.Errorf("%s of %v: %v", s.Name(), s.Parent().SpanID(), s.Status())
	}
	if s := ended[1]; s.Status() != (sdktrace.Status{Code: codes.Error, Description: "denied"}) {
		t.Errorf("%s: %v", s.Name(), s.Status())
	}
	for _, s := range ended {
		if text := fmt.Sprint(s.Attributes(), s.Events(), s.Status()); strings.Contains(text, secret) {
			t.Errorf("%s tells a secret: %s", s.Name(), text)
		}
	}
	roots := watch(t, true)
	if _, err := roots.Read(context.Background(), "a"); !errors.Is(err, blob.ErrNotFound) {
		t.Error(err)
	}
	if n := len(roots.spans.Ended()); n != 1 {
		t.Errorf("%d roots", n)
	}
}
