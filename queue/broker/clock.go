package broker

import "time"

// queueClock reads queue time, once for each round. Queue time never goes back, across all owners
// of a shard: the journal keeps it from that.
type queueClock struct {
	estimate func() time.Time // of the cluster store's clock
	log      interface {
		// Now returns at, or the newest time in the journal if that is later.
		Now(at time.Time) time.Time
	}

	now  int64     // queue time of this round, milliseconds
	at   time.Time // the same in the journal's precision
	wall time.Time // local time of this round, for durations only
}

// slower is the divisor for the catch-up: queue time runs 1/slower slower than the local clock
// while it is ahead of the estimate.
const slower = 16

// read begins a round.
func (k *queueClock) read() {
	k.wall, k.at = k.time()
	k.now = k.at.UnixMilli()
}

// time returns the local time and queue time. Queue time can be ahead of the estimate, for example
// after an owner whose estimate was ahead. If it stood still until the estimate catches up, no
// claim would expire meanwhile. So it goes on with the local clock, a little slower, until they
// meet.
func (k *queueClock) time() (wall, at time.Time) {
	wall, at = time.Now(), k.estimate()
	passed := wall.Sub(k.wall)
	if on := k.at.Add(passed - passed/slower); on.After(at) {
		at = on
	}
	return wall, k.log.Now(at)
}
