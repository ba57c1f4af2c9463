package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
)

// measured is a log with statistics.
type measured struct {
	*memLog
	outbox.Operator
	mu    sync.Mutex
	stats outbox.Stats
}

func (l *measured) Stats(_ context.Context, subscription string) ([]outbox.Stats, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if subscription != "sub" {
		return nil, errors.New("asked for others")
	}
	return []outbox.Stats{l.stats}, nil
}

// watched collects the metrics, spans and hook calls of a relay.
type watched struct {
	reader *metric.ManualReader
	spans  *tracetest.SpanRecorder
	mu     sync.Mutex
	events []string
}

func (s *stage) watch() *watched {
	w := &watched{reader: metric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	s.cfg.MeterProvider = metric.NewMeterProvider(metric.WithReader(w.reader))
	s.cfg.TracerProvider = trace.NewTracerProvider(trace.WithSpanProcessor(w.spans))
	note := func(format string, args ...any) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, fmt.Sprintf(format, args...))
	}
	s.cfg.Hooks = outbox.Hooks{
		OnDelivered: func(sub string, rows []outbox.Row) {
			for _, r := range rows {
				note("delivered %s by %s", r.Payload, sub)
			}
		},
		OnFailed: func(sub string, r outbox.Row, err error) {
			note("failed %s@%d by %s: %v", r.Payload, r.Attempt, sub, err)
		},
		OnDeadLettered: func(sub string, r outbox.Row, cause string) { note("dead %s by %s: %s", r.Payload, sub, cause) },
	}
	return w
}

// values returns the metrics by name and attributes other than the subscription: a sum, a gauge, or the
// count of a histogram.
func (w *watched) values(t *testing.T) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := w.reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	put := func(name string, set attribute.Set, v float64) {
		for _, a := range set.ToSlice() {
			switch {
			case a.Key != "emitd.outbox.subscription":
				name += " " + a.Value.String()
			case a.Value.AsString() != "sub":
				t.Errorf("%s of subscription %s", name, a.Value.AsString())
			}
		}
		out[name] = v
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Count))
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return out
}

// TestObserved checks that hooks and metrics report every event once.
func TestObserved(t *testing.T) {
	bubble(t, func(s *stage) {
		w := s.watch()
		s.sink(func(r outbox.Row) error {
			if r.Key == "bad" {
				return errBad
			}
			return nil
		})
		s.cfg.Policy, s.cfg.Retry.MaxAttempts, s.cfg.MaxPoll = outbox.Skip, 2, 10*time.Millisecond
		s.start(1)
		other := m("good", 2)
		other.Topic = "u"
		s.log.publish(m("good", 1), other)
		s.after(time.Second)
		s.log.publish(m("bad", 1))
		s.after(time.Minute)
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		slices.Sort(w.events)
		want := []string{
			"dead bad1 by sub: bad", "delivered good1 by sub", "delivered good2 by sub", "failed bad1@1 by sub: bad", "failed bad1@2 by sub: bad",
		}
		if !slices.Equal(w.events, want) {
			t.Errorf("hooks: %q", w.events)
		}
		got := w.values(t)
		for name, want := range map[string]float64{
			"emitd.outbox.delivery.duration t":        1,
			"emitd.outbox.delivery.duration u":        1,
			"messaging.client.sent.messages":          2,
			"emitd.outbox.publish.duration delivered": 1,
			"emitd.outbox.publish.duration failed":    2,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		if got["emitd.outbox.poll.empty"] < 1 {
			t.Errorf("no empty polls among %q", slices.Collect(maps.Keys(got)))
		}
	})
}

// TestReplaysAreNoDelay checks that replayed messages are counted but not included in the delivery
// duration.
func TestReplaysAreNoDelay(t *testing.T) {
	bubble(t, func(s *stage) {
		w := s.watch()
		s.log.replayed = 2
		s.log.publish(m("a", 1), m("b", 2), m("c", 3))
		s.start(1)
		s.after(time.Second)
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		took, sent := 0.0, 0.0
		for name, v := range w.values(t) {
			switch {
			case strings.HasPrefix(name, "emitd.outbox.delivery.duration"):
				took += v
			case strings.HasPrefix(name, "messaging.client.sent.messages"):
				sent += v
			}
		}
		if took != 1 || sent != 3 {
			t.Errorf("%v of %v messages were measured", took, sent)
		}
	})
}

// TestStateIsMeasured checks that the node with the first unit measures the log's state, as long as it
// has the unit.
func TestStateIsMeasured(t *testing.T) {
	bubble(t, func(s *stage) {
		w := s.watch()
		now := time.Now()
		log := &measured{memLog: s.log, stats: outbox.Stats{
			Subscription: "sub", Pending: 37, Dead: 2, ParkedKeys: 5, HeldKeys: 1, Delayed: 8, Retained: 4096, PartitionsAhead: 3, Now: now, OldestAt: now.Add(-90 * time.Second),
		}}
		s.cfg.Log = log
		r, err := outbox.NewRelay(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("sub")}, Generation: 1}, 1, "n", nil)
		go func() { s.done <- r.Run(context.Background(), a) }()
		s.after(time.Second)
		check := func(when string, want map[string]float64) {
			t.Helper()
			got := w.values(t)
			for name, v := range want {
				if got[name] != v {
					t.Errorf("%s: %s is %v, want %v", when, name, got[name], v)
				}
			}
		}
		check("at first", map[string]float64{
			"emitd.outbox.pending": 37, "emitd.outbox.dead": 2, "emitd.outbox.parked": 5, "emitd.outbox.retained.size": 4096,
			"emitd.outbox.partitions": 3, "emitd.outbox.oldest.age": 90, "emitd.outbox.delayed": 8,
		})
		log.mu.Lock()
		log.stats.Pending, log.stats.OldestAt = 0, time.Time{}
		log.mu.Unlock()
		s.after(time.Minute)
		check("later", map[string]float64{"emitd.outbox.pending": 0, "emitd.outbox.oldest.age": 0})
		a.BeginDrain()
		if err := <-s.done; err != nil {
			t.Error(err)
		}
		if v, there := w.values(t)["emitd.outbox.pending"]; there {
			t.Errorf("another node may have the unit now, and this one still tells %v", v)
		}
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestFencedIsMeasured checks that a relay that is refused is counted.
func TestFencedIsMeasured(t *testing.T) {
	bubble(t, func(s *stage) {
		w := s.watch()
		s.log.sub("sub").epoch = 9
		s.start(5)
		<-s.done
		if n := w.values(t)["emitd.outbox.fenced"]; n != 1 {
			t.Errorf("counted %v", n)
		}
	})
}

// TestSpans checks that every call of the sink is a span that is linked to the producers of its messages
// and names failures.
func TestSpans(t *testing.T) {
	bubble(t, func(s *stage) {
		w := s.watch()
		s.sink(refuse("bad", errBad))
		s.cfg.Parallel = 1
		s.start(7)
		one, two, none := m("a", 1), m("bad", 1), m("c", 1)
		one.TraceParent, one.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b"
		two.TraceParent = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203332-00"
		none.TraceParent = "garbage"
		s.log.publish(one, two, none)
		s.after(time.Millisecond)
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		ended := w.spans.Ended()
		if len(ended) != 1 {
			t.Fatalf("%d spans", len(ended))
		}
		span := ended[0]
		if len(span.Links()) != 2 || span.Name() != "send sub" || span.Status().Code != codes.Error || span.Status().Description != "bad" {
			t.Fatalf("span %q with %d links: %v", span.Name(), len(span.Links()), span.Status())
		}
		for i, want := range []string{"0af7651916cd43dd8448eb211c80319c b7ad6b7169203331 01 a=b", "0af7651916cd43dd8448eb211c80319d b7ad6b7169203332 00 "} {
			link := span.Links()[i].SpanContext
			if got := fmt.Sprint(link.TraceID(), " ", link.SpanID(), " ", link.TraceFlags(), " ", link.TraceState()); got != want || !link.IsRemote() {
				t.Errorf("link %d is %s, want %s", i, got, want)
			}
		}
		var attrs []string
		for _, a := range span.Attributes() {
			attrs = append(attrs, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
		}
		slices.Sort(attrs)
		want := "emitd.generation=7 emitd.outbox.failed=1 emitd.outbox.shards=0-63 emitd.outbox.subscription=sub messaging.batch.message_count=3"
		if got := strings.Join(attrs, " "); got != want {
			t.Errorf("attributes %s\nwant %s", got, want)
		}
	})
}

// TestSpansOfALargeCall checks a call with more messages than a span has room for links: it is several
// spans, which together link each producer once.
func TestSpansOfALargeCall(t *testing.T) {
	bubble(t, func(s *stage) {
		w := s.watch()
		s.sink(refuse("bad", errBad))
		s.cfg.Parallel = 1
		const messages = 2*128 + 44
		var all []outbox.Message
		for i := range messages {
			one := m(fmt.Sprint("k", i), 1)
			one.TraceParent = fmt.Sprintf("00-0af7651916cd43dd8448eb211c8%05x-b7ad6b7169203331-01", i)
			all = append(all, one)
		}
		all = append(all, m("bad", 1)) // it has no producer to link
		s.log.publish(all...)
		s.start(7)
		s.after(time.Millisecond)
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		linked := map[string]int{}
		for _, span := range w.spans.Ended() {
			for _, link := range span.Links() {
				linked[link.SpanContext.TraceID().String()]++
			}
			if span.DroppedLinks() > 0 || span.Status().Code != codes.Error || span.Name() != "send sub" {
				t.Errorf("span %q dropped %d links, status %v", span.Name(), span.DroppedLinks(), span.Status())
			}
		}
		if len(w.spans.Ended()) != 3 || len(linked) != messages {
			t.Errorf("%d spans link %d of %d messages", len(w.spans.Ended()), len(linked), messages)
		}
		for id, n := range linked {
			if n != 1 {
				t.Errorf("%s is linked %d times", id, n)
			}
		}
	})
}

// TestSlowHook checks that events beyond the buffer of a slow hook are counted, that no delivery waits
// for it, and that its panic ends nothing.
func TestSlowHook(t *testing.T) {
	bubble(t, func(s *stage) {
		w := s.watch()
		block := make(chan struct{})
		s.cfg.Hooks.OnDelivered = func(string, []outbox.Row) { <-block; panic("a hook must not end the process") }
		s.cfg.Parallel = 1
		s.start(1)
		for i := range 2000 {
			s.log.publish(m("a", i))
			s.after(5 * time.Millisecond)
		}
		if len(s.came()) != 2000 {
			t.Errorf("%d came", len(s.came()))
		}
		close(block)
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		if n := w.values(t)["emitd.outbox.hook.missed OnDelivered"]; n < 900 || n > 976 {
			t.Errorf("%v events were missed, want about 2000 less the buffer of 1024", n)
		}
	})
}

// TestSlowHookKeepsLittle checks that a hook which does not keep up with large messages holds no more of them than its
// buffer may, and that one event is passed to it however large it is.
func TestSlowHookKeepsLittle(t *testing.T) {
	bubble(t, func(s *stage) {
		block := make(chan struct{})
		var heard atomic.Int64
		s.cfg.Hooks.OnDelivered = func(string, []outbox.Row) { <-block; heard.Add(1) }
		s.start(1)
		large := make([]byte, 4<<20)
		for range 100 {
			s.log.publish(outbox.Message{Topic: "t", Key: "a", Payload: large})
			s.after(5 * time.Millisecond)
		}
		close(block)
		s.after(time.Second)
		if n := heard.Load(); n < 8 || n > 16 {
			t.Errorf("%d of 100 events with 4 MiB were kept, want what fits into 64 MiB", n)
		}
		heard.Store(0)
		many := make([]outbox.Message, 20)
		for i := range many {
			many[i] = outbox.Message{Topic: "t", Key: "a", Payload: large}
		}
		s.log.publish(many...)
		s.after(time.Second)
		if n := heard.Load(); n != 1 {
			t.Errorf("%d events of 80 MiB were kept, want the one", n)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}
