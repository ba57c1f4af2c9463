//go:build linux || darwin

package bootclock

import (
	"time"

	"golang.org/x/sys/unix"
)

func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("bootclock: no clock that counts the time asleep: " + err.Error()) // every Linux since 2.6.39 and macOS since 10.12 has one
	}
	return time.Duration(ts.Nano())
}
