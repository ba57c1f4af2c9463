// Package garbage bounds the garbage that accumulates between two collections of the process.
//
// With Go's default, the heap doubles before it is collected. A gigabyte of waiting jobs would be accompanied by a
// gigabyte of garbage.
package garbage

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// DefaultLimit is the limit of the program.
const DefaultLimit = 384 << 20

// goPercent is Go's default: the percentage of the live objects by which the heap may grow.
const goPercent = 100

// Limit sets how many bytes the process may allocate between two collections, for as long as it lives. With fewer live
// objects it is as much as these have, as by default. Limit does nothing if the variable GOGC is set. A memory limit of
// the process holds, too.
func Limit(bytes uint64) {
	if os.Getenv("GOGC") == "" {
		(&collection{&tuner{limit: bytes, percent: goPercent}}).ended()
	}
}

// collection is an object without references: each collection finds it and runs its finalizer.
type collection struct{ tuner *tuner }

// ended runs after a collection.
func (c *collection) ended() {
	c.tuner.adjust()
	runtime.SetFinalizer(c, (*collection).ended)
}

// tuner sets the percentage by which the heap may grow.
type tuner struct {
	limit   uint64
	percent int // that is set
	samples [3]metrics.Sample
}

// adjust sets the percentage for the live objects that the last collection found. To set it stops the process for a
// moment, so small differences are left.
func (t *tuner) adjust() {
	for i, name := range []string{"/gc/heap/live:bytes", "/gc/scan/stack:bytes", "/gc/scan/globals:bytes"} {
		t.samples[i].Name = name
	}
	metrics.Read(t.samples[:])
	percent := percentOf(t.limit, t.samples[0].Value.Uint64(), t.samples[1].Value.Uint64()+t.samples[2].Value.Uint64())
	if difference := percent - t.percent; max(difference, -difference) > t.percent/16 {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentOf returns the percentage for so many bytes of live objects, and of stacks and global variables: the percentage is
// of both.
func percentOf(limit, live, roots uint64) int {
	if live+roots <= limit {
		return goPercent
	}
	return int(max(1, limit*goPercent/(live+roots)))
}
