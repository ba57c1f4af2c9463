package rules

import (
	"time"

	"github.com/emitd/emitd/daemon"
)

// Record emits an event about what was done elsewhere.
func Record(r Rows, e daemon.Event, now time.Time) {
	r.Emit(daemon.Event{Kind: e.Kind, Reason: e.Reason, Detail: e.Detail}, now)
}
