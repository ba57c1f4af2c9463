//go:build !linux && !darwin

package bootclock

import "time"

var start = time.Now()

// now is Go's monotonic clock. Whether it counts the time of a suspend depends on the system
// (Windows: yes). Where it does not, a laptop that wakes up learns of the end of its lease only
// from the store's next reply. Until then the fence refuses its effects.
func now() time.Duration { return time.Since(start) + 1 }
