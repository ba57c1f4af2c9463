//go:build unix

package sqlitelog

import (
	"syscall"
	"time"
)

// cpu is what the process has used of the processors so far: on a shared machine it says more than
// the time that passed.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
