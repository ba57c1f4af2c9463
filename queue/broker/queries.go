package broker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// requestedShards returns those of the shards that a call is for which this node serves, by index. The
// error is that of one that it does not serve.
func (b *Broker) requestedShards(ctx context.Context, set *queue.Settings) (here []*shard, missing error) {
	wanted, _ := queue.ShardsOf(ctx)
	for index := range set.Shards {
		if wanted != nil && !slices.Contains(wanted, index) {
			continue
		}
		s, err := b.serving(ctx, set, index)
		if err != nil {
			missing = err
			continue
		}
		here = append(here, s)
	}
	return here, missing
}

func millisecond(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// Get returns a job with its payload.
func (b *Broker) Get(ctx context.Context, name, id string) (*queue.Info, []byte, error) {
	set, err := b.beginCall(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if refusal := checkID(id); refusal != nil {
		return nil, nil, refusal
	}
	shards, absent := b.requestedShards(ctx, set)
	// The shard of the job's ID first; a job with a group may be on another one.
	slices.SortStableFunc(shards, func(x, y *shard) int {
		own := shardOf(id, set.Shards)
		return boolInt(x.index != own) - boolInt(y.index != own)
	})
	for _, s := range shards {
		c := &getCall{id: id}
		c.call = newCall(c)
		if err := s.do(ctx, &c.call); err != nil {
			if queue.TagOf(err) == queue.JobNotFound {
				continue
			}
			return nil, nil, err
		}
		if c.blob != "" || c.place.slot != 0 {
			return b.withPayload(ctx, s, c)
		}
		return c.info, c.payload, nil
	}
	if absent != nil {
		return nil, nil, absent
	}
	return nil, nil, queue.Refuse(queue.JobNotFound, "there is no job %q, or it ended too long ago", id)
}

// withPayload reads the payload of a job that was found. If it is gone, the job has
// ended meanwhile, or the payload is lost; then the job is looked up again and returned without it.
func (b *Broker) withPayload(ctx context.Context, s *shard, found *getCall) (*queue.Info, []byte, error) {
	if !inflight.FromContext(ctx).Take(int64(found.info.Size)) {
		return nil, nil, memoryFull()
	}
	var payload []byte
	var err error
	if found.place.slot != 0 {
		payload, err = b.segmentPayload(ctx, s, found.place)
	} else {
		payload, err = payloadOf(ctx, b.cfg.Bucket, found.blob)
	}
	switch {
	case errors.Is(err, blob.ErrNotFound):
		again := &getCall{id: found.id}
		again.call = newCall(again)
		if err := s.do(ctx, &again.call); err != nil {
			return nil, nil, err
		}
		return again.info, nil, nil
	case err != nil:
		return nil, nil, queue.Refuse(queue.Unavailable, "read the payload of job %q: %w", found.id, err)
	}
	return found.info, payload, nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// getCall looks a job up.
type getCall struct {
	call
	id      string
	info    *queue.Info
	payload []byte
	blob    string       // the object of its own that has the payload
	place   payloadPlace // if a segment has the payload
}

func (c *getCall) step(s *shard) progress {
	if j, ok := s.ledger.Find(c.id); ok {
		i := s.info(&j)
		c.info, c.payload, c.blob = &i, []byte(j.Payload), j.Blob
		if j.Payload == "" {
			c.place = payloadPlace{j.Number, ledger.Pack(j.ID), j.Slot}
		}
		return decided
	}
	if end, ok := s.ledger.Ended(c.id); ok {
		c.info = &queue.Info{
			ID: c.id, Queue: s.name, State: stateOf(end.State), EndedAt: time.UnixMilli(end.At), Result: slices.Clone(end.Result),
		}
		return decided
	}
	c.refuse(queue.Refuse(queue.JobNotFound, "there is no job %q, or it ended too long ago", c.id))
	return handled
}

const maxExamined = 20_000 // most jobs that are examined for one page

// List returns a page of jobs: shard by shard, in each the oldest first. A page may be short, even
// empty, and still have a cursor, because one call examines at most maxExamined jobs per shard and
// returns at most MaxPayload bytes of payloads.
func (b *Broker) List(ctx context.Context, name string, q queue.Query) (*queue.Page, error) {
	set, err := b.beginCall(ctx, name)
	if err != nil {
		return nil, err
	}
	var refusal *queue.Error
	if q.Cursor, refusal = cutLayout(q.Cursor, set.Layout); refusal != nil {
		return nil, refusal
	}
	page, err := b.list(ctx, set, q)
	if err == nil {
		page.Cursor = withLayout(page.Cursor, set.Layout)
	}
	return page, err
}

// list returns a page. Cursors are those of the queue's present shards.
func (b *Broker) list(ctx context.Context, set *queue.Settings, q queue.Query) (*queue.Page, error) {
	index, _, refusal := parseCursor(q.Cursor)
	switch {
	case refusal != nil:
		return nil, refusal
	case index >= set.Shards:
		return nil, notACursor(q.Cursor)
	case q.Limit < 0 || q.Limit > queue.MaxPage:
		return nil, queue.Refuse(queue.BadRequest, "the limit is %d, want 1 to %d", q.Limit, queue.MaxPage)
	case !slices.Contains([]queue.State{"", queue.Waiting, queue.Delayed, queue.Active, queue.Dead}, q.State):
		return nil, queue.Refuse(queue.BadRequest, "jobs of the state %.20q are not listed", q.State).
			WithHint("listed states: waiting, delayed, active, dead; a completed or cancelled job can be shown by its ID")
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	shards, err := b.requestedShards(ctx, set)
	if err != nil {
		return nil, err
	}
	page, room := &queue.Page{Jobs: []queue.Info{}}, queue.MaxPayload
	for n, s := range shards {
		if s.index < index {
			continue
		}
		part := q
		part.Limit -= len(page.Jobs)
		c := &pageCall{query: &part, page: page, payloadBudget: room, memory: inflight.FromContext(ctx)}
		c.call = newCall(c)
		if s.index == index && q.Cursor != "" {
			_, c.number, _ = parseCursor(q.Cursor)
		}
		if err := s.do(ctx, &c.call); err != nil {
			return nil, err
		}
		if err := b.fillPage(ctx, s, page, c.unread); err != nil {
			return nil, err
		}
		if page.Cursor != "" {
			return page, nil
		}
		room = c.payloadBudget
		if len(page.Jobs) >= q.Limit {
			if n+1 < len(shards) {
				page.Cursor = cursorOf(shards[n+1].index, 0)
			}
			return page, nil
		}
	}
	return page, nil
}

// pageCall adds a shard's jobs to a page.
type pageCall struct {
	call
	query         *queue.Query
	number        uint64 // number of the next job to look at
	page          *queue.Page
	payloadBudget int // bytes that the page's payloads may still take
	memory        *inflight.Call
	unread        []pagePayload
}

// reservePayload reports whether a payload has room on the page and in the memory that the process may hold
// for its callers.
func (c *pageCall) reservePayload(size int) bool {
	if c.payloadBudget -= size; c.payloadBudget < 0 && len(c.page.Jobs) > 0 {
		return false
	}
	return c.memory.Take(int64(size))
}

func (c *pageCall) step(s *shard) progress {
	seen := 0
	limit := len(c.page.Jobs) + c.query.Limit
	s.ledger.EachFrom(c.number, func(j ledger.Job) bool {
		if len(c.page.Jobs) == limit || seen == maxExamined {
			c.page.Cursor = cursorOf(s.index, j.Number)
			return false
		}
		seen++
		if c.query.State != "" && stateOf(j.State) != c.query.State || c.query.Type != "" && j.Type != c.query.Type {
			return true
		}
		size := j.Size
		if j.Blob != "" {
			size = 0 // a page does not have it
		}
		if c.query.Payload && !c.reservePayload(size) {
			if c.page.Cursor = cursorOf(s.index, j.Number); len(c.page.Jobs) == 0 {
				c.refuse(memoryFull()) // a cursor would lead to the same page for ever
			}
			return false
		}
		c.page.Jobs = append(c.page.Jobs, s.info(&j))
		if c.query.Payload {
			if j.Payload == "" && j.Slot != 0 {
				c.unread = append(c.unread, pagePayload{len(c.page.Payloads), payloadPlace{j.Number, ledger.Pack(j.ID), j.Slot}})
			}
			c.page.Payloads = append(c.page.Payloads, []byte(j.Payload))
		}
		return true
	})
	return decided
}

// Stats returns the counts of the shards that are asked for, added up.
func (b *Broker) Stats(ctx context.Context, name string) (*queue.Stats, error) {
	set, err := b.beginCall(ctx, name)
	if err != nil {
		return nil, err
	}
	shards, err := b.requestedShards(ctx, set)
	if err != nil {
		return nil, err
	}
	total := &queue.Stats{Queue: name, Broker: b.cfg.Address, Paused: true}
	for _, s := range shards {
		var st *queue.Stats
		if err := s.inquire(ctx, func(s *shard) { st = s.stats() }); err != nil {
			return nil, err
		}
		total.Add(st)
	}
	return total, nil
}

// stats returns the shard's counts.
func (s *shard) stats() *queue.Stats {
	l := s.ledger.Stats()
	st := &queue.Stats{
		Queue: s.name, Shards: 1, Paused: l.Paused,
		Waiting: int64(l.Waiting), Delayed: int64(l.Delayed), Active: int64(l.Active), Dead: int64(l.Dead),
		Enqueued: int64(l.Totals.Enqueued), Completed: int64(l.Totals.Completed), Failed: int64(l.Totals.Failed),
		Expired: int64(l.Totals.Expired), Cancelled: int64(l.Totals.Cancelled), Died: int64(l.Totals.Died),
		IndexBytes: l.IndexBytes, PayloadBytes: l.PayloadBytes, DedupBytes: l.DedupBytes, DedupIDs: int64(l.DedupIDs),
		Writes: s.log.Stats().Segments, WriteBudget: s.b.cfg.WritesPerSecond, Broker: s.b.cfg.Address, Epoch: s.epoch,
	}
	s.counts.addTo(st, s.clock.local)
	if l.Oldest != 0 {
		st.OldestAge = millisecond(max(0, s.clock.now-l.Oldest))
	}
	return st
}

// unreferenced returns those of the payload objects to which no job refers. Any goroutine may call it; it
// fails when the run has ended.
func (s *shard) unreferenced(keys map[string]bool) ([]string, error) {
	var unneeded []string
	if err := s.inquire(s.ctx, func(s *shard) { unneeded = s.ledger.Unreferenced(keys) }); err != nil {
		return nil, err
	}
	return unneeded, nil
}
