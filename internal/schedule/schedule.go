// Package schedule says when a periodic daemon is due. It is pure: times in, times out.
//
// A schedule is an interval or a cron line with a time zone. [Schedule.Next] and [Schedule.Due] answer for any moment,
// so nothing has to be awake when a time passes.
//
// # Cron lines and local time
//
// A cron line has the five fields minute, hour, day of month, month, day of week, or is one of @hourly, @daily,
// @midnight, @weekly, @monthly, @yearly, @annually. If both days are restricted, either suffices. The time zone is
// UTC unless another one is named, and never that of the machine, because nodes may differ.
//
// Where clocks are set forward, some local times do not exist. Where they are set back, some exist twice:
//
//   - If the hours are given (as in "30 2 * * *"), what would be due at a skipped time is due at the end of the gap, once.
//     What is due at a repeated time is due the first time only. A daily task thus runs once on each day.
//   - If the hour is "*" or "*/n", the line counts hours that pass. Nothing is due at a skipped time, and a repeated time
//     is due twice. A task for every ten minutes thus runs every ten minutes.
package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule is a sequence of due times that does not end. The zero value is none.
type Schedule struct {
	interval time.Duration
	cron     *line
	text     string
}

// MinInterval is the shortest interval.
const MinInterval = time.Second

// Every returns the schedule of an interval. Each due time is one interval after the former one.
func Every(interval time.Duration) (Schedule, error) {
	if interval < MinInterval {
		return Schedule{}, fmt.Errorf("the interval is %v, want %v or more", interval, MinInterval)
	}
	return Schedule{interval: interval, text: "every " + short(interval)}, nil
}

// short writes a duration without trailing zeros: 1h instead of 1h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Cron returns the schedule of a cron line in a time zone; "" is UTC.
func Cron(text, zone string) (Schedule, error) {
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case strings.Contains(text, "TZ="):
		return Schedule{}, fmt.Errorf("cron line %q names a time zone: give it as the time zone of the schedule instead", text)
	case strings.HasPrefix(text, "@every"):
		return Schedule{}, fmt.Errorf("cron line %q is an interval: give it as the interval of the schedule instead", text)
	}
	place, err := location(zone)
	if err != nil {
		return Schedule{}, err
	}
	parsed, err := parser.Parse(text)
	if err != nil {
		const want = "want minute, hour, day of month, month, day of week, as in 0 3 * * *"
		return Schedule{}, fmt.Errorf("cron line %q: %w; %s", text, err, want)
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return Schedule{}, fmt.Errorf("cron line %q is no cron line", text)
	}
	l := &line{minute: spec.Minute, hour: spec.Hour, dom: spec.Dom, month: spec.Month, dow: spec.Dow, zone: place}
	fields := strings.Fields(text)
	l.passing = spec.Hour&allHours == allHours || len(fields) == 5 && strings.Contains(fields[1], "*")
	if _, ok := l.match(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); !ok {
		return Schedule{}, fmt.Errorf("cron line %q never comes: there is no such day", text)
	}
	return Schedule{cron: l, text: "cron " + text + " " + place.String()}, nil
}

const allHours = 1<<24 - 1

// location finds a time zone by its name in the IANA database.
func location(name string) (*time.Location, error) {
	switch name {
	case "", "UTC":
		return time.UTC, nil
	case "Local":
		return nil, errors.New("time zone \"Local\" differs from node to node: give a name such as Europe/Berlin")
	}
	place, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("time zone %q is not known: %w (want a name such as Europe/Berlin; a program on a machine "+
			"without a time zone database imports time/tzdata)", name, err)
	}
	return place, nil
}

// IsZero reports whether s is no schedule.
func (s Schedule) IsZero() bool { return s.text == "" }

// String returns the schedule's text: "every 1h", "cron 0 3 * * * Europe/Berlin".
func (s Schedule) String() string { return s.text }

// Next returns the first due time after a moment. Of an interval, that is one interval later: the moment counts as a due
// time.
func (s Schedule) Next(after time.Time) time.Time {
	if s.cron != nil {
		return s.cron.next(after)
	}
	return after.Add(s.interval)
}

// Local returns a time in the schedule's time zone.
func (s Schedule) Local(t time.Time) time.Time {
	if s.cron != nil {
		return t.In(s.cron.zone)
	}
	return t.UTC()
}

// Passed is what was due in a stretch of time.
type Passed struct {
	// Newest are the latest due times, oldest first: as many as were asked for, if there were so many.
	Newest []time.Time
	// Earlier is how many due times there were before these, at most MaxCounted, and First is the first of them.
	Earlier int
	First   time.Time
}

// MaxCounted bounds the count of due times that have passed.
const MaxCounted = 100_000

// Due returns what was due after a due time and up to now: the n newest due times and how many there were before.
func (s Schedule) Due(last, now time.Time, n int) Passed {
	if s.cron == nil {
		return s.dueByInterval(last, now, n)
	}
	var p Passed
	if p.Newest = s.cron.newest(last, now, n); len(p.Newest) < n || n == 0 {
		return p
	}
	for at := s.Next(last); at.Before(p.Newest[0]) && p.Earlier < MaxCounted; at = s.Next(at) {
		if p.Earlier++; p.Earlier == 1 {
			p.First = at
		}
	}
	return p
}

func (s Schedule) dueByInterval(last, now time.Time, n int) Passed {
	all := int(now.Sub(last) / s.interval)
	if all <= 0 {
		return Passed{}
	}
	var p Passed
	for i := max(all-n, 0) + 1; i <= all; i++ {
		p.Newest = append(p.Newest, last.Add(time.Duration(i)*s.interval))
	}
	if earlier := all - len(p.Newest); earlier > 0 {
		p.Earlier, p.First = min(earlier, MaxCounted), last.Add(s.interval)
	}
	return p
}

// newest returns the n newest due times after last and up to now. It looks back over ever longer stretches, so that
// years without any run cost little.
func (l *line) newest(last, now time.Time, n int) []time.Time {
	for _, stretch := range []time.Duration{time.Hour, day, 32 * day, 400 * day, 4000 * day} {
		from := now.Add(-stretch)
		whole := !from.After(last)
		if whole {
			from = last
		}
		var found []time.Time
		for at := l.next(from); !at.IsZero() && !at.After(now); at = l.next(at) {
			found = append(found, at)
		}
		if whole || len(found) >= n {
			return slices.Clone(found[max(len(found)-n, 0):])
		}
	}
	return nil
}

const day = 24 * time.Hour
