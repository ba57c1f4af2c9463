//go:build !linux

package coordinator

import (
	"time"

	"github.com/emitd/emitd/coordinator/lease"
)

var start = time.Now()

// bootClock reads Go's monotonic clock. Whether it counts the time a machine is suspended depends
// on the system (Windows: yes; macOS: no): there, a laptop that wakes up notices the end of its
// lease by the store's reply instead of by itself, and the fence refuses what it does meanwhile.
func bootClock() lease.Instant { return lease.Instant(time.Since(start)) + 1 }
