package lease

import (
	"testing"
	"time"
)

// The store's clock advanced 100 s further than the local one between two replies. Whatever the reason, anything
// observed before may be that much older. A step back, or no step, has no such effect.
func TestClockReportsByHowMuchItIsBehind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		passed      float64 // by the store's clock, over 10 s by the local one
		least, most time.Duration
	}{
		"no step":                   {10, 0, 0},
		"forward, or a standstill":  {110, 100 * time.Second, 100*time.Second + 20*time.Millisecond},
		"back":                      {-50, 0, 0},
		"a step too small to count": {10.005, 0, 0},
	} {
		clock := newClock()
		clock.Observe(at(0), at(0.01), storeAt(0.005))
		clock.Observe(at(10), at(10.01), storeAt(0.005+c.passed))
		if got := clock.ForwardStep(); got < c.least || got > c.most {
			t.Errorf("%s: ahead by %v, want %v to %v", name, got, c.least, c.most)
		}
	}
}
