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

	now   int64     // queue time of this round, milliseconds
	at    time.Time // the same in the journal's precision
	local time.Time // local time of this round, for durations only
}

// catchUpDivisor is the divisor for the catch-up: queue time runs 1/catchUpDivisor slower than the local clock
// while it is ahead of the estimate.
const catchUpDivisor = 16

// read begins a round.
func (k *queueClock) read() {
	k.local, k.at = k.time()
	k.now = k.at.UnixMilli()
}

// time returns the local time and queue time. Queue time can be ahead of the estimate, for example
// after an owner whose estimate was ahead. If it stood still until the estimate catches up, no
// claim would expire meanwhile. So it goes on with the local clock, a little slower, until they
// meet.
//
// Example: the former owner's estimate was 16 s ahead of this one's. Queue time goes on from there and
// gains 15 s while 16 s pass. So a claim of 30 s lasts 32 s, and after 256 s queue time meets the estimate.
func (k *queueClock) time() (local, at time.Time) {
	local, at = time.Now(), k.estimate()
	passed := local.Sub(k.local)
	if on := k.at.Add(passed - passed/catchUpDivisor); on.After(at) {
		at = on
	}
	return local, k.log.Now(at)
}
