package webhook

import (
	"context"
	"sync"
	"time"

	"github.com/emitd/emitd/outbox/internal/progress"
)

// How many requests may be in flight if Config.Parallel is 0.
const (
	firstParallel = 16
	mostParallel  = 256
	leastParallel = 4
)

// limiter bounds the requests in flight. Without a fixed bound it learns one from the answers: while requests
// have to wait, it allows more, as long as the answers do not take much longer for it. A receiver that is
// overloaded, or says so, gets fewer.
type limiter struct {
	fixed bool

	mu      sync.Mutex
	limit   int
	inUse   int
	callers int       // goroutines that make requests
	waiting []waiting // in order of arrival

	// Since the bound was last judged:
	answers int
	took    time.Duration // together
	waited  bool          // some request had to wait
	best    time.Duration // the shortest mean time of an answer
}

// waiting is a request that waits for a slot.
type waiting struct {
	ctx      context.Context // of its call
	admitted chan struct{}
}

// newLimiter returns a limiter with a fixed bound, or with one that is learnt if parallel is 0.
func newLimiter(parallel int) *limiter {
	if parallel > 0 {
		return &limiter{fixed: true, limit: parallel}
	}
	return &limiter{limit: firstParallel}
}

// startCaller reports whether a delivery may have another goroutine that makes requests. There are about as many as slots: more
// would only wait, with a stack each.
func (l *limiter) startCaller(first bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.callers >= l.limit && !first {
		l.waited = true
		return false
	}
	l.callers++
	return true
}

// endCaller says that such a goroutine has ended.
func (l *limiter) endCaller() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.callers--
}

// enter waits for a slot. It returns false if ctx ends before. A call that waits has progress as long as the receiver
// answers others: it is not the receiver that is silent. The slot itself is no progress, because requests without an answer
// leave theirs, too.
func (l *limiter) enter(ctx context.Context) bool {
	l.mu.Lock()
	if l.inUse < l.limit && len(l.waiting) == 0 {
		l.inUse++
		l.mu.Unlock()
		return true
	}
	l.waited = true
	me := waiting{ctx, make(chan struct{})}
	l.waiting = append(l.waiting, me)
	l.mu.Unlock()
	select {
	case <-me.admitted:
		return true
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if w.admitted == me.admitted {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			return false
		}
	}
	l.inUse-- // the slot came at the same moment
	l.nextLocked()
	return false
}

// answered tells the calls that wait for a slot that the receiver has answered a request.
func (l *limiter) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiting {
		progress.Report(w.ctx)
	}
}

// leave frees a slot. It is told how long the answer took, and whether the receiver was overloaded.
func (l *limiter) leave(took time.Duration, overloaded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse--
	l.answers++
	l.took += took
	switch {
	case l.fixed:
	case overloaded:
		l.limit = max(l.limit/2, leastParallel)
		l.answers, l.took, l.waited = 0, 0, false
	case l.answers >= l.limit:
		l.adjustLocked()
	}
	l.nextLocked()
}

// adjustLocked sets the bound by the answers since it was last judged.
func (l *limiter) adjustLocked() {
	mean := l.took / time.Duration(l.answers)
	if l.best == 0 || mean < l.best || l.limit == leastParallel { // with so few, the requests are not what makes it slow
		l.best = mean
	}
	switch {
	case mean > 2*l.best+time.Millisecond:
		l.limit = max(l.limit*3/4, leastParallel)
	case l.waited:
		l.limit = min(l.limit+max(l.limit/2, 1), mostParallel)
	}
	l.answers, l.took, l.waited = 0, 0, len(l.waiting) > 0
}

// nextLocked gives free slots to those that wait.
func (l *limiter) nextLocked() {
	for l.inUse < l.limit && len(l.waiting) > 0 {
		close(l.waiting[0].admitted)
		l.waiting = l.waiting[1:]
		l.inUse++
	}
}
