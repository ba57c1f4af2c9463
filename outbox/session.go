package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
)

// session is what a relay does with one claim: until it drains, its context ends, or the log says
// that the claim is no longer good.
//
//	reader ──▶ work ──▶ workers (by key) ──▶ committer
//	   └─ due, delayed ──▶ retrier
//
// A row is given to the worker of its key, so that pages overtake each other and rows of a key do
// not. The committer stores positions in the order of pages.
type session struct {
	r       *Relay
	a       *daemon.Assignment
	cur     Cursor
	shards  Range
	log     *slog.Logger
	breaker *breaker
	fail    context.CancelCauseFunc

	store sync.Mutex // one call of the cursor beside Next

	mu     sync.Mutex
	parked map[string]int // key → messages on their way to its lane

	next    int // worker of the next message of no key
	window  chan struct{}
	workers []chan lot
	commits chan *work
	due     chan struct{}
	delayed chan struct{}
}

// work is a page under way.
type work struct {
	page     Page
	left     atomic.Int32 // lots that are not done
	done     chan struct{}
	mu       sync.Mutex
	outcomes []Outcome // other than Delivered
}

// lot is a worker's part of a page.
type lot struct {
	work *work
	rows []Row
}

// session claims and delivers.
func (r *Relay) session(ctx context.Context, a *daemon.Assignment, shards Range, wake <-chan struct{}, log *slog.Logger) error {
	cur, err := r.cfg.Log.Claim(ctx, Claim{
		Subscription: r.cfg.Name, Index: a.Index, Instances: r.cfg.Instances, Epoch: a.Generation, Node: a.Node, Newest: r.cfg.Newest,
	})
	if err != nil {
		return err
	}
	defer cur.Close()
	if f, ok := r.cfg.Sink.(Fencer); ok {
		if err := f.Fence(ctx, r.cfg.Name, shards.String(), a.Generation); err != nil {
			return fmt.Errorf("fence the receiver: %w", err)
		}
	}
	a.Ready()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := &session{
		r: r, a: a, cur: cur, shards: shards, log: log, breaker: newBreaker(), fail: fail, parked: map[string]int{},
		window: make(chan struct{}, r.cfg.Window), commits: make(chan *work, r.cfg.Window),
		due: make(chan struct{}, 1), delayed: make(chan struct{}, 1),
	}
	for _, key := range cur.Parked() {
		s.parked[key] = 0
	}
	return s.run(ctx, wake)
}

// run starts the goroutines and waits for them, in the order in which they feed each other.
func (s *session) run(ctx context.Context, wake <-chan struct{}) error {
	var workers, rest sync.WaitGroup
	for range s.r.cfg.Parallel {
		lots := make(chan lot, s.r.cfg.Window)
		s.workers = append(s.workers, lots)
		workers.Go(func() {
			for l := range lots {
				s.handle(ctx, l)
			}
		})
	}
	rest.Go(func() { s.commit(ctx) })
	reading, stop := context.WithCancel(ctx)
	rest.Go(func() {
		select {
		case <-s.a.Draining():
		case <-reading.Done():
		}
		stop()
	})
	rest.Go(func() { s.retry(ctx, reading.Done()) })
	rest.Go(func() { s.promote(ctx, reading.Done()) })
	s.read(reading, wake)
	stop()
	for _, w := range s.workers {
		close(w)
	}
	workers.Wait()
	close(s.commits)
	rest.Wait()
	return context.Cause(ctx) // nil after a drain: nobody failed
}

// read looks for pages until ctx ends.
func (s *session) read(ctx context.Context, wake <-chan struct{}) {
	cfg := s.r.cfg
	pause := cfg.MinPoll
	for {
		select {
		case s.window <- struct{}{}:
		case <-ctx.Done():
			return
		}
		page, err := s.cur.Next(ctx, Limit{cfg.PageRows, cfg.PageBytes})
		if err != nil {
			if ctx.Err() == nil {
				s.fail(err)
			}
			return
		}
		signal(s.due, page.Due)
		signal(s.delayed, page.Delayed)
		s.r.take.polled(len(page.Rows))
		if len(page.Rows) == 0 && page.Mark == nil {
			<-s.window
		} else {
			s.dispatch(page)
		}
		switch {
		case page.More:
			pause = cfg.MinPoll
			continue
		case len(page.Rows) > 0:
			pause = cfg.MinPoll
		default:
			s.a.Progress(0)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
			pause = min(2*pause, cfg.MaxPoll)
		case <-wake:
			pause = cfg.MinPoll
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

func signal(c chan<- struct{}, on bool) {
	if !on {
		return
	}
	select {
	case c <- struct{}{}:
	default:
	}
}

// dispatch gives the rows of a page to the workers of their keys.
func (s *session) dispatch(page Page) {
	w := &work{page: page, done: make(chan struct{})}
	n := len(s.workers)
	parts := make([][]Row, n)
	for _, row := range page.Rows {
		if !s.r.cfg.wants(row.Topic) {
			continue
		}
		i := s.next
		if row.Key != "" {
			i = int(hash(row.Key) % uint32(n)) //nolint:gosec // small
		} else if s.next++; s.next == n {
			s.next = 0
		}
		if parts[i] == nil {
			parts[i] = make([]Row, 0, len(page.Rows)/n+8)
		}
		parts[i] = append(parts[i], row)
	}
	w.left.Store(1)
	for i, rows := range parts {
		if len(rows) > 0 {
			w.left.Add(1)
			s.workers[i] <- lot{w, rows} // never full: a page under way has at most one lot in it
		}
	}
	w.part()
	s.commits <- w // never full either
}

// part says that a part of the work is done.
func (w *work) part() {
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
}

// hash spreads keys over workers (FNV-1a).
func hash(key string) uint32 {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return h
}

// commit stores positions: as many finished pages at once as there are.
func (s *session) commit(ctx context.Context) {
	for w := range s.commits {
		if !wait(ctx, w) {
			return
		}
		last, outcomes, n, rows := w.page.Mark, w.outcomes, 1, len(w.page.Rows)
	more:
		for {
			select {
			case w, ok := <-s.commits:
				if !ok {
					break more
				}
				if !wait(ctx, w) {
					return // what is finished is delivered again: nothing may be stored after a failure
				}
				last, n, rows = w.page.Mark, n+1, rows+len(w.page.Rows)
				outcomes = append(outcomes, w.outcomes...)
			default:
				break more
			}
		}
		if err := s.advance(ctx, last, outcomes); err != nil {
			s.fail(err)
			return
		}
		s.a.Progress(rows)
		for range n {
			<-s.window
		}
	}
}

// wait waits for a page; false says that its lots will not all be done.
func wait(ctx context.Context, w *work) bool {
	select {
	case <-w.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// advance stores a position and what became of messages. Only then are keys free of messages that
// were on their way to a lane.
func (s *session) advance(ctx context.Context, to Mark, outcomes []Outcome) error {
	s.store.Lock()
	defer s.store.Unlock()
	if err := s.cur.Advance(ctx, to, outcomes); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range outcomes {
		if o.Row.Key != "" && (o.Kind == Waiting || o.Kind == Held || o.Kind == Behind) {
			s.parked[o.Row.Key]--
		}
	}
	return nil
}

// behind reports whether a message must wait behind its key's lane, and counts it if so.
func (s *session) behind(key string) bool {
	if key == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.parked[key]; !ok {
		return false
	}
	s.parked[key]++
	return true
}

// park makes a lane for a key, with one message on its way.
func (s *session) park(key string) {
	if key == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parked[key]++
}

// retry delivers the messages of lanes that are due, until stop; what is under way then is finished.
func (s *session) retry(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-s.due:
		case <-stop:
			return
		}
		for again := true; again && !closed(stop); {
			s.store.Lock()
			lanes, err := s.cur.Due(ctx, dueLanes)
			s.store.Unlock()
			if err != nil {
				if ctx.Err() == nil {
					s.fail(err)
				}
				return
			}
			again = len(lanes) > 0
			s.tryLanes(ctx, lanes)
		}
	}
}

// dueLanes is how many lanes are tried at once.
const dueLanes = 32

// tryLanes delivers lanes in as many calls as there are workers.
func (s *session) tryLanes(ctx context.Context, lanes [][]Row) {
	parts := make([][]Row, min(s.r.cfg.Parallel, len(lanes)))
	for i, lane := range lanes {
		parts[i%len(parts)] = append(parts[i%len(parts)], lane...)
	}
	var wg sync.WaitGroup
	for _, rows := range parts {
		wg.Go(func() {
			outcomes, err := s.deliver(ctx, rows)
			if err != nil {
				return // deliver has told, or ctx has ended
			}
			if err := s.settle(ctx, outcomes); err != nil && ctx.Err() == nil {
				s.fail(err)
			}
		})
	}
	wg.Wait()
}

// settle stores outcomes of lanes. A key whose lane is empty is free, unless messages are on their
// way into it: their Advance makes the lane again.
func (s *session) settle(ctx context.Context, outcomes []Outcome) error {
	s.store.Lock()
	defer s.store.Unlock()
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

// promoted is how many delayed messages are moved at once.
const promoted = 1000

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// promote moves delayed messages that are due, until stop.
func (s *session) promote(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-s.delayed:
		case <-stop:
			return
		}
		for n := promoted; n == promoted && !closed(stop); {
			var err error
			s.store.Lock()
			n, err = s.cur.Promote(ctx, promoted)
			s.store.Unlock()
			if err != nil {
				if ctx.Err() == nil {
					s.fail(err)
				}
				return
			}
		}
	}
}
