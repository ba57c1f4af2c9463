package sim

import (
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
)

// clock is the clock of a machine. It counts from its own origin, slightly fast or slow, never
// steps, and counts suspended time. It does not count while the machine itself is stopped from
// outside, as a hypervisor does. Nothing in the machine can notice that.
type clock struct {
	offset int64         // reading at the beginning of the world
	ppm    int64         // how much it is fast, in millionths
	missed time.Duration // for how long it has stood still
}

// maxPPM is half of the largest difference of clock rates that package lease allows for.
const maxPPM = 500

// at returns the reading at a real time.
func (c clock) at(real time.Duration) lease.Instant {
	r := int64(real - c.missed)
	return lease.Instant(c.offset + r + r/1e6*c.ppm + r%1e6*c.ppm/1e6)
}

// real returns the first real time at which the clock reads i or more.
func (c clock) real(i lease.Instant) time.Duration {
	local := int64(i) - c.offset
	r := time.Duration(local-local/(1e6+c.ppm)*c.ppm-local%(1e6+c.ppm)*c.ppm/(1e6+c.ppm)) + c.missed
	for c.at(r) < i {
		r++
	}
	for c.at(r-1) >= i {
		r--
	}
	return r
}

// lasts returns how much real time passes while this clock counts d, to within a nanosecond.
func (c clock) lasts(d time.Duration) time.Duration {
	return d - time.Duration(int64(d)/(1e6+c.ppm)*c.ppm)
}

// origin is the time of the store's clock at the beginning of the world.
var origin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// storeClock is the clock of the store: like a machine's, but it can step.
type storeClock struct {
	clock
	stepped time.Duration
}

func (c storeClock) now(real time.Duration) time.Time {
	return origin.Add(time.Duration(c.at(real)) + c.stepped)
}
