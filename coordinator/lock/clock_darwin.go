package lock

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootClock reads CLOCK_MONOTONIC_RAW, which on this system counts the time asleep.
func bootClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
		panic("lock: no clock that counts sleep: " + err.Error()) // every macOS since 10.12 has it
	}
	return time.Duration(ts.Nano())
}
