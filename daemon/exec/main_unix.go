//go:build linux || darwin

package exec

import (
	"os"
	"slices"
	"sync/atomic"
)

// The roles in which the binary starts itself; each is the first argument of its process.
const (
	roleGuardian = "emit-guardian"
	roleReaper   = "emit-reaper"
)

// The other arguments.
const (
	argNoCgroup = "-no-cgroup" // use no control groups; for tests
	argLock     = "-lock"      // a lock file was inherited
)

// hooked is set once GuardianMain was called. Without that call, starting a guardian would start
// another copy of the program itself, so no guardian is started then.
var hooked atomic.Bool

// GuardianMain must be the first call in main of every program that runs commands, and in TestMain
// of their tests. In the program itself it returns at once. In a process that was started as
// guardian or reaper, it does that work and does not return.
func GuardianMain() {
	hooked.Store(true)
	switch os.Args[0] {
	case roleGuardian:
		os.Exit(guardianMain(!slices.Contains(os.Args[1:], argNoCgroup)))
	case roleReaper:
		os.Exit(reaperMain(os.Args[1:]))
	}
}
