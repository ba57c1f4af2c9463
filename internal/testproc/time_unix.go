//go:build unix

package testproc

import (
	"syscall"
	"time"
)

// ProcessTime returns the processor time of this process so far, 0 if it is unknown. On a machine that also does
// other things, it says more than the elapsed time.
func ProcessTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
