package broker

import (
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// publishEvery is how often a shard's counts are published at most.
const publishEvery = time.Second

// counts is what a shard tells about itself: how much happened in the last minute, and the statistics
// that metrics read. The shard's goroutine owns it, except published.
type counts struct {
	begun    time.Time // start of this run, by the local clock
	rejected int       // records that the takeover's replay rejected (ledger.ErrVoid); expected to be 0
	// rates is nil until there is something to count: a process may have thousands of shards,
	// most of them idle.
	rates *rates

	published       atomic.Pointer[queue.Stats]
	publishedAt     time.Time
	publishedChange uint64 // the ledger's number of changes at that time
}

// record counts a record that is applied.
func (n *counts) record(r *ledger.Record, now time.Time) { n.active().count(r, now) }

// duplicate counts a job that was submitted before.
func (n *counts) duplicate() { n.active().duplicates++ }

func (n *counts) active() *rates {
	if n.rates == nil {
		n.rates = &rates{begun: n.begun}
	}
	return n.rates
}

// addTo adds the rates to the statistics.
func (n *counts) addTo(st *queue.Stats, now time.Time) {
	if n.rates != nil {
		st.Duplicates = n.rates.duplicates
		st.EnqueueRate, st.CompleteRate = n.rates.perSecond(now)
	}
}

// publish publishes the statistics for metrics if the ledger has changed since the last time, at most
// once per publishEvery. changes is the ledger's number of changes.
func (n *counts) publish(now time.Time, changes uint64, stats func() *queue.Stats) {
	if n.publishedChange != changes && now.Sub(n.publishedAt) >= publishEvery {
		n.published.Store(stats())
		n.publishedAt, n.publishedChange = now, changes
	}
}

// untilPublish returns how long it is until publish has something to do; ok is false if the ledger has
// not changed.
func (n *counts) untilPublish(now time.Time, changes uint64) (wait time.Duration, ok bool) {
	return max(0, publishEvery-now.Sub(n.publishedAt)), n.publishedChange != changes
}

// rates counts what happened in each second of the last minute.
type rates struct {
	begun      time.Time
	second     int64 // the newest second that was counted
	enqueued   [rateSeconds]uint32
	completed  [rateSeconds]uint32
	duplicates int64
}

const rateSeconds = 60

func (r *rates) count(rec *ledger.Record, now time.Time) {
	switch rec.Kind {
	case ledger.Enqueue:
		r.enqueued[r.slot(now)]++
	case ledger.Complete:
		r.completed[r.slot(now)]++
	default:
	}
}

// slot returns the array index of the current second, and clears the seconds since the last call.
func (r *rates) slot(now time.Time) int {
	if r.begun.IsZero() {
		r.begun = now
	}
	second := int64(now.Sub(r.begun) / time.Second)
	for n := max(r.second+1, second-rateSeconds+1); n <= second; n++ {
		r.enqueued[n%rateSeconds], r.completed[n%rateSeconds] = 0, 0
	}
	r.second = max(r.second, second)
	return int(second % rateSeconds)
}

// perSecond returns the averages over the last minute, or over the time since begun if that is
// shorter.
func (r *rates) perSecond(now time.Time) (enqueued, completed float64) {
	r.slot(now)
	for i := range rateSeconds {
		enqueued += float64(r.enqueued[i])
		completed += float64(r.completed[i])
	}
	over := float64(min(r.second+1, rateSeconds))
	return enqueued / over, completed / over
}
