package outbox

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/internal/channel"
)

// How lanes are retried.
const (
	dueLanes     = 32 // lanes that are read, and whose outcomes are stored, together
	failingLanes = 4  // lanes that are tried at once after others were tried in vain
	// Outcomes of lanes are collected and stored together, unless the sink has needed longer than this for
	// them.
	storeAfter = 100 * time.Millisecond
	// Lanes that are tried in vain take at most one in failingShare of the time. lanesPause is the longest pause
	// between them.
	failingShare = 4
	lanesPause   = time.Second
	// coalescePause is the wait after a batch of fewer than dueLanes lanes that were all tried in vain. Others
	// will be due soon, and a larger batch costs less per lane.
	coalescePause = 100 * time.Millisecond
	// idleWait is how long lanes wait for a moment without pages, after the pause that follows a try in
	// vain.
	idleWait = 50 * time.Millisecond
)

// retry delivers messages of lanes that are due, until stop is closed. Calls in flight are finished.
func (s *session) retry(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-s.lanesDue:
		case <-stop:
			return
		}
		p := lanePacer{window: &s.window, stop: stop, atOnce: failingLanes, began: time.Now()}
		for again := true; again && !channel.IsClosed(stop); {
			s.cursorMu.take()
			lanes, err := s.cur.Due(ctx, dueLanes)
			s.cursorMu.leave()
			again = len(lanes) > 0
			stuck := false
			if err == nil {
				stuck, err = s.tryLanes(ctx, lanes, &p)
			}
			if err != nil {
				if ctx.Err() == nil {
					s.fail(err)
				}
				return
			}
			if stuck && len(lanes) < dueLanes {
				sleep(ctx, stop, coalescePause)
				p.began = time.Now()
			}
		}
	}
}

// lanePacer keeps lanes that are tried in vain from taking time that other keys need, however many lanes there
// are. Only a few are tried at once, so that new pages soon find processor and sink free. Pauses follow,
// so that lanes take only a part of the time, in the gaps between pages if there are any. As soon as a
// message of the lanes is delivered, neither limit applies.
type lanePacer struct {
	window *window
	stop   <-chan struct{}
	atOnce int
	began  time.Time // when the work began that the next pause is measured by
}

// pause sets how many lanes may be tried at once. After a try in vain it pauses first.
func (p *lanePacer) pause(ctx context.Context, vain bool) {
	p.atOnce = dueLanes
	if vain {
		p.atOnce = failingLanes
		sleep(ctx, p.stop, min((failingShare-1)*time.Since(p.began), lanesPause))
		p.window.waitIdle(ctx, p.stop, idleWait)
	}
	p.began = time.Now()
}

// tryLanes delivers messages of lanes at the given pace and stores their outcomes in few transactions. It
// returns whether everything it tried is still parked.
func (s *session) tryLanes(ctx context.Context, lanes [][]Row, p *lanePacer) (stuck bool, err error) {
	var tried []Outcome
	stuck = len(lanes) > 0
	first := time.Now()
	for len(lanes) > 0 && !channel.IsClosed(p.stop) {
		n := min(p.atOnce, len(lanes))
		outcomes, vain := s.deliverLanes(ctx, lanes[:n])
		tried, lanes = append(tried, outcomes...), lanes[n:]
		stuck = stuck && vain && !slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Kind == Dead || o.Kind == Dropped })
		if !vain || len(lanes) == 0 || time.Since(first) > storeAfter {
			if err := s.storeParked(ctx, tried); err != nil {
				return false, err
			}
			tried, first = nil, time.Now()
		}
		p.pause(ctx, vain)
	}
	return stuck, s.storeParked(ctx, tried)
}

// deliverLanes delivers messages of lanes, in as many parallel calls as there are workers. It returns their
// outcomes, and whether nothing was delivered.
func (s *session) deliverLanes(ctx context.Context, lanes [][]Row) (all []Outcome, vain bool) {
	parts := make([][]Row, min(s.r.cfg.Parallel, len(lanes)))
	for i, lane := range lanes {
		parts[i%len(parts)] = append(parts[i%len(parts)], lane...)
	}
	for _, rows := range parts { // the log order that a Delivery promises
		slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	var wg sync.WaitGroup
	var some atomic.Bool
	done := make([][]Outcome, len(parts))
	for i, rows := range parts {
		wg.Go(func() {
			outcomes, err := s.deliver(ctx, rows, fromLanes)
			if err != nil {
				return // deliver has ended the session, or ctx has ended
			}
			if len(outcomes) < len(rows) {
				some.Store(true)
			}
			done[i] = withDelivered(rows, outcomes)
		})
	}
	wg.Wait()
	return slices.Concat(done...), !some.Load()
}

// withDelivered adds an outcome Delivered for each row that has no other. It returns all outcomes in the order
// of the rows, so that what leaves a lane comes before what waits in it.
func withDelivered(rows []Row, outcomes []Outcome) []Outcome {
	other := make(map[int64]Outcome, len(outcomes))
	for _, o := range outcomes {
		other[o.Row.Seq] = o
	}
	all := make([]Outcome, 0, len(rows))
	for _, row := range rows {
		o, ok := other[row.Seq]
		if !ok {
			o = Outcome{Row: row, Kind: Delivered}
		}
		all = append(all, o)
	}
	return all
}

// storeParked stores outcomes of lanes. A key whose lane is empty is no longer parked, unless messages are on
// their way into the lane: their Advance creates the lane again.
//
// Example: message 7 of a key is in its lane. Page 5 has message 8 of that key, which becomes Behind, and is
// not stored yet when 7 is delivered and the lane is empty. If the key were free now, message 9 on page 6
// would be delivered before 8. So parked counts 8 until page 5 is stored, and 9 becomes Behind too.
func (s *session) storeParked(ctx context.Context, outcomes []Outcome) error {
	if len(outcomes) == 0 {
		return nil
	}
	s.cursorMu.take()
	defer s.cursorMu.leave()
	emptied, err := s.cur.StoreParked(ctx, outcomes)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range emptied {
		if s.parked[key] == 0 {
			delete(s.parked, key)
		}
	}
	return nil
}
