// Package bootclock reads the clock of the machine that never steps and, where the system has one, goes
// on while the machine is suspended: whoever slept knows afterwards that its time is over.
package bootclock

import "time"

// Now returns the time since some moment before the program began, the same one for all programs of a
// boot where the system has such a clock (Linux, macOS). It is never zero.
func Now() time.Duration { return now() }
