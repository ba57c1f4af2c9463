package sim

import (
	"testing"
	"time"
)

// BenchmarkSim simulates days of five nodes with the default profile and every kind of fault. It
// prints how much faster than real time that is.
func BenchmarkSim(b *testing.B) {
	virtual, seed := time.Duration(0), uint64(0)
	for b.Loop() {
		seed++
		r, err := Run(Config{Seed: seed, Nodes: 5, Faults: All})
		if err != nil {
			b.Logf("seed %d: %.300v", seed, err)
			continue
		}
		virtual += r.Config.Duration
	}
	b.ReportMetric(virtual.Seconds()/b.Elapsed().Seconds(), "×realtime")
}
