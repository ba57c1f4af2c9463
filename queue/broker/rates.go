package broker

import (
	"time"

	"github.com/emitd/emitd/queue/internal/ledger"
)

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
