package throttle

import "time"

// tokens is a token bucket that may go into debt. Each token beyond the saved ones is taken now and
// usable later, which queues the callers.
type tokens struct {
	perSecond float64
	burst     float64
	level     float64 // below zero: that many callers are waiting
	at        time.Time
}

func newTokens(rate Rate) *tokens {
	burst := float64(max(rate.Burst, 1))
	return &tokens{perSecond: rate.PerSecond, burst: burst, level: burst}
}

// fill adds the tokens earned since the last call.
func (t *tokens) fill(now time.Time) {
	if !t.at.IsZero() {
		t.level = min(t.burst, t.level+now.Sub(t.at).Seconds()*t.perSecond)
	}
	t.at = now
}

// next is how long the next caller must wait.
func (t *tokens) next(now time.Time) time.Duration {
	t.fill(now)
	if t.level >= 1 {
		return 0
	}
	return time.Duration((1 - t.level) / t.perSecond * float64(time.Second))
}

func (t *tokens) take(now time.Time) {
	t.fill(now)
	t.level--
}

// giveBack returns a token that was not used. Callers that already wait keep their times; later
// callers gain.
func (t *tokens) giveBack() { t.level = min(t.burst, t.level+1) }

// dayLength is the length of a budget's day. It is measured and not read from a calendar, so
// stepping the wall clock cannot make a day shorter.
const dayLength = 24 * time.Hour

// day is the budget.
type day struct {
	limit int64 // 0 is none
	begin time.Time
	used  int64
}

func (d *day) roll(now time.Time) {
	if !d.begin.IsZero() && now.Sub(d.begin) >= dayLength {
		d.begin, d.used = time.Time{}, 0
	}
}

// full returns how long the budget stays used up, 0 if it is not.
func (d *day) full(now time.Time) time.Duration {
	d.roll(now)
	if d.limit == 0 || d.used < d.limit {
		return 0
	}
	return d.begin.Add(dayLength).Sub(now)
}

func (d *day) take(now time.Time) {
	d.roll(now)
	if d.begin.IsZero() {
		d.begin = now
	}
	d.used++
}

func (d *day) giveBack() { d.used = max(0, d.used-1) }
