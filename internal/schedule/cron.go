package schedule

import "time"

// line is a cron line. The fields are sets of bits, as the parser makes them; starBit marks a day field that is "*".
type line struct {
	minute, hour, dom, month, dow uint64
	// passing lines count hours that pass, whatever local clocks do; see the package comment.
	passing bool
	zone    *time.Location
}

const starBit = 1 << 63

// horizon is how far ahead a line is searched: a 29 February may be eight years away.
const horizon = 10

// next returns the first due time after a moment, in UTC. It goes from one stretch of constant offset from UTC to the next. In
// each, local time is UTC plus the offset. Civil times are local times in the guise of UTC.
func (l *line) next(after time.Time) time.Time {
	at := after.In(l.zone)
	for limit := at.AddDate(horizon+1, 0, 0); !at.After(limit); {
		start, end := at.ZoneBounds()
		offset := offsetAt(at)
		civil, ok := l.match(l.from(after, start, offset))
		if !ok {
			break
		}
		due := civil.Add(-offset)
		if !start.IsZero() && due.Before(start) {
			due = start // a skipped time: the end of the gap
		}
		if end.IsZero() || due.Before(end) {
			return due.UTC()
		}
		at = end
	}
	return time.Time{}
}

// from returns the first civil time of a stretch that may be due after a moment, rounded up to a minute. The stretch
// begins at start. A line whose hours are given goes on where the local time of the stretch before ended: times that are
// skipped between the two count, and times that are repeated do not.
func (l *line) from(after, start time.Time, offset time.Duration) time.Time {
	first := after.Add(1).Add(offset)
	if !start.IsZero() {
		begin := start.Add(offset)
		if !l.passing {
			begin = start.Add(offsetAt(start.Add(-1)))
		}
		if after.Before(start) || begin.After(first) {
			first = begin
		}
	}
	first = first.UTC()
	if whole := first.Truncate(time.Minute); !whole.Equal(first) {
		return whole.Add(time.Minute)
	}
	return first
}

func offsetAt(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}

// match returns the first civil time at or after t that the line matches, within the horizon.
func (l *line) match(t time.Time) (time.Time, bool) {
	for last := t.Year() + horizon; t.Year() <= last; {
		year, month, day := t.Date()
		switch {
		case !has(l.month, int(month)):
			t = time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
		case !l.onDay(day, t.Weekday()):
			t = time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC)
		case !has(l.hour, t.Hour()):
			t = time.Date(year, month, day, t.Hour()+1, 0, 0, 0, time.UTC)
		case !has(l.minute, t.Minute()):
			t = t.Add(time.Minute)
		default:
			return t, true
		}
	}
	return time.Time{}, false
}

// onDay reports whether a day matches. If both day fields are restricted, either suffices, as in every cron.
func (l *line) onDay(day int, weekday time.Weekday) bool {
	dom, dow := has(l.dom, day), has(l.dow, int(weekday))
	if l.dom&starBit != 0 || l.dow&starBit != 0 {
		return dom && dow
	}
	return dom || dow
}

func has(bits uint64, n int) bool { return bits&(1<<n) != 0 }
