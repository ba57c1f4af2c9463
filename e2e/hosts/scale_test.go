package hosts

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkNodes measures what a queue of six shards does on one node, two and three, with the same clients. Each node has
// a network of its own, which is so slow that it is the limit, and not the processors, which all share.
func BenchmarkNodes(b *testing.B) {
	for _, limit := range []string{"store", "all"} {
		for _, c := range []struct{ nodes, clients int }{{1, 128}, {1, 192}, {2, 128}, {3, 128}} {
			b.Run(fmt.Sprintf("limit=%s/nodes=%d/clients=%d", limit, c.nodes, c.clients), func(b *testing.B) {
				config := fleetConfig{nodes: c.nodes, shards: 6, mbit: 2, oneLink: limit == "all", args: []string{"--profile", "fast"}}
				f := newFleet(b, config)
				var runs []figures
				for b.Loop() {
					runs = append(runs, f.bench(config, c.clients, "--size", "4096", "--random", "--duration", "15s"))
				}
				report(b, runs, "jobs/s", "cycle-p50-ms", "link-%", "requests/s", "node-cpu-%", "clients-cpu-%", "store-cpu-%", "machine-idle-%")
			})
		}
	}
}

// What S3 bills in us-east-1 for the storage class Standard, in dollars. Deletions are free.
const (
	dollarsPerWrite = 0.005 / 1000
	dollarsPerRead  = 0.0004 / 1000
	month           = 30 * 24 * time.Hour
)

// BenchmarkCost measures the requests to the object store at given rates of jobs, on one node, and what S3 bills for them.
// 10,000 jobs a second in single calls take more than two cores; TestWritesWithinABudget of queue/broker has their writes.
func BenchmarkCost(b *testing.B) {
	for _, c := range []struct {
		rate, call, clients, shards int // jobs a second, and in each call
		gap                         string
	}{
		{1, 1, 4, 1, "auto"},
		{100, 1, 64, 1, "auto"},
		{100, 1, 64, 6, "auto"},
		{100, 1, 64, 1, "250ms"},
		{10_000, 100, 64, 1, "auto"},
		{10_000, 100, 128, 1, "250ms"},
	} {
		b.Run(fmt.Sprintf("rate=%d/call=%d/shards=%d/min_gap=%s", c.rate, c.call, c.shards, c.gap), func(b *testing.B) {
			config := fleetConfig{nodes: 1, shards: c.shards, args: []string{"--queue.min-gap", c.gap}}
			f := newFleet(b, config)
			length := "20s"
			if c.rate == 1 {
				length = "60s"
			}
			var runs []figures
			for b.Loop() {
				run := f.bench(config, c.clients, "--rate", fmt.Sprint(c.rate/c.call), "--batch", fmt.Sprint(c.call), "--duration", length)
				run["USD/month"] = (run[billedWrite+"s/s"]*dollarsPerWrite + run[billedRead+"s/s"]*dollarsPerRead) * month.Seconds()
				runs = append(runs, run)
			}
			report(b, runs, "jobs/s", "writes/1000jobs", "reads/1000jobs", "USD/month", "submit-p50-ms", "submit-p99-ms", "node-cpu-%", "clients-cpu-%", "store-cpu-%", "machine-idle-%")
		})
	}
}
