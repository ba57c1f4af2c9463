package outbox

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/outbox"
)

// TestDrillHeadOfLine puts 10,000 messages of one key, and one of each of 1,000 other keys, at the head
// of the log, and the receiver refuses them all. It compares the latency of other keys with that of a log
// without these messages, in alternating runs. Two sets of runs without them show the machine's own
// variation. While those differ by more than a tenth there are more runs, up to twice as many.
func TestDrillHeadOfLine(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	stuck, bad, good, repeats := 1000, 100, 200, 1
	if drill.Full() {
		stuck, bad, good, repeats = 10_000, 1_000, 2_000, 5
	}
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			drill.ParallelUnlessMeasured(t)
			var without, again, with, behind []time.Duration
			same := func() float64 { return float64(at(0.5, again)) / float64(at(0.5, without)) }
			for len(with) < repeats || drill.Full() && len(with) < 2*repeats && max(same(), 1/same()) > 1.1 {
				took, _ := latency(t, open(t), nil, good)
				without = append(without, at(0.99, took))
				took, first := latency(t, open(t), undeliverable(stuck, bad), good)
				with, behind = append(with, at(0.99, took)), append(behind, first)
				took, _ = latency(t, open(t), nil, good)
				again = append(again, at(0.99, took))
			}
			all := slices.Concat(without, again)
			ratio := float64(at(0.5, with)) / float64(at(0.5, all))
			what := fmt.Sprintf("%s: %d undeliverable messages of one key and of %d more at the head", name, stuck, bad)
			drill.Measure(t, name+": nothing undeliverable, p99 of commit until arrival, by run",
				drill.Bound{Other: fmt.Sprintf("none: the median of every second run is %.2f of that of the others", same())}, all)
			drill.Measure(t, what+", p99 of the other keys, by run", drill.Bound{Other: fmt.Sprintf("± 20 %%: median is %.2f of that without", ratio)}, with)
			drill.Measure(t, what+", commit until arrival of the first message behind them", drill.Bound{}, behind)
			if drill.Full() && (ratio < 0.8 || ratio > 1.2) {
				t.Errorf("the other keys' p99 is %.2f of that without: %v, %v, %v", ratio, with, without, again)
			}
		})
	}
}

// at returns a quantile.
func at(p float64, took []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

// undeliverable returns messages of one key and of other keys, all of which the receiver refuses.
func undeliverable(ofOne, others int) (messages []outbox.Message) {
	for range ofOne {
		messages = append(messages, message("bad"))
	}
	for i := range others {
		messages = append(messages, message(fmt.Sprintf("bad-%d", i)))
	}
	return messages
}

// latency publishes messages five milliseconds apart, behind those that cannot be delivered. It returns
// the time from commit to arrival for each, and for the first.
func latency(t *testing.T, db *database, refused []outbox.Message, n int) (took []time.Duration, first time.Duration) {
	h := newHook(t)
	h.answer = func(key string) int {
		if strings.HasPrefix(key, "bad") {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	}
	c := relays(t, db, h.receiver(), 1)
	defer c.end()
	c.relaying()
	w := write(t, db, 0)
	for batch := range slices.Chunk(refused, 1000) {
		w.publish(batch...)
	}
	began := time.Now()
	one := message("first")
	w.publish(one)
	until(t, time.Minute, "a message behind them arrives", func() bool { _, ok := h.arrived(one.ID); return ok })
	first = time.Since(began)
	lanes := map[string]bool{}
	for _, m := range refused {
		lanes[m.Key] = true
	}
	until(t, time.Minute, "they are parked", func() bool {
		s, ok := db.stats(context.Background())
		return ok && s.ParkedKeys == int64(len(lanes))
	})
	committed := make([]time.Time, n)
	messages := make([]outbox.Message, n)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := range n {
		<-tick.C
		messages[i] = message(fmt.Sprintf("good-%d", i%50))
		w.publish(messages[i])
		committed[i] = time.Now()
	}
	last := messages[n-1]
	until(t, time.Minute, "the last message arrives", func() bool { _, ok := h.arrived(last.ID); return ok })
	for i, m := range messages {
		var arrived time.Time
		until(t, time.Minute, "all messages arrive", func() (ok bool) { arrived, ok = h.arrived(m.ID); return ok })
		took = append(took, max(arrived.Sub(committed[i]), 0))
	}
	return took, first
}
