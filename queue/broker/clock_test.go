package broker

import (
	"testing"
	"testing/synctest"
	"time"
)

// floor is a journal's clock: queue time does not go below it.
type floor time.Time

func (f *floor) Now(at time.Time) time.Time {
	if at.Before(time.Time(*f)) {
		return time.Time(*f)
	}
	*f = floor(at)
	return at
}

// TestQueueClock: queue time follows an estimate that is ahead, goes on a little slower than the
// local clock with one that is behind until they meet, and never goes back.
func TestQueueClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var ahead time.Duration // of the estimate, against the local clock
		k := &queueClock{estimate: func() time.Time { return time.Now().Add(ahead) }, log: new(floor), at: start, local: start}
		want := func(what string, offset time.Duration) {
			t.Helper()
			k.read()
			if got := k.at.Sub(start); got != offset || k.now != k.at.UnixMilli() || !k.local.Equal(time.Now()) {
				t.Errorf("%s: queue time is %v after the start, want %v", what, got, offset)
			}
		}
		want("at the start", 0)
		ahead = 32 * time.Second
		want("the estimate jumps ahead", 32*time.Second)
		ahead = 0
		want("the estimate jumps back", 32*time.Second)
		time.Sleep(16 * time.Second)
		want("queue time is ahead of the estimate", 47*time.Second)
		if _, at := k.time(); !at.Equal(k.at) {
			t.Errorf("a look at the clock gives %v", at)
		}
		time.Sleep(10 * time.Minute)
		want("they have met", 10*time.Minute+16*time.Second)
	})
}
