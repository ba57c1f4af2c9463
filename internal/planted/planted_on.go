//go:build planted

package planted

import (
	"os"
	"slices"
	"sync/atomic"
)

// Enabled says whether this build can switch bugs on.
const Enabled = true

// Variable names the bug that is on from the start of a process: for tests that run others, which
// know nothing of bugs.
const Variable = "EMITD_TEST_PLANTED_BUG"

var (
	on    = start()
	asked atomic.Bool
)

func start() *atomic.Pointer[string] {
	var p atomic.Pointer[string]
	if name, ok := os.LookupEnv(Variable); ok {
		p.Store(&name)
	}
	return &p
}

// On switches exactly one bug on, and all others off; "" switches all off. It panics for a name
// that is not listed. The switch is of the whole process: a test that uses it does not run in
// parallel with others.
func On(name string) {
	if name != "" && !slices.ContainsFunc(slices.Concat(Bugs(), QueueBugs(), StoreBugs()), func(i Info) bool { return i.Name == name }) {
		panic("planted: no bug is named " + name)
	}
	asked.Store(false)
	on.Store(&name)
}

// Bug reports whether the named bug is switched on.
func Bug(name string) bool {
	p := on.Load()
	if p == nil || *p != name || name == "" {
		return false
	}
	asked.Store(true)
	return true
}

// Asked reports whether any code has asked for the bug since it was switched on.
func Asked() bool { return asked.Load() }
