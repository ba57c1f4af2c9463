package broker

import (
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// TestCountsArePublished: statistics are published when the ledger has changed, and not more often
// than once a second.
func TestCountsArePublished(t *testing.T) {
	t.Parallel()
	now := time.Now()
	n := counts{begun: now}
	made := 0
	stats := func() *queue.Stats { made++; return &queue.Stats{Waiting: int64(made)} }
	n.publish(now, 1, stats) // the first time at once
	n.publish(now.Add(publishEvery/2), 2, stats)
	if wait, ok := n.untilPublish(now.Add(publishEvery/2), 2); made != 1 || !ok || wait != publishEvery/2 {
		t.Errorf("published %d times, the next time in %v, %t", made, wait, ok)
	}
	now = now.Add(publishEvery)
	n.publish(now, 2, stats)
	if st := n.published.Load(); made != 2 || st.Waiting != 2 {
		t.Errorf("published %d times: %+v", made, st)
	}
	n.publish(now.Add(time.Hour), 2, stats)
	if _, ok := n.untilPublish(now.Add(time.Hour), 2); ok || made != 2 {
		t.Errorf("nothing has changed, and it was published %d times", made)
	}
}

// TestRates: the rates are averages over the last minute, or over the run if that is shorter.
func TestRates(t *testing.T) {
	t.Parallel()
	now := time.Now()
	n := counts{begun: now}
	var st queue.Stats
	if n.addTo(&st, now); st != (queue.Stats{}) || n.rates != nil {
		t.Errorf("an idle shard: %+v", st)
	}
	for second := range 100 {
		at := now.Add(time.Duration(second) * time.Second)
		for range 4 {
			n.record(&ledger.Record{Kind: ledger.Enqueue}, at)
		}
		n.record(&ledger.Record{Kind: ledger.Complete}, at)
		n.record(&ledger.Record{Kind: ledger.Claim}, at)
		if n.addTo(&st, at); st.EnqueueRate != 4 || st.CompleteRate != 1 {
			t.Fatalf("after %d seconds: %+v", second, st)
		}
	}
	n.duplicate()
	if n.addTo(&st, now.Add(129*time.Second)); st.EnqueueRate != 2 || st.CompleteRate != 0.5 || st.Duplicates != 1 {
		t.Errorf("after half a minute without records: %+v", st)
	}
	if n.addTo(&st, now.Add(time.Hour)); st.EnqueueRate != 0 || st.CompleteRate != 0 {
		t.Errorf("after an hour: %+v", st)
	}
}
