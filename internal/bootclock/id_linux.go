package bootclock

import "golang.org/x/sys/unix"

const id = unix.CLOCK_BOOTTIME
