package main

import "testing"

// TestSideBySide checks both tables of those who deliver the same messages.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	results := parse([]byte(`goos: linux
BenchmarkEndToEnd/nats/rtt=0s/keys=1-2   2   52914 messages/s  86150 poller-messages/s  2000 river-messages/s  0.614 times  300.5 watermill-messages/s
BenchmarkEndToEnd/nats/rtt=2ms/keys=1-2   2   43674 messages/s  55488 poller-messages/s  2000 river-messages/s  0.787 times  75.09 watermill-messages/s
BenchmarkEndToEnd/nats/rtt=2ms/keys=500-2   2   62064 messages/s  31032 poller-messages/s  2000 river-messages/s  2 times  75.09 watermill-messages/s
`))
	const want = "| receiver, round trip, keys | emitd | plain poller | watermill-sql | River | emitd against the fastest of the others |\n|---|---|---|---|---|---|\n" +
		"| nats, rtt=0s, keys=1 | 52 914 | 86 150 | 301 | 2 000 | 0.61× |\n" +
		"| nats, rtt=2ms, keys=1 | 43 674 | 55 488 | 75.1 | 2 000 | 0.79× |\n" +
		"| nats, rtt=2ms, keys=500 | 62 064 | 31 032 | 75.1 | 2 000 | 2.00× |\n"
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
