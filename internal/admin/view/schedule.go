package view

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/schedule"
)

// Schedule is the schedule of a unit of a periodic daemon. Its times are those of the nodes' wall clocks.
type Schedule struct {
	Schedule string `json:"schedule"`
	Next     Time   `json:"next"` // the next due time
	// Due is the due time that is being worked on, if any. StartedAt is null between two attempts, RetryAt during one.
	Due       Time `json:"due"`
	Attempt   int  `json:"attempt"`
	StartedAt Time `json:"started_at"`
	RetryAt   Time `json:"retry_at"`
	// Last is the newest call that has ended; null if there is none.
	Last *Call `json:"last"`
}

// Call is one call of a periodic daemon, after its end.
type Call struct {
	Due       Time   `json:"due"`
	Attempt   int    `json:"attempt"`
	StartedAt Time   `json:"started_at"`
	EndedAt   Time   `json:"ended_at"`
	Error     string `json:"error"` // empty if it succeeded
}

// scheduleOf reads a unit's state; nil if it is not that of a periodic daemon.
func scheduleOf(state daemon.UnitState) *Schedule {
	var s schedule.State
	if err := json.Unmarshal(state.Data, &s); err != nil || s.Schedule == "" {
		return nil
	}
	out := &Schedule{
		Schedule: s.Schedule, Next: Time{s.Next}, Due: Time{s.Due}, Attempt: s.Attempt,
		StartedAt: Time{s.StartedAt}, RetryAt: Time{s.RetryAt},
	}
	if c := s.Ended; c != nil {
		out.Last = &Call{Due: Time{c.Due}, Attempt: c.Attempt, StartedAt: Time{c.StartedAt}, EndedAt: Time{c.EndedAt}, Error: c.Error}
	}
	return out
}

// AddSchedules adds the schedules of periodic daemons and their notices to a status. The error is that of reading the
// states.
func (s *Status) AddSchedules(states []daemon.UnitState, err error) {
	of := map[daemon.Unit]*Schedule{}
	for _, state := range states {
		of[state.Unit] = scheduleOf(state)
	}
	for i := range s.Daemons {
		if len(of) == 0 {
			break
		}
		s.Daemons[i].Schedule = of[s.Daemons[i].Unit]
	}
	s.addNotices(func(add notify) {
		if err != nil {
			add(warning, "daemons", "", "the schedules of periodic daemons are not known: %v", err)
		}
		for i := range s.Daemons {
			u := &s.Daemons[i]
			if p := u.Schedule; p != nil && p.givenUp() {
				add(warning, u.Unit.String(), "emitd daemon explain "+u.Unit.String(), "%s failed for the due time %s, %s: %s",
					u.Unit, stamp(p.Last.Due.Time), times(p.Last.Attempt), firstLine(p.Last.Error))
			}
		}
	})
}

// givenUp reports whether the newest due time was given up.
func (p *Schedule) givenUp() bool { return p.Due.IsZero() && p.Last != nil && p.Last.Error != "" }

// next writes when there will be the next call.
func (p *Schedule) next(now time.Time) string {
	switch {
	case p == nil:
		return ""
	case !p.StartedAt.IsZero():
		return "under way"
	case !p.Due.IsZero():
		return "again " + until(p.RetryAt.Time, now)
	}
	return until(p.Next.Time, now)
}

func until(at, now time.Time) string {
	if left := at.Sub(now); left >= time.Second {
		return "in " + Short(left)
	}
	return "now"
}

// last writes how the newest call ended.
func (p *Schedule) last(now time.Time) string {
	if p == nil || p.Last == nil {
		return ""
	}
	how := "ok"
	if p.Last.Error != "" {
		how = "failed"
	}
	return fmt.Sprintf("%s %s ago", how, Short(max(now.Sub(p.Last.EndedAt.Time), 0)))
}

// explain writes the schedule, the next call and the last one.
func (p *Schedule) explain(b *strings.Builder, now time.Time) {
	if p == nil {
		return
	}
	fmt.Fprintf(b, "schedule: %s; next due %s, %s\n", Line(p.Schedule), stamp(p.Next.Time), until(p.Next.Time, now))
	if !p.Due.IsZero() {
		fmt.Fprintf(b, "due %s: attempt %d %s\n", stamp(p.Due.Time), p.Attempt, p.attempt(now))
	}
	if c := p.Last; c != nil {
		took := max(c.EndedAt.Sub(c.StartedAt.Time), 0)
		fmt.Fprintf(b, "last call: due %s, attempt %d, ended %s ago after %s", stamp(c.Due.Time), c.Attempt, Short(max(now.Sub(c.EndedAt.Time), 0)), Exact(took))
		if c.Error != "" {
			fmt.Fprintf(b, ", failed: %s", Line(firstLine(c.Error)))
		}
		b.WriteString("\n")
	}
}

// attempt says what becomes of the present attempt.
func (p *Schedule) attempt(now time.Time) string {
	if p.StartedAt.IsZero() {
		return "failed, repeated " + until(p.RetryAt.Time, now)
	}
	return "is under way for " + Short(max(now.Sub(p.StartedAt.Time), 0))
}
