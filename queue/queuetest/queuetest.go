// Package queuetest is a simple in-memory queue for tests: of job handlers, of code that enqueues,
// and of anything that uses a [queue.Service]. Callers see the behaviour of a broker, with these
// differences. It stores nothing, has one shard, accepts every queue name, and never forgets an ID.
// IDs, tokens and cursors are short and show their order.
//
//	q := queuetest.New()
//	q.Enqueue(ctx, "default", []queue.Job{{Type: "email:send", Payload: payload}})
//
// It uses time.Now, so it works in a testing/synctest bubble. It has no goroutine: claims expire
// when the next call looks at them.
package queuetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/queue"
)

const (
	visibility  = 30 * time.Second
	maxAttempts = 3
	backoff     = time.Second
)

// Queue is a queue service in memory. Create it with [New].
type Queue struct {
	mu     sync.Mutex
	queues map[string]*state
	tokens int
	calls  map[string]int
}

var _ queue.Service = (*Queue)(nil)

// state is the state of one named queue.
type state struct {
	jobs    []*job // in the order in which they were submitted
	byID    map[string]*job
	paused  bool
	claims  map[string][]*job // by request ID
	changed chan struct{}     // closed when a waiting claim should look again
	stats   queue.Stats
}

type job struct {
	info        queue.Info
	payload     []byte
	retry       queue.Retry
	token       string // of the newest claim; empty: tokenless
	tokens      []string
	begun       bool   // the newest delivery counts as an attempt
	redrivenAt  int    // deliveries before the last redrive
	completedBy string // token or worker that completed it
}

// New creates an empty queue service.
func New() *Queue { return &Queue{queues: map[string]*state{}, calls: map[string]int{}} }

// Calls returns how often a method (such as "Claim") was called.
func (q *Queue) Calls(method string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.calls[method]
}

// enter locks q and returns the queue, updated to the current time.
func (q *Queue) enter(method, name string) (*state, time.Time) {
	q.mu.Lock()
	q.calls[method]++
	s := q.queues[name]
	if s == nil {
		s = &state{byID: map[string]*job{}, claims: map[string][]*job{}, changed: make(chan struct{})}
		s.stats = queue.Stats{Queue: name, Shards: 1, Broker: "127.0.0.1:7070", Epoch: 1}
		q.queues[name] = s
	}
	now := time.Now()
	s.advanceTo(now)
	return s, now
}

// advanceTo ends claims, delays and times to live that are over.
func (s *state) advanceTo(now time.Time) {
	for _, j := range s.jobs {
		i := &j.info
		if i.State == queue.Active && !now.Before(i.Until) {
			j.begin()
			s.giveBack(j, now, "the claim was not extended in time", 0, false)
		}
		if i.State == queue.Delayed && !now.Before(i.RunAt) {
			i.State, i.RunAt = queue.Waiting, time.Time{}
		}
		if i.State == queue.Waiting && !i.ExpiresAt.IsZero() && !now.Before(i.ExpiresAt) {
			i.State, i.Cause, i.EndedAt = queue.Dead, "expired before it was claimed", now
			s.stats.Expired++
		}
	}
}

// giveBack ends a failed attempt: the job waits for the next one, or is dead.
func (s *state) giveBack(j *job, now time.Time, cause string, after time.Duration, dead bool) {
	i := &j.info
	i.Cause, i.Until, j.token = cause, time.Time{}, ""
	switch {
	case dead || i.Attempts >= i.MaxAttempts:
		i.State, i.EndedAt = queue.Dead, now
		s.stats.Died++
	case after > 0:
		i.State, i.RunAt = queue.Delayed, now.Add(after)
	default:
		i.State = queue.Waiting
	}
	s.wake()
}

// begin counts the delivery as an attempt, once.
func (j *job) begin() {
	if !j.begun {
		j.begun = true
		j.info.Attempts++
	}
}

func (s *state) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Enqueue implements [queue.Producer].
func (q *Queue) Enqueue(_ context.Context, name string, jobs []queue.Job) ([]queue.Receipt, error) {
	s, now := q.enter("Enqueue", name)
	defer q.mu.Unlock()
	out := make([]queue.Receipt, len(jobs))
	for n, j := range jobs {
		id := j.ID
		switch {
		case id != "":
		case j.Key != "":
			id = "key-" + j.Key
		default:
			id = fmt.Sprintf("job-%d", len(s.jobs)+1)
		}
		if old := s.byID[id]; old != nil {
			out[n] = queue.Receipt{ID: id, Duplicate: true, State: old.info.State}
			s.stats.Duplicates++
			continue
		}
		added := newJob(name, id, j, now)
		s.jobs, s.byID[id] = append(s.jobs, added), added
		s.stats.Enqueued++
		out[n] = queue.Receipt{ID: id, State: added.info.State}
	}
	s.wake()
	return out, nil
}

func newJob(name, id string, j queue.Job, now time.Time) *job {
	out := &job{payload: slices.Clone(j.Payload), retry: j.Retry, info: queue.Info{
		ID: id, Queue: name, Type: j.Type, Group: j.Group, State: queue.Waiting, Priority: j.Priority,
		MaxAttempts: cmp.Or(j.Retry.MaxAttempts, maxAttempts), CreatedAt: now, Size: len(j.Payload),
	}}
	at := j.RunAt
	if j.Delay > 0 {
		at = now.Add(j.Delay)
	}
	if at.After(now) {
		out.info.State, out.info.RunAt = queue.Delayed, at
	}
	if j.TTL > 0 {
		out.info.ExpiresAt = now.Add(j.TTL)
	}
	return out
}

// Claim implements [queue.Consumer].
func (q *Queue) Claim(ctx context.Context, name string, req queue.ClaimRequest) ([]queue.Claimed, error) {
	var deadline <-chan time.Time
	if req.Wait > 0 {
		t := time.NewTimer(req.Wait)
		defer t.Stop()
		deadline = t.C
	}
	for {
		s, now := q.enter("Claim", name)
		out := q.claim(s, req, now)
		changed, next := s.changed, s.next(now)
		q.mu.Unlock()
		if len(out) > 0 || req.Wait <= 0 {
			return out, nil
		}
		t := time.NewTimer(next)
		select {
		case <-changed:
		case <-t.C:
		case <-deadline:
			t.Stop()
			return nil, nil
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
		t.Stop()
	}
}

// next returns how long nothing changes by time alone.
func (s *state) next(now time.Time) time.Duration {
	wait := queue.MaxWait
	for _, j := range s.jobs {
		for _, at := range []time.Time{j.info.Until, j.info.RunAt, j.info.ExpiresAt} {
			if !at.IsZero() && at.After(now) {
				wait = min(wait, at.Sub(now))
			}
		}
	}
	return wait
}

func (q *Queue) claim(s *state, req queue.ClaimRequest, now time.Time) []queue.Claimed {
	length := cmp.Or(req.Visibility, visibility)
	if again, ok := s.claims[req.RequestID]; ok && req.RequestID != "" {
		return claimAll(again, now)
	}
	if s.paused {
		return nil
	}
	var ready []*job
	for _, j := range s.jobs {
		if j.info.State == queue.Waiting && (len(req.Types) == 0 || slices.Contains(req.Types, j.info.Type)) {
			ready = append(ready, j)
		}
	}
	slices.SortStableFunc(ready, func(a, b *job) int { return cmp.Compare(b.info.Priority, a.info.Priority) })
	ready = ready[:min(len(ready), max(req.Max, 1))]
	for _, j := range ready {
		j.info.State, j.info.Worker, j.info.Until = queue.Active, req.Worker, now.Add(length)
		j.info.Deliveries++
		j.token, j.begun = "", false
		if !req.Tokenless {
			q.tokens++
			j.token = fmt.Sprintf("token-%d", q.tokens)
			j.tokens = append(j.tokens, j.token)
		}
	}
	if req.RequestID != "" && len(ready) > 0 {
		s.claims[req.RequestID] = ready
	}
	return claimAll(ready, now)
}

func claimAll(jobs []*job, now time.Time) []queue.Claimed {
	var out []queue.Claimed
	for _, j := range jobs {
		if j.info.State == queue.Active {
			out = append(out, queue.Claimed{
				Job: j.info, Payload: slices.Clone(j.payload), Token: j.token, Until: j.info.Until, For: j.info.Until.Sub(now),
			})
		}
	}
	return out
}

// Settle implements [queue.Consumer].
func (q *Queue) Settle(_ context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	s, now := q.enter("Settle", name)
	defer q.mu.Unlock()
	out := make([]queue.Outcome, len(what))
	for n, w := range what {
		out[n] = s.settle(w, now)
	}
	return out, nil
}

func (s *state) settle(w queue.Settlement, now time.Time) queue.Outcome {
	out := queue.Outcome{ID: w.ID}
	j := s.byID[w.ID]
	switch {
	case j == nil && w.Token != "":
		out.Err = stale(w, "this is not a token of the job")
		return out
	case j == nil:
		out.Err = notFound(w.ID)
		return out
	}
	i := &j.info
	proof := cmp.Or(w.Token, w.Worker)
	if i.State == queue.Completed && w.Verb == queue.Complete && j.completedBy == proof {
		out.State = i.State
		return out
	}
	holds := i.State == queue.Active && (w.Token != "" && w.Token == j.token || w.Token == "" && j.token == "" && w.Worker == i.Worker)
	switch {
	case holds:
	case w.Token != "" && !slices.Contains(j.tokens, w.Token):
		out.Err = stale(w, "this is not a token of the job")
	case ended(i.State):
		out.Err = stale(w, "the job is "+string(i.State))
	case w.Token != "":
		out.Err = stale(w, "the claim is over; the job is "+string(i.State))
	default:
		out.Err = stale(w, "the worker does not hold the job; it is "+string(i.State))
	}
	if out.Err != nil {
		return out
	}
	s.apply(j, w, proof, now)
	out.State = i.State
	if w.Verb == queue.Extend {
		out.For = i.Until.Sub(now)
	}
	return out
}

func stale(w queue.Settlement, why string) *queue.Error {
	return queue.Refuse(queue.StaleClaim, "job %q: %s", w.ID, why).WithHint("stop working on it; another worker may have it")
}

func notFound(id string) *queue.Error {
	return queue.Refuse(queue.JobNotFound, "there is no job %q, or it ended too long ago", id)
}

// ended reports whether a job in this state is removed, except for its ID.
func ended(s queue.State) bool { return s == queue.Completed || s == queue.Cancelled }

// apply carries out a settlement by the claim's holder.
func (s *state) apply(j *job, w queue.Settlement, proof string, now time.Time) {
	i := &j.info
	switch w.Verb {
	case queue.Extend:
		j.begin()
		i.Until = now.Add(cmp.Or(w.Visibility, visibility))
	case queue.Complete:
		j.begin()
		i.State, i.EndedAt, i.Result, i.Until = queue.Completed, now, slices.Clone(w.Result), time.Time{}
		j.completedBy = proof
		s.stats.Completed++
	case queue.Release:
		if i.Attempts >= i.MaxAttempts || i.Deliveries-j.redrivenAt >= 3*i.MaxAttempts {
			j.begin()
			s.stats.Failed++
			s.giveBack(j, now, "delivered and released too often", 0, true)
			return
		}
		i.State, i.Until, j.token = queue.Waiting, time.Time{}, ""
		s.wake()
	case queue.Fail:
		j.begin()
		s.stats.Failed++
		after := cmp.Or(j.retry.Backoff, backoff) << (i.Attempts - 1)
		if w.RetryAfter != nil {
			after = *w.RetryAfter
		}
		s.giveBack(j, now, w.Cause, after, w.Dead)
	}
}

// Get implements [queue.Operator].
func (q *Queue) Get(_ context.Context, name, id string) (*queue.Info, []byte, error) {
	s, _ := q.enter("Get", name)
	defer q.mu.Unlock()
	j := s.byID[id]
	switch {
	case j == nil:
		return nil, nil, notFound(id)
	case ended(j.info.State): // only this is remembered
		i := j.info
		return &queue.Info{ID: id, Queue: name, State: i.State, EndedAt: i.EndedAt, Result: i.Result}, nil, nil
	}
	info := j.info
	return &info, slices.Clone(j.payload), nil
}

// List implements [queue.Operator]. A cursor is the ID of the last job of the previous page.
func (q *Queue) List(_ context.Context, name string, query queue.Query) (*queue.Page, error) {
	s, _ := q.enter("List", name)
	defer q.mu.Unlock()
	if !slices.Contains(kept, query.State) {
		return nil, queue.Refuse(queue.BadRequest, "jobs of the state %.20q are not listed", query.State).
			WithHint("listed states: waiting, delayed, active, dead; a completed or cancelled job can be shown by its ID")
	}
	begin := 0
	if query.Cursor != "" {
		begin = slices.IndexFunc(s.jobs, func(j *job) bool { return j.info.ID == query.Cursor }) + 1
		if begin == 0 {
			return nil, queue.Refuse(queue.BadRequest, "the cursor %.80q is not from a page", query.Cursor)
		}
	}
	page := &queue.Page{Jobs: []queue.Info{}}
	for _, j := range s.jobs[begin:] {
		if !chosen(j.info, query) {
			continue
		}
		if len(page.Jobs) == cmp.Or(query.Limit, 100) {
			page.Cursor = page.Jobs[len(page.Jobs)-1].ID
			break
		}
		page.Jobs = append(page.Jobs, j.info)
		if query.Payload {
			page.Payloads = append(page.Payloads, slices.Clone(j.payload))
		}
	}
	return page, nil
}

// kept are the states that can be listed; "" means all of them.
var kept = []queue.State{"", queue.Waiting, queue.Delayed, queue.Active, queue.Dead}

func chosen(i queue.Info, q queue.Query) bool {
	return (q.State == i.State || q.State == "" && !ended(i.State)) && (q.Type == "" || q.Type == i.Type)
}

// Stats implements [queue.Operator].
func (q *Queue) Stats(_ context.Context, name string) (*queue.Stats, error) {
	s, now := q.enter("Stats", name)
	defer q.mu.Unlock()
	out := s.stats
	out.Paused = s.paused
	for _, j := range s.jobs {
		switch j.info.State {
		case queue.Waiting:
			out.Waiting++
			out.OldestAge = max(out.OldestAge, now.Sub(j.info.CreatedAt))
		case queue.Delayed:
			out.Delayed++
		case queue.Active:
			out.Active++
		case queue.Dead:
			out.Dead++
		default:
		}
	}
	return &out, nil
}

// Do implements [queue.Operator].
func (q *Queue) Do(_ context.Context, name string, c queue.Command) (int, error) {
	s, now := q.enter("Do", name)
	defer q.mu.Unlock()
	switch c.Act {
	case queue.Pause, queue.Resume:
		s.paused = c.Act == queue.Pause
		s.wake()
		return 0, nil
	case queue.Cancel, queue.Redrive, queue.RunNow, queue.Purge:
	default:
		return 0, queue.Refuse(queue.BadRequest, "the action %.20q is not one of cancel, redrive, retry, purge, pause, resume", c.Act)
	}
	if !slices.Contains(kept, c.State) {
		return 0, queue.Refuse(queue.BadRequest, "jobs of the state %.20q cannot be purged", c.State).
			WithHint("states that can be purged: waiting, delayed, active, dead")
	}
	n := 0
	for _, j := range slices.Clone(s.jobs) {
		named := len(c.IDs) == 0 || slices.Contains(c.IDs, j.info.ID)
		if named && (c.Type == "" || c.Type == j.info.Type) && s.applyCommand(j, c, now) {
			n++
		}
	}
	s.wake()
	return n, nil
}

// applyCommand applies a command to one job, and reports whether it applies to the job's state.
func (s *state) applyCommand(j *job, c queue.Command, now time.Time) bool {
	i := &j.info
	switch {
	case ended(i.State):
		return false
	case c.Act == queue.Cancel && (i.State != queue.Dead || len(c.IDs) > 0):
		i.State, i.EndedAt, j.token = queue.Cancelled, now, ""
		s.stats.Cancelled++
	case c.Act == queue.Redrive && i.State == queue.Dead:
		i.State, i.Attempts, i.Cause, i.EndedAt = queue.Waiting, 0, "", time.Time{}
		j.redrivenAt = i.Deliveries
	case c.Act == queue.RunNow && i.State == queue.Delayed:
		i.State, i.RunAt = queue.Waiting, time.Time{}
	case c.Act == queue.Purge && (i.State == c.State || c.State == "" && i.State != queue.Active):
		s.jobs = slices.DeleteFunc(s.jobs, func(other *job) bool { return other == j })
		delete(s.byID, i.ID)
	default:
		return false
	}
	return true
}
