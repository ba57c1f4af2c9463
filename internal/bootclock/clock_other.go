//go:build !linux && !darwin

package bootclock

import "time"

var start = time.Now()

// now is Go's monotonic clock. Whether it counts the time a machine is suspended depends on the system
// (Windows: yes); where it does not, a laptop that wakes up notices the end of its lease by the store's
// reply instead of by itself, and the fence refuses what it does meanwhile.
func now() time.Duration { return time.Since(start) + 1 }
