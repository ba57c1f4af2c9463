package supervisor

import (
	"testing"

	"github.com/emitd/emitd/daemon"
)

func TestMetricID(t *testing.T) {
	t.Parallel()
	for id, want := range map[daemon.ID]string{
		"emit:queue/orders":          "emit:queue",
		"emit:queue/orders@shop":     "emit:queue@shop",
		"emit:sweeper":               "emit:sweeper",
		"emit:sweeper@shop":          "emit:sweeper@shop",
		"acme:import/eu":             "acme:import/eu",
		"acme:import/eu@shop":        "acme:import/eu@shop",
		"emitter:reports/for/a/year": "emitter:reports/for/a/year",
	} {
		if got := MetricID(id).Value.AsString(); got != want {
			t.Errorf("%s: got %s, want %s", id, got, want)
		}
	}
}
