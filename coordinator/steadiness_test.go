package coordinator

import (
	"testing"
	"time"
)

// An age counts once the store's clock has run at the pace of this process's clock for as long as that age, at
// most a day. A step restarts the measurement, and so do many small ones.
func TestSteadiness(t *testing.T) {
	t.Parallel()
	began := time.Now()
	var now *reading
	s := &clockStability{read: func() *reading { return now }, slack: 5 * time.Second}
	at := func(here, ahead time.Duration) { now = &reading{store: began.Add(here + ahead), here: began.Add(here)} }
	check := func(what string, age time.Duration, want bool) {
		t.Helper()
		if got := s.measures(age); got != want {
			t.Errorf("%s: an age of %v counts: %t", what, age, got)
		}
	}
	const month = 30 * 24 * time.Hour
	check("no answer yet", 0, false)
	at(0, 0)
	check("the first answer", time.Hour, false)
	at(time.Hour, 3*time.Second)
	check("after an hour", time.Hour, true)
	check("after an hour", month, false)
	at(24*time.Hour, 3*time.Second)
	check("after a day", month, true)
	at(25*time.Hour, month)
	check("a month ahead", month, false)
	check("a month ahead", time.Hour, false)
	at(25*time.Hour, 0)
	check("corrected", time.Hour, false)
	at(49*time.Hour, 0)
	check("a day later", month, true)
	for i := range 60 { // four seconds each minute
		at(49*time.Hour+time.Duration(i)*time.Minute, time.Duration(i)*4*time.Second)
		s.measures(month)
	}
	check("small steps", month, false)
	check("small steps", time.Hour, false)
	const later = 100 * 24 * time.Hour
	at(later, 0)
	s.measures(month)
	for here := later; here <= later+month; here += 5 * time.Minute {
		at(here, 0)
		s.measures(month)
	}
	check("after a month", month, true)
	at(later+month+5*time.Minute, 10*time.Minute)
	check("ten minutes ahead after a month", month, false)
	check("ten minutes ahead after a month", time.Hour, false)
}
