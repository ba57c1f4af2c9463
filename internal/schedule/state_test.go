package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// tape plays a periodic daemon by hand: times are minutes after its beginning.
type tape struct {
	*testing.T
	rules Rules
	state State
	begin time.Time
}

func play(t *testing.T, missed Policy) *tape {
	t.Helper()
	p := &tape{T: t, rules: Rules{Schedule: mustEvery(t, 10*time.Minute), Missed: missed, CatchUp: 3, Attempts: 2}, begin: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	p.step("scheduled next 10", func(now time.Time) (State, []Event) { return p.rules.Begin(p.state, now) }, 0)
	return p
}

func (p *tape) at(minute float64) time.Time {
	return p.begin.Add(time.Duration(minute * float64(time.Minute)))
}

func (p *tape) minutes(t time.Time) string { return fmt.Sprint(t.Sub(p.begin).Minutes()) }

// step takes a step at a minute and compares the events.
func (p *tape) step(want string, step func(now time.Time) (State, []Event), minute float64) {
	p.Helper()
	before := p.state
	state, events := step(p.at(minute))
	var got []string
	for _, e := range events {
		text := strings.TrimPrefix(e.Kind, "periodic.")
		d := e.Detail
		if !d.Due.IsZero() {
			text += " " + p.minutes(d.Due)
		}
		if d.Attempt > 1 {
			text += fmt.Sprint(" attempt ", d.Attempt)
		}
		if d.Missed > 0 {
			text += fmt.Sprintf(" %d from %s", d.Missed, p.minutes(d.First))
		}
		if d.GivenUp {
			text += " given up"
		}
		if !d.RetryAt.IsZero() {
			text += " again " + fmt.Sprintf("%.2f", d.RetryAt.Sub(p.begin).Minutes())
		}
		if e.Kind == Scheduled || e.Kind == Missed {
			text += " next " + p.minutes(d.Next)
		}
		got = append(got, text)
	}
	if strings.Join(got, ", ") != want {
		p.Fatalf("at %v: %q, want %q", minute, strings.Join(got, ", "), want)
	}
	if len(events) == 0 && state != before {
		p.Fatalf("at %v the state changed without an event: %+v, before %+v", minute, state, before)
	}
	p.state = state
}

func (p *tape) start(minute float64, want string) {
	p.Helper()
	p.step(want, func(now time.Time) (State, []Event) { return p.rules.Start(p.state, now) }, minute)
}

func (p *tape) end(minute float64, failure, want string) {
	p.Helper()
	p.step(want, func(now time.Time) (State, []Event) { return p.rules.End(p.state, now, failure) }, minute)
}

// again is what the unit's next run does first.
func (p *tape) again(minute float64, want string) {
	p.Helper()
	p.step(want, func(now time.Time) (State, []Event) { return p.rules.Begin(p.state, now) }, minute)
}

func (p *tape) wakes(want float64) {
	p.Helper()
	if left := p.rules.Left(p.state, p.at(want)); left.Abs() > time.Second {
		p.Fatalf("%v are left at %v", left, want)
	}
}

func TestCallsInOrder(t *testing.T) {
	t.Parallel()
	p := play(t, Once)
	p.wakes(10)
	p.start(9.9, "")
	p.start(10, "started 10")
	p.end(11, "", "ended 10")
	p.wakes(20)
	p.start(11, "")
	p.start(10, "") // the clock was set back
	p.start(20.5, "started 20")
	p.end(21, "", "ended 20")
	p.again(22, "") // another run finds nothing to do
	p.wakes(30)
	if c := p.state.Ended; c == nil || !c.Due.Equal(p.at(20)) || !c.StartedAt.Equal(p.at(20.5)) || !c.EndedAt.Equal(p.at(21)) || c.Error != "" {
		t.Errorf("the newest call is %+v", c)
	}
}

func TestFailedCallsAreRepeated(t *testing.T) {
	t.Parallel()
	p := play(t, Once)
	p.start(10, "started 10")
	p.end(10.5, "boom", "failed 10 again 10.67")
	p.start(10.6, "")
	p.again(10.6, "") // also on another node
	p.start(10.7, "started 10 attempt 2")
	p.end(11, "boom", "failed 10 attempt 2 given up")
	p.wakes(20)
	p.start(20, "started 20")
	p.end(20, "boom", "failed 20 again 20.17")
	p.start(30, "failed 20 given up, started 30") // nobody was there to repeat it
	p.end(31, "", "ended 30")
}

// The next due time ends the attempts of the one before, unless all are made up for.
func TestNextDueTimeComesBeforeTheRetry(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{Once, Skip} {
		p := play(t, policy)
		p.start(10, "started 10")
		p.end(19.9, "boom", "failed 10 again 20.07")
		p.wakes(20)
		p.start(20, "failed 10 given up, started 20")
	}
	p := play(t, All)
	p.start(10, "started 10")
	p.end(19.9, "boom", "failed 10 again 20.07")
	p.wakes(19.9 + 1.0/6)
	p.start(20, "")
	p.start(20.1, "started 10 attempt 2")
	p.end(20.2, "boom", "failed 10 attempt 2 given up")
	p.start(20.2, "started 20")
}

func TestInterruptedCallIsRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	p := play(t, Once)
	p.start(10, "started 10")
	p.again(12, "failed 10 again 12.00")
	p.start(12, "started 10 attempt 2")
	p.again(13, "failed 10 attempt 2 given up")
	p.wakes(20)
}

func TestMissed(t *testing.T) {
	t.Parallel()
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		p := play(t, Once)
		p.start(55, "missed 4 from 10 next 50, started 50")
		p.end(56, "", "ended 50")
		p.wakes(60)
		p.start(65, "started 60")
		p.end(99, "", "ended 60")                           // it took too long
		p.start(99, "missed 2 from 70 next 90, started 90") // also the policy for those
	})
	t.Run("skip", func(t *testing.T) {
		t.Parallel()
		p := play(t, Skip)
		p.start(55, "missed 5 from 10 next 60")
		p.start(55, "")
		p.start(60.9, "started 60") // within the tolerance
		p.end(61, "", "ended 60")
		p.start(71.1, "missed 1 from 70 next 80")
		p.start(90.5, "missed 1 from 80 next 90, started 90")
	})
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		p := play(t, All)
		p.start(55, "missed 2 from 10 next 30, started 30")
		p.end(56, "", "ended 30")
		p.start(56, "started 40")
		p.again(57, "failed 40 again 57.00")
		p.start(57, "started 40 attempt 2")
		p.end(58, "", "ended 40 attempt 2")
		p.start(58, "started 50")
		p.end(59, "", "ended 50")
		p.start(59, "")
		p.wakes(60)
	})
}

func TestScheduleBeginsAnew(t *testing.T) {
	t.Parallel()
	p := play(t, Once)
	p.start(10, "started 10")
	p.end(11, "", "ended 10")
	p.rules.Schedule = mustEvery(t, 3*time.Minute)
	p.again(12, "scheduled next 15")
	p.start(15, "started 15")
	p.rules.Schedule = mustCron(t, "*/5 * * * *", "")
	p.again(16, "scheduled next 20") // the call that was under way belongs to the former schedule
	p.start(16, "")
	p.wakes(20)

	// A node whose clock is a year ahead makes a call. The others do not wait for that year.
	p = play(t, Once)
	const year = 365 * 24 * 60
	p.start(year, fmt.Sprintf("missed %d from 10 next %d, started %d", year/10-1, year, year))
	p.end(year+1, "", fmt.Sprint("ended ", year))
	p.again(20, "scheduled next 30")
	p.start(30, "started 30")
	p.end(31, "", "ended 30")
	p.again(-29, "") // ahead by less than an hour: the clocks of nodes may differ
}

// What a run waits for is due at once if the clock that it was written by was ahead.
func TestClockIsSetBack(t *testing.T) {
	t.Parallel()
	p := play(t, Once)
	left := func(minute, want float64) {
		t.Helper()
		if got := p.rules.Left(p.state, p.at(minute)).Minutes(); got != want {
			t.Errorf("at %v it waits for %v minutes, want %v", minute, got, want)
		}
	}
	left(1, 9)
	p.start(100, "missed 9 from 10 next 100, started 100")
	p.end(101, "", "ended 100")
	left(101, 9)
	left(41, 69) // ahead by less than an hour
	left(39, 0)
	p.again(39, "scheduled next 49")
	p.start(49, "started 49")
	p.end(50, "boom", "failed 49 again 50.17")
	left(45.5, 14.0/3)
	p.start(45.5, "")
	left(45, 0) // no pause is that long
	p.start(45, "started 49 attempt 2")
}

func TestCheckStall(t *testing.T) {
	t.Parallel()
	for timeout, ok := range map[time.Duration]bool{0: true, 1: false, ReadClockEvery: false, ReadClockEvery + 1: true} {
		if err := CheckStall(timeout); (err == nil) != ok {
			t.Errorf("%v: %v", timeout, err)
		}
	}
}
