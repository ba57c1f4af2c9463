package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/channel"
)

// session is the work of a relay under one claim. It ends when the unit drains, its context ends, or the
// log or the receiver reports that the claim is no longer valid. [Relay.Run] then claims again.
//
//	read ──▶ page ──▶ handle (workers, by key) ──▶ commit
//	   └─ due, delayed ──▶ retry, promote
//
// read gives each row to the worker of its key. So pages overtake each other, but rows of one key do not.
// commit stores positions in the order of the pages. retry delivers parked messages, and promote moves
// delayed messages into the log. The package comment tells the whole way.
type session struct {
	r      *Relay
	a      *daemon.Assignment
	cur    Cursor
	shards string
	log    *slog.Logger
	fail   context.CancelCauseFunc

	cursorMu mutex // serializes the calls of the cursor other than Next
	problem  sinkProblem

	mu     sync.Mutex
	parked map[string]int // parked keys, with the number of their messages that are on the way to the lane

	replayed atomic.Int64 // Page.Replayed of the newest page

	next       uint32 // worker of the last message without a key
	window     window
	workers    []chan batch
	commits    chan *pageInFlight
	lanesDue   chan struct{}
	delayedDue chan struct{}
}

// maxPagesInFlight is how many pages may be in flight, however small they are.
const maxPagesInFlight = 64

// window bounds the pages in flight by the rows of full pages. So many small pages need not wait until
// each other's positions are stored.
type window struct {
	maxRows     int // no page is read while more rows than this are in flight
	pages, rows atomic.Int64
	freed       chan struct{}
	idle        chan struct{} // receives a value when no page is in flight any more
}

// wait waits until another page may be read. It returns false if ctx has ended.
func (w *window) wait(ctx context.Context) bool {
	for w.pages.Load() >= maxPagesInFlight || w.rows.Load() > int64(w.maxRows) {
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
	signal(w.idle, left == 0)
}

// waitIdle waits until no page is in flight, but at most for the time most.
func (w *window) waitIdle(ctx context.Context, stop <-chan struct{}, most time.Duration) {
	t := time.NewTimer(most)
	defer t.Stop()
	for w.pages.Load() > 0 {
		select {
		case <-w.idle:
		case <-t.C:
			return
		case <-stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// mutex is a mutex that a goroutine may hold during a call of the database.
type mutex chan struct{}

func (t mutex) take()  { t <- struct{}{} }
func (t mutex) leave() { <-t }

// pageInFlight is a page in flight.
type pageInFlight struct {
	mark       Mark
	rows       int
	unfinished atomic.Int32 // batches that are not done
	done       chan struct{}
	mu         sync.Mutex
	outcomes   []Outcome // of messages that were not delivered
}

// batch is the batch of rows of a page that one worker handles.
type batch struct {
	work *pageInFlight
	rows []Row
}

// session claims the range and delivers until the session ends.
func (r *Relay) session(ctx context.Context, a *daemon.Assignment, shards Range, refusal *string, wake <-chan struct{}, log *slog.Logger) error {
	cur, err := r.claim(ctx, a, shards, refusal)
	if err != nil {
		return err
	}
	defer cur.Close()
	a.Ready()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := &session{
		r: r, a: a, cur: cur, shards: shards.String(), log: log, fail: fail,
		cursorMu: make(mutex, 1), problem: sinkProblem{changed: make(chan struct{}, 1)}, parked: map[string]int{},
		window: window{maxRows: r.cfg.PageRows * (r.cfg.MaxPages - 1), freed: make(chan struct{}, 1), idle: make(chan struct{}, 1)}, commits: make(chan *pageInFlight, maxPagesInFlight),
		lanesDue: make(chan struct{}, 1), delayedDue: make(chan struct{}, 1),
	}
	for _, key := range cur.Parked() {
		s.parked[key] = 0
	}
	return s.run(ctx, wake)
}

// claim takes the range in the log and makes the receiver reject the range's former owners. Then it
// claims again. The case: this relay was replaced between its claim and its fence, and its late fence
// made the receiver reject the new owner. Then the second claim is refused, so this relay delivers
// nothing, and the new owner fences once more.
//
// refusal is why the fence before failed. It is stored from the first claim on, which clears it, until a fence
// succeeds: a fence that hangs would hide it for most of the time.
func (r *Relay) claim(ctx context.Context, a *daemon.Assignment, shards Range, refusal *string) (Cursor, error) {
	c := ClaimRequest{Subscription: r.cfg.Name, Index: a.Index, Instances: r.cfg.Instances, Epoch: a.Generation, Node: a.Node, Newest: r.cfg.Newest}
	cur, err := r.cfg.Log.Claim(ctx, c)
	f, ok := r.cfg.Sink.(Fencer)
	if err != nil || !ok {
		return cur, err
	}
	defer cur.Close()
	if *refusal != "" {
		if err := cur.SetProblem(ctx, *refusal); err != nil {
			return nil, err
		}
	}
	if err := r.fence(ctx, f, shards.String(), a); err != nil {
		if err = fmt.Errorf("fence the receiver: %w", err); !errors.Is(err, errDrained) {
			*refusal = err.Error()
			_ = cur.SetProblem(ctx, *refusal) // err says more than a failure of this
		}
		return nil, err
	}
	*refusal = ""
	return r.cfg.Log.Claim(ctx, c)
}

// fence has the time limit of a delivery, because a receiver may hang; the relay then tries again. A
// drain interrupts it.
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

// run starts the goroutines and then ends them in the order in which they feed each other.
func (s *session) run(ctx context.Context, wake <-chan struct{}) error {
	var workers, rest sync.WaitGroup
	for range s.r.cfg.Parallel {
		batches := make(chan batch, maxPagesInFlight)
		s.workers = append(s.workers, batches)
		workers.Go(func() { s.work(ctx, batches) })
	}
	rest.Go(func() { s.commit(ctx) })
	reading, stop := context.WithCancel(ctx)
	noting, quiet := context.WithCancel(ctx)
	var last sync.WaitGroup
	last.Go(func() { s.storeProblem(noting) })
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

// read reads pages and dispatches them until ctx ends.
func (s *session) read(ctx context.Context, wake <-chan struct{}) {
	cfg := s.r.cfg
	poll := poller{least: cfg.MinPoll, most: cfg.MaxPoll, pause: cfg.MinPoll}
	polled := false // the read was due to the poller, not to a wake-up
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
		signal(s.lanesDue, page.Due)
		signal(s.delayedDue, page.Delayed)
		s.r.metrics.polled(len(page.Rows))
		if len(page.Rows) > 0 || page.Mark != nil {
			s.window.enter(len(page.Rows))
			s.dispatch(page)
		}
		poll.afterRead(len(page.Rows), polled, time.Now())
		if page.More {
			polled = false // the rest of a backlog says nothing about when messages are published
			continue
		}
		if len(page.Rows) == 0 {
			s.a.Progress(0)
		}
		t := time.NewTimer(poll.pause)
		select {
		case <-t.C:
			polled = true
		case <-wake:
			polled = false
			poll.woken()
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
	w := &pageInFlight{mark: page.Mark, rows: len(page.Rows), done: make(chan struct{})}
	parts := s.byWorker(page.Rows)
	w.unfinished.Store(1)
	for i, rows := range parts {
		if len(rows) > 0 {
			w.unfinished.Add(1)
			s.workers[i] <- batch{w, rows} // never blocks: room for maxPagesInFlight, each with one batch for a worker
		}
	}
	w.batchDone()
	s.commits <- w // never blocks either
}

// byWorker splits the rows that the subscription selects into one slice for each worker. A Row is a large
// struct, so the slices share one allocation.
func (s *session) byWorker(rows []Row) [][]Row {
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
	if i := slices.Index(sizes, len(rows)); i >= 0 {
		parts[i] = rows // all of them, as of one busy key: nothing to split
		return parts
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

// worker returns the worker of a key. Rows without a key are spread over the workers in turn.
func (s *session) worker(key string) int32 {
	n := uint32(len(s.workers))
	if key == "" {
		s.next++
		return int32(s.next % n)
	}
	return int32(hash(key) % n)
}

// batchDone reports that one batch of the page is done.
func (w *pageInFlight) batchDone() {
	if w.unfinished.Add(-1) == 0 {
		close(w.done)
	}
}

// hash maps keys to workers (FNV-1a).
func hash(key string) uint32 {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return h
}

// commit stores positions in the order of the pages. It stores all pages that are done with one call, and waits for no
// other: the log is read again as soon as a page has left the window.
func (s *session) commit(ctx context.Context) {
	var next *pageInFlight // taken from commits, and was not done then
	for {
		w := next
		if next = nil; w == nil {
			var open bool
			if w, open = <-s.commits; !open {
				return
			}
		}
		if !wait(ctx, w) {
			return // finished pages are delivered again: nothing may be stored after a failure
		}
		last, outcomes, n, rows := w.mark, w.outcomes, 1, w.rows
	more:
		for {
			select {
			case w, open := <-s.commits:
				if !open {
					break more
				}
				if !channel.IsClosed(w.done) {
					next = w
					break more
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

// wait waits until a page is done. It returns false if ctx ends before.
func wait(ctx context.Context, w *pageInFlight) bool {
	select {
	case <-w.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// advance stores a position and the outcomes of messages. Only then do these messages no longer count as
// on their way to a lane.
func (s *session) advance(ctx context.Context, to Mark, outcomes []Outcome) error {
	s.cursorMu.take()
	defer s.cursorMu.leave()
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

// splitParked returns the rows that may be delivered. Rows whose key is parked become Behind and are counted
// as on their way to the key's lane.
func (s *session) splitParked(rows []Row) (live []Row, outcomes []Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parked) == 0 {
		return rows, nil
	}
	live = rows[:0] // nothing else uses the slice
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

// park marks the keys of these outcomes as parked and counts their messages as on their way to the lane.
func (s *session) park(outcomes []Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range outcomes {
		if o.Row.Key != "" && (o.Kind == Waiting || o.Kind == Held || o.Kind == Behind) {
			s.parked[o.Row.Key]++
		}
	}
}

// sinkProblem is the reason why the sink is down, as the last call found it.
type sinkProblem struct {
	mu      sync.Mutex
	text    string // "" if the sink is not down
	changed chan struct{}
}

func (t *sinkProblem) set(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text != text {
		t.text = text
		signal(t.changed, true)
	}
}

func (t *sinkProblem) get() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text
}

// storeProblem stores each change of the problem until ctx ends. The circuit breaker bounds how often it changes.
func (s *session) storeProblem(ctx context.Context) {
	stored := ""
	for {
		select {
		case <-s.problem.changed:
		case <-ctx.Done():
			return
		}
		text := s.problem.get()
		if text == stored {
			continue
		}
		s.cursorMu.take()
		err := s.cur.SetProblem(ctx, text)
		s.cursorMu.leave()
		if err != nil {
			if ctx.Err() == nil {
				s.fail(err)
			}
			return
		}
		stored = text
	}
}

// promoteBatch is how many delayed messages one call moves into the log.
const promoteBatch = 1000

// promote moves delayed messages that are due into the log, until stop is closed.
func (s *session) promote(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-s.delayedDue:
		case <-stop:
			return
		}
		for n := promoteBatch; n == promoteBatch && !channel.IsClosed(stop); {
			var err error
			s.cursorMu.take()
			n, err = s.cur.Promote(ctx, promoteBatch)
			s.cursorMu.leave()
			if err != nil {
				if ctx.Err() == nil {
					s.fail(err)
				}
				return
			}
		}
	}
}
