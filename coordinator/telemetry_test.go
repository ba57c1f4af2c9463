package coordinator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// collect reads all metrics of this package by name.
func collect(t *testing.T, r metric.Reader) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name == "github.com/emitd/emitd/coordinator" {
			for _, m := range scope.Metrics {
				out[m.Name] = m
			}
		}
	}
	return out
}

// Every metric of the catalogue exists after a test in which everything happens. It has its unit,
// the cluster's name, and boundaries that fit seconds.
func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		provider := metric.NewMeterProvider(metric.WithReader(reader))
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2, Configure: func(i int, cfg *coordinator.Config) {
			if i == 0 {
				cfg.MeterProvider = provider
			}
			var seen record[string]
			cfg.Hooks = recording(&seen)
		}})
		c.Register(daemon.Spec{ID: "acme:x", Instances: 4}, worker)
		c.WaitUntil("they run", func() bool { return c.Holder("acme:x/3") >= 0 })
		if c.Leader() != 0 {
			c.Resign()
		}
		c.Expire() // 0 → 1
		c.WaitUntil("node-0 is back", func() bool { return c.Node(0).Status().SinceAnswer < time.Second })
		c.Expire() // 1 → 0, leaderless for a while
		c.WaitUntil("node-1 is back", func() bool { return c.Node(1).Status().SinceAnswer < time.Second })
		c.Kill(1)
		c.WaitUntil("all run on node-0", func() bool {
			for i := range 4 {
				if c.Holder(daemon.Unit{Daemon: "acme:x", Index: i}.String()) != 0 {
					return false
				}
			}
			return true
		})
		advance(5 * time.Second)
		got := collect(t, reader)
		for name, unit := range map[string]string{
			"emitd.coordinator.leader": "{leader}", "emitd.coordinator.term": "{term}", "emitd.coordinator.transitions": "{transition}",
			"emitd.coordinator.election.duration": "s", "emitd.coordinator.leaderless.duration": "s", "emitd.lease.renew.duration": "s",
			"emitd.lease.trust.remaining": "s", "emitd.node.count": "{node}", "emitd.node.heartbeat.duration": "s", "emitd.node.clock.offset": "s",
			"emitd.assignment.count": "{assignment}", "emitd.assignment.transitions": "{transition}",
			"emitd.assignment.acknowledge.duration": "s", "emitd.assignment.unowned.duration": "s", "emitd.observer.duration": "s",
		} {
			if m, ok := got[name]; !ok || m.Unit != unit || m.Description == "" {
				t.Errorf("%s: there %v, unit %q", name, ok, m.Unit)
			}
		}
		for name, m := range got {
			if h, ok := m.Data.(metricdata.Histogram[float64]); ok {
				if b := h.DataPoints[0].Bounds; b[0] <= 0 || b[0] >= 1 {
					t.Errorf("%s has the default boundaries %v", name, b)
				}
			}
		}
		if v := value(t, got["emitd.coordinator.leader"]); v != 1 {
			t.Errorf("leader is %d", v)
		}
		counts := byAttribute(t, got["emitd.assignment.count"], "emitd.assignment.state")
		if counts["active"] != 4 || counts["unassigned"] != 0 {
			t.Errorf("assignments: %v", counts)
		}
		if n := byAttribute(t, got["emitd.node.count"], "emitd.node.state"); n["live"] != 1 {
			t.Errorf("nodes: %v", n)
		}
		if tr := byAttribute(t, got["emitd.coordinator.transitions"], "emitd.transition.reason"); tr["elected"] < 2 || tr["trust_lost"]+tr["passes_failed"] < 1 {
			t.Errorf("transitions: %v", tr)
		}
		if r := byAttribute(t, got["emitd.assignment.transitions"], "reason"); r["node_lost"] == 0 || r["assign"] == 0 {
			t.Errorf("assignment transitions: %v", r)
		}
	})
}

func value(t *testing.T, m metricdata.Metrics) int64 {
	t.Helper()
	g, ok := m.Data.(metricdata.Gauge[int64])
	if !ok || len(g.DataPoints) != 1 {
		t.Fatalf("%s is %T", m.Name, m.Data)
	}
	if v, ok := g.DataPoints[0].Attributes.Value("emitd.cluster.name"); !ok || v.AsString() != "test" {
		t.Errorf("%s does not name the cluster", m.Name)
	}
	return g.DataPoints[0].Value
}

func byAttribute(t *testing.T, m metricdata.Metrics, key string) map[string]int64 {
	t.Helper()
	s, ok := m.Data.(metricdata.Sum[int64])
	if !ok {
		t.Fatalf("%s is %T", m.Name, m.Data)
	}
	out := map[string]int64{}
	for _, p := range s.DataPoints {
		for _, kv := range p.Attributes.ToSlice() {
			if string(kv.Key) == key {
				out[kv.Value.AsString()] += p.Value
			}
		}
	}
	return out
}

// The metrics of a node that has stopped are no longer collected.
func TestMetricsEndWithRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		c := coordinatortest.New(t, coordinatortest.Config{Configure: func(_ int, cfg *coordinator.Config) {
			cfg.MeterProvider = metric.NewMeterProvider(metric.WithReader(reader))
		}})
		c.Elect()
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		if _, ok := collect(t, reader)["emitd.coordinator.leader"]; ok {
			t.Error("a stopped node still tells whether it leads")
		}
	})
}

// Spans are recorded for elections that were won, for renewals that failed or were slow, and for
// every commit.
func TestSpans(t *testing.T) {
	bubble(t, func(t *testing.T) {
		spans := &record[string]{}
		c, taps := tapped(t, coordinatortest.Config{Configure: func(_ int, cfg *coordinator.Config) {
			cfg.TracerProvider = tracers{names: spans}
		}})
		c.Elect()
		c.Register(daemon.Spec{ID: "acme:x"}, worker)
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") == 0 })
		advance(10 * time.Second)
		if spans.count("emitd.elect") != 1 || spans.count("emitd.renew") != 0 || spans.count("emitd.reconcile") == 0 {
			t.Errorf("spans: %v", spans.all())
		}
		taps[0].set(func(_ context.Context, op string, _ any, _ error) error {
			if op == "heartbeat" {
				return storage.ErrUnavailable
			}
			return nil
		}, nil)
		advance(2 * time.Second)
		if spans.count("emitd.renew") == 0 {
			t.Error("a failed renewal makes no span")
		}
		taps[0].set(nil, nil)
	})
}

type tracers struct {
	embedded.TracerProvider
	names *record[string]
}

func (p tracers) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{names: p.names} }

type tracer struct {
	embedded.Tracer
	names *record[string]
}

func (tr tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	tr.names.add(name)
	return noop.NewTracerProvider().Tracer("").Start(ctx, name, opts...)
}

// The log has what people need to know, with the keys that they search for.
func TestLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var text bytes.Buffer
		var mu sync.Mutex
		c, taps := tapped(t, coordinatortest.Config{Configure: func(_ int, cfg *coordinator.Config) {
			cfg.Logger = slog.New(slog.NewJSONHandler(&locked{mu: &mu, b: &text}, nil))
		}})
		c.Register(daemon.Spec{ID: "acme:x"}, worker)
		c.Register(daemon.Spec{ID: "acme:gpu", Instances: 500, Requires: map[string]string{"gpu": "yes"}}, worker)
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") == 0 })
		taps[0].set(func(context.Context, string, any, error) error { return storage.ErrUnavailable }, nil)
		advance(30 * time.Second)
		taps[0].set(nil, nil)
		c.Elect()
		advance(30 * time.Second)
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		lines := map[string][]map[string]any{}
		for l := range strings.Lines(text.String()) {
			var line map[string]any
			if err := json.Unmarshal([]byte(l), &line); err != nil {
				t.Fatal(err)
			}
			msg := line["msg"].(string)
			lines[msg] = append(lines[msg], line)
			if line["cluster"] != "test" || line["node"] != "node-0" {
				t.Errorf("a line without cluster and node: %s", l)
			}
		}
		for msg, keys := range map[string][]string{
			"leader elected: this node leads":        {"term", "term_ordinal"},
			"leader lost: this node no longer leads": {"term", "reason"},
			"node joined":                            {"peer"},
			"daemon started":                         {"daemon", "generation"},
			"daemon stopped":                         {"daemon", "reason"},
			"no node can run the daemon":             {"daemon", "reason"},
			"heartbeat fails":                        {"error"},
			"heartbeat succeeds again":               {"after"},
		} {
			if len(lines[msg]) == 0 {
				t.Errorf("nothing says %q", msg)
				continue
			}
			for _, k := range keys {
				if _, ok := lines[msg][0][k]; !ok {
					t.Errorf("%q has no %s", msg, k)
				}
			}
		}
		if n := len(lines["heartbeat fails"]); n > 12 {
			t.Errorf("30 s of failing heartbeats made %d lines", n)
		}
		if n := len(lines["no node can run the daemon"]); n > 3 {
			t.Errorf("one daemon without a node made %d lines", n)
		}
		if r := lines["no node can run the daemon"]; len(r) > 0 && !strings.Contains(r[0]["reason"].(string), "lacks gpu=yes") {
			t.Errorf("the reason is %q", r[0]["reason"])
		}
	})
}
