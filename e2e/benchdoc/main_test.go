package main

import (
	"strings"
	"testing"
)

// TestSideBySide checks both tables of those who deliver the same messages.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	results := parse([]byte(`goos: linux
BenchmarkEndToEnd/nats/rtt=0s/keys=1-2   2   52914 messages/s  84000 alike-messages/s  86150 poller-messages/s  2000 river-messages/s  0.614 times  300.5 watermill-messages/s
BenchmarkEndToEnd/nats/rtt=2ms/keys=1-2   2   43674 messages/s  44000 alike-messages/s  55488 poller-messages/s  2000 river-messages/s  0.787 times  75.09 watermill-messages/s
BenchmarkEndToEnd/nats/rtt=2ms/keys=500-2   2   62064 messages/s  31000 alike-messages/s  31032 poller-messages/s  2000 river-messages/s  2 times  75.09 watermill-messages/s
`))
	const want = "| receiver, round trip, keys | emitd | plain poller | watermill-sql | River | emitd against the fastest of the others | plain poller, headers as emitd's |\n|---|---|---|---|---|---|---|\n" +
		"| nats, rtt=0s, keys=1 | 52 914 | 86 150 | 301 | 2 000 | 0.61× | 84 000 |\n" +
		"| nats, rtt=2ms, keys=1 | 43 674 | 55 488 | 75.1 | 2 000 | 0.79× | 44 000 |\n" +
		"| nats, rtt=2ms, keys=500 | 62 064 | 31 032 | 75.1 | 2 000 | 2.00× | 31 000 |\n"
	if got := sideBySide(results); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	const short = "| messages/s, one key / 500 keys | emitd | plain poller | watermill-sql | River |\n|---|---|---|---|---|\n" +
		"| nats | 43 674 / 62 064 | 55 488 / 31 032 | 75.1 / 75.1 | 2 000 / 2 000 |\n"
	const cost = "| a message, without a round trip, 500 keys | emitd | plain poller |\n|---|---|---|\n| nats | 12.3 µs, 1 234 bytes | 10 µs, 999 bytes |\n"
	costly := parse([]byte("BenchmarkEndToEnd/nats/rtt=0s/keys=500-2   2   12.34 cpu-µs/message  1234 allocated-B/message  10 poller-cpu-µs/message  999 poller-allocated-B/message\n"))
	if got := costs(costly); got != cost {
		t.Errorf("%s\nwant\n%s", got, cost)
	}
	if got := inShort(results); got != short {
		t.Errorf("%s\nwant\n%s", got, short)
	}
}

// TestCurve checks the table and the drawing of a queue on several nodes, and the table of its cost.
func TestCurve(t *testing.T) {
	t.Parallel()
	got := curve(parse([]byte(`BenchmarkNodes/limit=store/nodes=1/clients=128-2  3  3.2 clients-cpu-%  1936 cycle-p50-ms  20 jobs/s  19 least-jobs/s  95.8 link-%  4.4 machine-idle-%  21 most-jobs/s  8.4 node-cpu-%  57.6 requests/s  3.3 store-cpu-%
BenchmarkNodes/limit=store/nodes=2/clients=128-2  3  6.4 clients-cpu-%  934 cycle-p50-ms  39 jobs/s  38.5 least-jobs/s  89.7 link-%  0.3 machine-idle-%  40 most-jobs/s  10.3 node-cpu-%  71.6 requests/s  3.4 store-cpu-%
`)))
	const want = "| slow link | nodes | clients | jobs/s: median (least to most) | times one node | a job takes, p50 | link busy | requests/s | processor of a node, clients, store | idle |\n|---|---|---|---|---|---|---|---|---|---|\n" +
		"| to the store | 1 | 128 | 20 (19 to 21) | 1.00 | 1 936 ms | 96 % | 57.6 | 8 %, 3 %, 3 % | 4 % |\n" +
		"| to the store | 2 | 128 | 39 (38.5 to 40) | 1.95 | 934 ms | 90 % | 71.6 | 10 %, 6 %, 3 % | 0 % |\n" +
		"\n```\n" +
		"slow link to the store   nodes: 1, clients: 128  █████ 20 jobs/s\n" +
		"slow link to the store   nodes: 2, clients: 128  ██████████ 39 jobs/s\n```\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	const cost = "| rate=1, call=1 | 1.02 | 2 033 | 66.7 | 26.5 | 24 ms | 154 ms | 1 %, 0 %, 0 % | 3 % |\n"
	if got := bill(parse([]byte("BenchmarkCost/rate=1/call=1-2  3  26.5 USD/month  0.1 clients-cpu-%  1.02 jobs/s  2.6 machine-idle-%  0.75 node-cpu-%  66.7 reads/1000jobs  0.2 store-cpu-%  24 submit-p50-ms  154 submit-p99-ms  2033 writes/1000jobs\n"))); !strings.HasSuffix(got, cost) {
		t.Errorf("%s\nwant at the end\n%s", got, cost)
	}
}
