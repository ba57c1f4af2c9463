package outbox

import "time"

// How long a relay polls fast after it has found messages that nobody announced.
const (
	fastPause = 20 * time.Millisecond // longest pause meanwhile
	fastFor   = 5 * time.Second
)

// poller decides how long a relay waits between two reads of the log. The pause grows while nothing is
// found, from least to most, so an idle relay costs the database little. Messages that a poll has found
// were published by somebody who wakes no relay: a transaction of the caller's own driver, another
// language, a program behind a pooler. More will follow, so for a while the pause stays short. Messages
// after a wake-up do not count: for their publishers polling is not needed.
type poller struct {
	least, most time.Duration
	pause       time.Duration // until the next read
	fastUntil   time.Time     // until then the pause is at most fastPause
}

// afterRead sets the pause after a read of the log.
func (p *poller) afterRead(rows int, polled bool, now time.Time) {
	if rows > 0 {
		if p.pause = p.least; polled {
			p.fastUntil = now.Add(fastFor)
		}
		return
	}
	if polled {
		p.pause = min(2*p.pause, p.most)
	}
	if now.Before(p.fastUntil) {
		p.pause = min(p.pause, max(fastPause, p.least))
	}
}

// woken sets the pause after a wake-up. The wake-up may be for others, so the read may find nothing.
func (p *poller) woken() { p.pause = p.least }
