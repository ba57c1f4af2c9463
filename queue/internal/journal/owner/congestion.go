package owner

import "time"

// congestion bounds how many writes of segments are under way. A store that gets more requests than it takes refuses some, or
// answers late. Each refused write comes again. An owner that kept its window full would then send mostly repetitions, each of
// which takes the place of another, and its lowest slot, before which nothing is acknowledged, would have to wait for its luck.
// Where the store does not refuse but lets requests wait, a full window only makes every answer late.
//
// So the bound follows what the store bears, as TCP's congestion window does (Jacobson, "Congestion Avoidance and Control",
// 1988; RFC 5681): a write that fails, or is slow, halves it, and as many good ones as it allows raise it by one. A bound below
// one means one write and a pause before the next, also before one of new records. Otherwise an owner that was lucky would
// leave no room to those that wait. A write that failed waits until there is room, and the lowest slot goes first. Records
// that come meanwhile share the next segment, so the queue gets slower, but hardly less gets through.
type congestion struct {
	bound     float64       // writes that may be under way
	reducedAt time.Duration // when the bound was last reduced
	pauseEnds time.Duration // when the next write may be sent; 0: at once
	underWay  int           // writes that were sent and not answered, or pause before they are sent again
	failed    int           // writes that wait until there is room
}

const (
	// slowWrite is how long a write may take before it counts as a sign that the store gets too much. On a store that is always
	// so slow, a record waits for up to one such write more than with a full window.
	slowWrite = 500 * time.Millisecond
	// largeSegment is the size in bytes from which a write may be slow because of its size.
	largeSegment = 256 << 10
	// leastBound is the lowest bound, and smallRise how much a write raises one below one.
	leastBound = 1. / 16
	smallRise  = 1. / 16
	// pauseUnit divided by the bound is the pause.
	pauseUnit    = 64 * time.Millisecond
	longestPause = 16 * pauseUnit // at the lowest bound
)

// hasRoom reports whether the store bears another write.
func (g *congestion) hasRoom() bool { return g.underWay < max(1, int(g.bound)) }

// reduce halves the bound, once for all writes that were under way at the same time. One failure never makes it less than one.
func (g *congestion) reduce(now, triedAt time.Duration, least float64) {
	switch {
	case triedAt <= g.reducedAt:
		return
	case g.bound > 1:
		g.bound = max(1, min(float64(g.underWay), g.bound)/2)
	default:
		g.bound = max(least, g.bound/2)
	}
	g.reducedAt = now
}

// written counts a write that is stored. Only while the bound holds writes back does it say anything that they succeed.
func (g *congestion) written(now time.Duration, o *outstanding, window int) {
	switch {
	case now-o.triedAt > slowWrite && o.bytes < largeSegment:
		g.reduce(now, o.triedAt, g.bound)
	case g.bound < 1:
		g.bound = min(g.bound+smallRise, 1)
	case !g.hasRoom():
		g.bound = min(g.bound+1/g.bound, float64(window))
	}
	g.underWay--
}

// pauseWrites begins the pause that a bound below one demands. Half of it is random.
func (m *Machine) pauseWrites(now time.Duration) {
	g := &m.log.congestion
	if g.pauseEnds = 0; g.bound < 1 {
		g.pauseEnds = now + m.jitter(time.Duration(float64(pauseUnit)/g.bound))
	}
}

// writeFailed handles a write of a segment that has failed, or has an unknown outcome. least is how long the store asks to wait. A
// write that fails again and again waits no longer than the bound demands of every write at most. Otherwise an owner without luck
// would hardly try while others are taken.
func (m *Machine) writeFailed(now time.Duration, c *Call, least time.Duration) {
	g, o := &m.log.congestion, &m.log.window[c.slot-m.log.durable-1]
	g.reduce(now, o.triedAt, leastBound)
	m.pauseWrites(now)
	o.failed, o.retryAt = c, now+max(min(m.pause(c.Attempt), longestPause), least)
	g.underWay--
	g.failed++
	m.writeSegments(now)
}

// repeatWrites sends failed writes again, the lowest slot first, as many as the store bears.
func (m *Machine) repeatWrites(now time.Duration) {
	g := &m.log.congestion
	for i := 0; g.failed > 0 && g.hasRoom(); i++ {
		o := &m.log.window[i]
		if o.failed == nil {
			continue
		}
		c := o.failed
		o.failed, o.triedAt = nil, max(now, o.retryAt, g.pauseEnds)
		g.failed--
		g.underWay++
		m.repeatAfter(c, o.triedAt-now)
	}
}
