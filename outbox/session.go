package outbox

import (
	"context"
	"errors"
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
	r      *Relay
	a      *daemon.Assignment
	cur    Cursor
	shards string
	log    *slog.Logger
	fail   context.CancelCauseFunc

	store   turn // one call of the cursor beside Next
	trouble trouble

	mu     sync.Mutex
	parked map[string]int // key → messages on their way to its lane

	replayed atomic.Int64 // Page.Replayed of the newest page

	next    uint32 // worker of the last message of no key
	window  window
	workers []chan lot
	commits chan *work
	due     chan struct{}
	delayed chan struct{}
}

// mostPages is how many pages may be under way, however small they are.
const mostPages = 64

// window bounds what is under way by the rows of full pages, so that many small pages need not wait
// for each other's positions to be stored.
type window struct {
	full        int // with more rows than that under way, none is read
	pages, rows atomic.Int64
	freed       chan struct{}
	calm        chan struct{} // has something after the last page has left
}

// wait waits until a page may be read; false says that ctx has ended.
func (w *window) wait(ctx context.Context) bool {
	for w.pages.Load() >= mostPages || w.rows.Load() > int64(w.full) {
		select {
		case <-w.freed:
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

func (w *window) enter(rows int) {
	w.pages.Add(1)
	w.rows.Add(int64(rows))
}

func (w *window) leave(pages, rows int) {
	left := w.pages.Add(int64(-pages))
	w.rows.Add(int64(-rows))
	signal(w.freed, true)
	signal(w.calm, left == 0)
}

// lull waits until no page is under way, or for so long.
func (w *window) lull(ctx context.Context, stop <-chan struct{}, most time.Duration) {
	t := time.NewTimer(most)
	defer t.Stop()
	for w.pages.Load() > 0 {
		select {
		case <-w.calm:
		case <-t.C:
			return
		case <-stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// turn is a lock that may be held for as long as a database takes.
type turn chan struct{}

func (t turn) take()  { t <- struct{}{} }
func (t turn) leave() { <-t }

// work is a page under way.
type work struct {
	mark     Mark
	rows     int
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
	cur, err := r.claim(ctx, a, shards)
	if err != nil {
		return err
	}
	defer cur.Close()
	a.Ready()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := &session{
		r: r, a: a, cur: cur, shards: shards.String(), log: log, fail: fail,
		store: make(turn, 1), trouble: trouble{changed: make(chan struct{}, 1)}, parked: map[string]int{},
		window: window{full: r.cfg.PageRows * (r.cfg.Window - 1), freed: make(chan struct{}, 1), calm: make(chan struct{}, 1)}, commits: make(chan *work, mostPages),
		due: make(chan struct{}, 1), delayed: make(chan struct{}, 1),
	}
	for _, key := range cur.Parked() {
		s.parked[key] = 0
	}
	return s.run(ctx, wake)
}

// claim takes the range in the log, and makes the receiver refuse its former owners. Then it claims
// again: who was deposed between the two, and has fenced the new owner's calls by its late one, is
// refused here and delivers nothing; the new owner fences once more.
func (r *Relay) claim(ctx context.Context, a *daemon.Assignment, shards Range) (Cursor, error) {
	c := Claim{Subscription: r.cfg.Name, Index: a.Index, Instances: r.cfg.Instances, Epoch: a.Generation, Node: a.Node, Newest: r.cfg.Newest}
	cur, err := r.cfg.Log.Claim(ctx, c)
	f, ok := r.cfg.Sink.(Fencer)
	if err != nil || !ok {
		return cur, err
	}
	cur.Close()
	if err := r.fence(ctx, f, shards.String(), a); err != nil {
		return nil, fmt.Errorf("fence the receiver: %w", err)
	}
	return r.cfg.Log.Claim(ctx, c)
}

// fence is bounded as deliveries are: a receiver that hangs is tried again. A drain does not wait for it.
func (r *Relay) fence(ctx context.Context, f Fencer, shards string, a *daemon.Assignment) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.DeliverTimeout)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-a.Draining():
			end(errDrained)
		case <-ctx.Done():
		}
	})
	err := f.Fence(ctx, r.cfg.Name, shards, a.Generation)
	if err != nil && errors.Is(context.Cause(ctx), errDrained) {
		err = errDrained
	}
	end(nil)
	watching.Wait()
	return err
}

// run starts the goroutines and waits for them, in the order in which they feed each other.
func (s *session) run(ctx context.Context, wake <-chan struct{}) error {
	var workers, rest sync.WaitGroup
	for range s.r.cfg.Parallel {
		lots := make(chan lot, mostPages)
		s.workers = append(s.workers, lots)
		workers.Go(func() {
			for l := range lots {
				s.handle(ctx, l)
			}
		})
	}
	rest.Go(func() { s.commit(ctx) })
	reading, stop := context.WithCancel(ctx)
	noting, quiet := context.WithCancel(ctx)
	var last sync.WaitGroup
	last.Go(func() { s.note(noting) })
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
	quiet()
	last.Wait()
	return context.Cause(ctx) // nil after a drain: nobody failed
}

// read looks for pages until ctx ends.
func (s *session) read(ctx context.Context, wake <-chan struct{}) {
	cfg := s.r.cfg
	pause := cfg.MinPoll
	for {
		if !s.window.wait(ctx) {
			return
		}
		page, err := s.cur.Next(ctx, Limit{cfg.PageRows, cfg.PageBytes})
		if err != nil {
			if ctx.Err() == nil {
				s.fail(err)
			}
			return
		}
		s.replayed.Store(page.Replayed)
		signal(s.due, page.Due)
		signal(s.delayed, page.Delayed)
		s.r.take.polled(len(page.Rows))
		if len(page.Rows) > 0 || page.Mark != nil {
			s.window.enter(len(page.Rows))
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
	w := &work{mark: page.Mark, rows: len(page.Rows), done: make(chan struct{})}
	parts := s.part(page.Rows)
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

// part copies the rows that the subscription is for into one part for each worker. A row is large: the
// parts share memory that is made once.
func (s *session) part(rows []Row) [][]Row {
	n := len(s.workers)
	parts, sizes, to := make([][]Row, n), make([]int, n), make([]int32, len(rows))
	total := 0
	for i := range rows {
		to[i] = -1
		if row := &rows[i]; s.r.cfg.wants(row.Topic) {
			to[i] = s.worker(row.Key)
			sizes[to[i]]++
			total++
		}
	}
	all := make([]Row, total)
	for i, size := range sizes {
		parts[i], all = all[:0:size], all[size:]
	}
	for i, at := range to {
		if at >= 0 {
			parts[at] = append(parts[at], rows[i])
		}
	}
	return parts
}

// worker is that of a key; rows of no key go round.
func (s *session) worker(key string) int32 {
	n := uint32(len(s.workers)) //nolint:gosec // few
	if key == "" {
		s.next++
		return int32(s.next % n) //nolint:gosec // less than n
	}
	return int32(hash(key) % n) //nolint:gosec // less than n
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
		last, outcomes, n, rows := w.mark, w.outcomes, 1, w.rows
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
				last, n, rows = w.mark, n+1, rows+w.rows
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
		s.window.leave(n, rows)
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
	s.store.take()
	defer s.store.leave()
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

// behind returns the rows that may be delivered. Those whose keys have a lane wait behind it, and are
// counted.
func (s *session) behind(rows []Row) (live []Row, outcomes []Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parked) == 0 {
		return rows, nil
	}
	live = rows[:0] // the part is ours
	for _, row := range rows {
		if _, ok := s.parked[row.Key]; !ok || row.Key == "" {
			live = append(live, row)
			continue
		}
		s.parked[row.Key]++
		outcomes = append(outcomes, Outcome{Row: row, Kind: Behind})
	}
	return live, outcomes
}

// park makes lanes for keys, with these messages on their way.
func (s *session) park(outcomes []Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range outcomes {
		if o.Row.Key != "" && (o.Kind == Waiting || o.Kind == Held || o.Kind == Behind) {
			s.parked[o.Row.Key]++
		}
	}
}

// trouble is why the sink is down, as calls find it.
type trouble struct {
	mu      sync.Mutex
	text    string // "" = it is not
	changed chan struct{}
}

func (t *trouble) set(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text != text {
		t.text = text
		signal(t.changed, true)
	}
}

func (t *trouble) get() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text
}

// note stores trouble as it comes and goes, until ctx ends: as often as the breaker lets calls through.
func (s *session) note(ctx context.Context) {
	stored := ""
	for {
		select {
		case <-s.trouble.changed:
		case <-ctx.Done():
			return
		}
		text := s.trouble.get()
		if text == stored {
			continue
		}
		s.store.take()
		err := s.cur.Trouble(ctx, text)
		s.store.leave()
		if err != nil {
			if ctx.Err() == nil {
				s.fail(err)
			}
			return
		}
		stored = text
	}
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
			s.store.take()
			n, err = s.cur.Promote(ctx, promoted)
			s.store.leave()
			if err != nil {
				if ctx.Err() == nil {
					s.fail(err)
				}
				return
			}
		}
	}
}
