package coordinator_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
)

// readyz returns the status and the text of /readyz?verbose.
func readyz(c *coordinator.Coordinator) (int, string) {
	w := httptest.NewRecorder()
	admin.Handler(c, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz?verbose", nil))
	return w.Code, w.Body.String()
}

// The leader shows the units that no node can take, since when and why. This makes no node less ready.
func TestUnitsWithoutANodeAreShown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		provider := metric.NewMeterProvider(metric.WithReader(reader))
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2, Configure: func(i int, cfg *coordinator.Config) {
			if i == 0 {
				cfg.MeterProvider = provider
			}
		}})
		c.Register(daemon.Spec{ID: "acme:x"}, worker)
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") >= 0 })
		if c.Leader() != 0 {
			c.Resign()
		}
		advance(time.Minute)
		if status, text := readyz(c.Node(0)); status != 200 || !strings.Contains(text, "[+] units: ok\n") {
			t.Errorf("all units run: %d %s", status, text)
		}
		c.Register(daemon.Spec{ID: "acme:gpu", Instances: 2, Requires: map[string]string{"gpu": "yes"}}, worker)
		advance(time.Minute)
		if c.Leader() != 0 {
			t.Fatal("node-0 does not lead")
		}
		status, text := readyz(c.Node(0))
		for _, want := range []string{"[!] units: no node can run 2; longest acme:gpu/0, since ", ": no eligible node; lacks gpu=yes: node-0, node-1\n", "\nok\n"} {
			if status != 200 || !strings.Contains(text, want) {
				t.Errorf("%d %s, want %s", status, text, want)
			}
		}
		if status, text := readyz(c.Node(1)); status != 200 || strings.Contains(text, "units") {
			t.Errorf("a follower makes no plan, but says %d %s", status, text)
		}
		got := collect(t, reader)
		if n := byAttribute(t, got["emitd.assignment.unplaceable"], "emitd.unplaceable.reason"); n["labels"] != 2 || n["embargoed"] != 0 {
			t.Errorf("unplaceable: %v", n)
		}
		age, ok := got["emitd.assignment.unplaceable.age"].Data.(metricdata.Gauge[float64])
		if !ok || len(age.DataPoints) != 1 || age.DataPoints[0].Value < 30 || age.DataPoints[0].Value > 61 {
			t.Errorf("age: %+v", age)
		}
		c.Expire()
		if n := collect(t, reader)["emitd.assignment.unplaceable"]; n.Data != nil {
			t.Errorf("a node that does not lead tells of %v", n.Data)
		}
	})
}

// A unit whose runs fail again and again is counted as crashing, not as active.
func TestCrashingUnitsAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		provider := metric.NewMeterProvider(metric.WithReader(reader))
		c := coordinatortest.New(t, coordinatortest.Config{Configure: func(_ int, cfg *coordinator.Config) { cfg.MeterProvider = provider }})
		c.Register(daemon.Spec{ID: "acme:fine"}, worker)
		c.Register(daemon.Spec{ID: "acme:broken", MaxFailures: -1}, daemon.AgentFunc(func(context.Context, *daemon.Assignment) error {
			return errors.New("boom")
		}))
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:fine/0") >= 0 && c.Holder("acme:broken/0") >= 0 })
		advance(2 * time.Minute)
		n := byAttribute(t, collect(t, reader)["emitd.assignment.count"], "emitd.assignment.state")
		if n["crashing"] != 1 || n["active"] != 1 {
			t.Errorf("assignments: %v", n)
		}
	})
}
