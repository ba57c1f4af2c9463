package schedule

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/internal/backoff"
)

// State is what a unit of a periodic daemon keeps in the store, over restarts and changes of the node.
type State struct {
	Schedule string `json:"schedule"` // its text
	// Last is the newest due time that was begun or passed over, or when the schedule began. It only grows, unless a
	// clock was wrong, so a due time that is done with does not come again.
	Last time.Time `json:"last"`
	Next time.Time `json:"next"` // the first due time after Last
	// Due is the due time that is being worked on, if any: a call is under way or will be repeated.
	Due     time.Time `json:"due,omitzero"`
	Attempt int       `json:"attempt,omitempty"` // of Due
	// StartedAt is when the present attempt began. It is zero between two attempts; then RetryAt is set.
	StartedAt time.Time `json:"started_at,omitzero"`
	RetryAt   time.Time `json:"retry_at,omitzero"`
	// Ended is the newest call that has ended.
	Ended *Call `json:"ended,omitempty"`
}

// Call is one call of a periodic daemon's function, after its end.
type Call struct {
	Due       time.Time `json:"due"`
	Attempt   int       `json:"attempt"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at"`
	Error     string    `json:"error,omitempty"`
}

// Event is a change of a state, for the history.
type Event struct {
	Kind   string
	Reason string
	Detail Detail
}

// The kinds of event.
const (
	Scheduled = "periodic.scheduled"
	Started   = "periodic.started"
	Ended     = "periodic.ended"
	Failed    = "periodic.failed"
	Missed    = "periodic.missed"
)

// Detail is the detail of an event. Which fields are set depends on the kind.
type Detail struct {
	Schedule string        `json:"schedule,omitempty"`
	Due      time.Time     `json:"due,omitzero"`
	Attempt  int           `json:"attempt,omitempty"`
	Took     time.Duration `json:"took,omitempty"`
	RetryAt  time.Time     `json:"retry_at,omitzero"`
	GivenUp  bool          `json:"given_up,omitempty"` // no further attempt is made for this due time
	Next     time.Time     `json:"next,omitzero"`
	// Missed is how many due times were passed over, from First on.
	Missed int       `json:"missed,omitempty"`
	First  time.Time `json:"first,omitzero"`
}

// Policy says which due times are made up for that have passed without a call.
type Policy string

// The policies.
const (
	Once Policy = "once" // the newest
	Skip Policy = "skip" // none
	All  Policy = "all"  // the newest Rules.CatchUp, oldest first
)

// Rules decide for one periodic daemon.
type Rules struct {
	Schedule Schedule
	Missed   Policy
	CatchUp  int
	Attempts int // for each due time
}

// Tolerance is how late a call may begin before its due time counts as missed, where missed ones are skipped.
const Tolerance = time.Minute

// Ahead is how far ahead of the clock a state may be. Beyond it, the clock that it was written by was wrong.
const Ahead = time.Hour

// ReadClockEvery is how often a run reads the wall clock while nothing is due. It may be set, and a machine may sleep.
const ReadClockEvery = 10 * time.Second

// CheckStall reports why a periodic daemon cannot have that stall timeout, or nil.
func CheckStall(timeout time.Duration) error {
	if timeout > 0 && timeout <= ReadClockEvery {
		return fmt.Errorf("stall_timeout is %v, want more than %v or 0 (never): a periodic daemon shows progress only so often between its calls", timeout, ReadClockEvery)
	}
	return nil
}

// Retry is the pause after a failed attempt.
var Retry = backoff.Policy{First: 10 * time.Second, Limit: 5 * time.Minute}

// Interrupted is the error of a call whose end was not recorded: its process was killed, or lost the unit.
const Interrupted = "interrupted: its end was not recorded"

// Begin returns the state with which a run of the unit begins. A new or changed schedule begins now; so does one that is
// far ahead of the clock. A call that was under way is taken as failed, because its run has ended.
func (r Rules) Begin(s State, now time.Time) (State, []Event) {
	text := r.Schedule.String()
	var reason string
	switch {
	case s.Schedule == "":
		reason = "a new schedule"
	case s.Schedule != text:
		reason = "the schedule has changed from " + s.Schedule
	case s.Last.Sub(now) > Ahead:
		reason = "the last due time was ahead of the clock: a clock was wrong"
	case !s.StartedAt.IsZero():
		return r.End(s, now, Interrupted)
	default:
		return s, nil
	}
	begin := now.Truncate(time.Second)
	s = State{Schedule: text, Last: begin, Next: r.Schedule.Next(begin), Ended: s.Ended}
	return s, []Event{{Kind: Scheduled, Reason: reason, Detail: Detail{Schedule: text, Next: s.Next}}}
}

// Left returns how long it is until something is to be done: nothing or less if it is now. It is now, too, if the state is
// so far ahead that the clock by which it was written was wrong.
func (r Rules) Left(s State, now time.Time) time.Duration {
	if s.Last.Sub(now) > Ahead {
		return 0
	}
	next := s.Next.Sub(now)
	switch {
	case s.Due.IsZero():
		return next
	case r.Missed == All:
		return s.retryIn(now)
	}
	return min(next, s.retryIn(now))
}

// retryIn returns how long it is until a failed attempt is repeated: nothing or less if it is now. If that is longer than any
// pause, the clock by which it was written was ahead.
func (s State) retryIn(now time.Time) time.Duration {
	left := s.RetryAt.Sub(now)
	if left > Retry.Limit {
		return 0
	}
	return left
}

// Start returns the state with which the next call begins: its Due is set then, and its StartedAt is now. Otherwise
// nothing is to be called at the moment. Both may have passed over due times.
func (r Rules) Start(s State, now time.Time) (State, []Event) {
	var events []Event
	if !s.Due.IsZero() {
		if r.Missed == All || now.Before(s.Next) {
			if s.retryIn(now) > 0 {
				return s, nil
			}
			s.Attempt++
			return s.start(now, nil)
		}
		events = append(events, Event{
			Kind: Failed, Reason: "the next due time has come",
			Detail: Detail{Due: s.Due, Attempt: s.Attempt, GivenUp: true, Next: s.Next},
		})
		s.Due, s.Attempt, s.RetryAt = time.Time{}, 0, time.Time{}
	}
	n := 1
	if r.Missed == All {
		n = r.CatchUp
	}
	passed := r.Schedule.Due(s.Last, now, n)
	if len(passed.Newest) == 0 {
		return s, events
	}
	due := passed.Newest[0]
	if r.Missed == Skip && now.Sub(due) > Tolerance {
		if passed.Earlier++; passed.Earlier == 1 {
			passed.First = due
		}
		s.Last, s.Next = due, r.Schedule.Next(due)
		return s, append(events, missed(passed, s.Next))
	}
	if passed.Earlier > 0 {
		events = append(events, missed(passed, due))
	}
	s.Last, s.Next, s.Due, s.Attempt = due, r.Schedule.Next(due), due, 1
	return s.start(now, events)
}

func missed(p Passed, next time.Time) Event {
	return Event{Kind: Missed, Detail: Detail{Missed: p.Earlier, First: p.First, Next: next}}
}

func (s State) start(now time.Time, events []Event) (State, []Event) {
	s.StartedAt, s.RetryAt = now, time.Time{}
	return s, append(events, Event{Kind: Started, Detail: Detail{Due: s.Due, Attempt: s.Attempt, Next: s.Next}})
}

// End returns the state after a call has ended, with the text of its error or "".
func (r Rules) End(s State, now time.Time, failure string) (State, []Event) {
	call := Call{Due: s.Due, Attempt: s.Attempt, StartedAt: s.StartedAt, EndedAt: now, Error: failure}
	e := Event{Kind: Ended, Detail: Detail{Due: s.Due, Attempt: s.Attempt, Took: max(now.Sub(s.StartedAt), 0), Next: s.Next}}
	s.Ended, s.StartedAt = &call, time.Time{}
	if failure != "" {
		e.Kind, e.Reason = Failed, failure
		if s.Attempt < r.Attempts {
			s.RetryAt = now.Add(Retry.After(s.Attempt))
			if failure == Interrupted {
				s.RetryAt = now // it has been away long enough
			}
			e.Detail.RetryAt = s.RetryAt
			return s, []Event{e}
		}
		e.Detail.GivenUp = true
	}
	s.Due, s.Attempt = time.Time{}, 0
	return s, []Event{e}
}
