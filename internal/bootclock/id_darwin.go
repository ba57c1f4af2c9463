package bootclock

import "golang.org/x/sys/unix"

// It counts the time asleep on this system, and is not adjusted.
const id = unix.CLOCK_MONOTONIC_RAW
