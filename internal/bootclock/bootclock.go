// Package bootclock reads a clock of the machine that never steps and, where the system has one,
// also runs while the machine is suspended. After a suspend, a process therefore knows how much
// time has passed.
package bootclock

import "time"

// Now returns the time since some moment before the program began. Where the system has such a
// clock (Linux, macOS), that moment is the same for all programs of a boot. The result is never
// zero.
func Now() time.Duration { return now() }
