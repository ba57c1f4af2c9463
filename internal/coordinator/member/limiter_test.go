package member

import (
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
)

// TestSlowStartsCountTogether: what many slow starts do to the limit does not depend on the order of a map, so that a
// storm of the simulator can be repeated.
func TestSlowStartsCountTogether(t *testing.T) {
	t.Parallel()
	for range 100 {
		var s startLimiter
		s.init()
		s.limit = fewestStarts
		for i := range 6 { // three that wait for their fence, and three that do not
			s.slots[daemon.Unit{Daemon: "acme:a", Index: i}] = &slot{window: time.Second, stamped: i%2 == 0}
		}
		s.hasFreeSlot(lease.Instant(0).Add(time.Second))
		if s.limit != fewestStarts {
			t.Fatalf("the limit is %d, want %d", s.limit, fewestStarts)
		}
	}
}
