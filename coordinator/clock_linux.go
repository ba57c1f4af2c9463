package coordinator

import (
	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/coordinator/lease"
)

// bootClock reads CLOCK_BOOTTIME: it never steps and goes on while the machine is suspended, so
// that after a suspend a node knows that its time is over.
func bootClock() lease.Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("coordinator: no clock that counts suspend: " + err.Error()) // every Linux since 2.6.39 has it
	}
	return lease.Instant(ts.Nano())
}
