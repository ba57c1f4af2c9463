//go:build !linux && !darwin

package lock

import "time"

var start = time.Now()

// bootClock reads Go's monotonic clock. Whether it counts the time a machine is suspended depends
// on the system; where it does not, the fence is what refuses a holder that slept.
func bootClock() time.Duration { return time.Since(start) }
