package lock

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootClock reads CLOCK_BOOTTIME: it never steps and goes on while the machine is suspended.
func bootClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("lock: no clock that counts suspend: " + err.Error()) // every Linux since 2.6.39 has it
	}
	return time.Duration(ts.Nano())
}
