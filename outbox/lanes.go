package outbox

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How lanes are tried.
const (
	dueLanes  = 32 // how many are asked for, and settled, together
	vainLanes = 4  // how many are tried at once after others were tried in vain
	// What became of lanes is stored together, unless the sink needs longer than that for them.
	settleAfter = 100 * time.Millisecond
	// The part of the time in which lanes are tried in vain is one in vainPart; lanesPause is the longest
	// pause between them.
	vainPart   = 4
	lanesPause = time.Second
	// gatherPause follows lanes that were fewer than are asked for, and of which nothing left: others will
	// be due soon, and cost less together.
	gatherPause = 100 * time.Millisecond
	// lullPause is how long lanes that were tried in vain wait for a moment without pages, after the pause.
	lullPause = 50 * time.Millisecond
)

// retry delivers the messages of lanes that are due, until stop; what is under way then is finished.
func (s *session) retry(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-s.due:
		case <-stop:
			return
		}
		p := pace{window: &s.window, stop: stop, atOnce: vainLanes, began: time.Now()}
		for again := true; again && !closed(stop); {
			s.store.take()
			lanes, err := s.cur.Due(ctx, dueLanes)
			s.store.leave()
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
				sleep(ctx, stop, gatherPause)
				p.began = time.Now()
			}
		}
	}
}

// pace keeps lanes that are tried in vain from taking time that others need, however many they are: a
// few are tried at once, so that what comes meanwhile finds processor and sink free soon, and pauses
// follow, so that they take a part of the time only, and that in the gaps between pages if there are
// any. As soon as anything of them is delivered there is nothing of that.
type pace struct {
	window *window
	stop   <-chan struct{}
	atOnce int
	began  time.Time // when what the next pause is for began
}

// next says how many lanes may be tried at once after some were; in vain, after a pause.
func (p *pace) next(ctx context.Context, vain bool) {
	p.atOnce = dueLanes
	if vain {
		p.atOnce = vainLanes
		sleep(ctx, p.stop, min((vainPart-1)*time.Since(p.began), lanesPause))
		p.window.lull(ctx, p.stop, lullPause)
	}
	p.began = time.Now()
}

// tryLanes delivers what is in lanes at a pace and stores what became of it, in few transactions. It
// returns whether all that was tried waits again.
func (s *session) tryLanes(ctx context.Context, lanes [][]Row, p *pace) (stuck bool, err error) {
	var tried []Outcome
	stuck = len(lanes) > 0
	first := time.Now()
	for len(lanes) > 0 && !closed(p.stop) {
		n := min(p.atOnce, len(lanes))
		outcomes, vain := s.attempt(ctx, lanes[:n])
		tried, lanes = append(tried, outcomes...), lanes[n:]
		stuck = stuck && vain && !slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Kind == Dead || o.Kind == Dropped })
		if !vain || len(lanes) == 0 || time.Since(first) > settleAfter {
			if err := s.settle(ctx, tried); err != nil {
				return false, err
			}
			tried, first = nil, time.Now()
		}
		p.next(ctx, vain)
	}
	return stuck, s.settle(ctx, tried)
}

// attempt delivers what is in lanes in as many calls as there are workers. It returns what became of it,
// and whether nothing was delivered.
func (s *session) attempt(ctx context.Context, lanes [][]Row) (all []Outcome, vain bool) {
	parts := make([][]Row, min(s.r.cfg.Parallel, len(lanes)))
	for i, lane := range lanes {
		parts[i%len(parts)] = append(parts[i%len(parts)], lane...)
	}
	var wg sync.WaitGroup
	var some atomic.Bool
	done := make([][]Outcome, len(parts))
	for i, rows := range parts {
		wg.Go(func() {
			outcomes, err := s.deliver(ctx, rows, fromLanes)
			if err != nil {
				return // deliver has told, or ctx has ended
			}
			if len(outcomes) < len(rows) {
				some.Store(true)
			}
			done[i] = complete(rows, outcomes)
		})
	}
	wg.Wait()
	return slices.Concat(done...), !some.Load()
}

// complete adds what was delivered, the rows that have no other outcome, and returns all in the order
// of the rows: what leaves a lane comes before what waits in it.
func complete(rows []Row, outcomes []Outcome) []Outcome {
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

// settle stores outcomes of lanes. A key whose lane is empty is free, unless messages are on their
// way into it: their Advance makes the lane again.
func (s *session) settle(ctx context.Context, outcomes []Outcome) error {
	if len(outcomes) == 0 {
		return nil
	}
	s.store.take()
	defer s.store.leave()
	emptied, err := s.cur.Settle(ctx, outcomes)
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
