package audit

import (
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/queue"
)

// Counts are the jobs of a queue before or after a change.
type Counts struct {
	Waiting int64 `json:"waiting"`
	Delayed int64 `json:"delayed"`
	Active  int64 `json:"active"`
	Dead    int64 `json:"dead"`
	Paused  bool  `json:"paused"`
}

// CountsOf returns the counts of a queue.
func CountsOf(s *queue.Stats) Counts {
	return Counts{s.Waiting, s.Delayed, s.Active, s.Dead, s.Paused}
}

// Lag is the state of a subscription before or after a change.
type Lag struct {
	Pending int64 `json:"pending"`
	Waiting int64 `json:"keys_waiting"`
	Held    int64 `json:"keys_held"`
	Dead    int64 `json:"dead"`
	Paused  bool  `json:"paused"`
}

// LagOf returns the state of a subscription.
func LagOf(s view.OutboxStats) Lag {
	return Lag{s.Pending, s.KeysWaiting, s.KeysHeld, s.Dead, s.Paused}
}
