package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// meant returns the shards that a call on the queue is for, by index. It fails if this node does
// not serve all of them.
func (b *Broker) meant(ctx context.Context, set *queue.Settings) ([]*shard, error) {
	here, err := b.served(ctx, set)
	if err != nil {
		return nil, err
	}
	return here, nil
}

// served is meant for a call that a single shard can answer: it returns the shards that this node
// serves, and the error of one that it does not serve.
func (b *Broker) served(ctx context.Context, set *queue.Settings) (here []*shard, absent error) {
	wanted := queue.ShardsOf(ctx)
	for index := range set.Shards {
		if wanted != nil && !slices.Contains(wanted, index) {
			continue
		}
		s, err := b.serving(ctx, set.Name, index)
		if err != nil {
			absent = err
			continue
		}
		here = append(here, s)
	}
	return here, absent
}

func millisecond(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// Get returns a job with its payload.
func (b *Broker) Get(ctx context.Context, name, id string) (*queue.Info, []byte, error) {
	set, err := b.open(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if refusal := checkID(id); refusal != nil {
		return nil, nil, refusal
	}
	shards, absent := b.served(ctx, set)
	// The shard of the job's ID first; a job with a group may be on another one.
	slices.SortStableFunc(shards, func(x, y *shard) int {
		own := shardOf(id, set.Shards)
		return boolInt(x.index != own) - boolInt(y.index != own)
	})
	for _, s := range shards {
		c := newCall(getStep)
		c.id = id
		if err := s.do(ctx, c); err != nil {
			if queue.TagOf(err) == queue.JobNotFound {
				continue
			}
			return nil, nil, err
		}
		if c.blob != "" {
			return b.withPayload(ctx, s, c)
		}
		return c.info, c.payload, nil
	}
	if absent != nil {
		return nil, nil, absent
	}
	return nil, nil, queue.Refuse(queue.JobNotFound, "there is no job %q, or it ended too long ago", id)
}

// withPayload reads the payload object of a job that was found. If the object is gone, the job has
// ended meanwhile, or the payload is lost; then the job is looked up again and returned without it.
func (b *Broker) withPayload(ctx context.Context, s *shard, found *call) (*queue.Info, []byte, error) {
	if !inflight.FromContext(ctx).Take(int64(found.info.Size)) {
		return nil, nil, crowded()
	}
	payload, err := payloadOf(ctx, b.cfg.Bucket, found.blob)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		again := newCall(getStep)
		again.id = found.id
		if err := s.do(ctx, again); err != nil {
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

func getStep(s *shard, c *call) progress {
	if j, ok := s.ledger.Find(c.id); ok {
		i := s.info(&j)
		c.info, c.payload, c.blob = &i, []byte(j.Payload), j.Blob
		return decided
	}
	if end, ok := s.ledger.Ended(c.id); ok {
		c.info = &queue.Info{
			ID: c.id, Queue: s.name, State: stateOf(end.State), EndedAt: time.UnixMilli(end.At), Result: slices.Clone(end.Result),
		}
		return decided
	}
	c.refuse(queue.Refuse(queue.JobNotFound, "there is no job %q, or it ended too long ago", c.id))
	return placed
}

const listStep = 20_000 // most jobs that are examined for one page

// List returns a page of jobs: shard by shard, in each the oldest first. A page may be short, even
// empty, and still have a cursor, because one call examines at most listStep jobs per shard and
// returns at most MaxPayload bytes of payloads.
func (b *Broker) List(ctx context.Context, name string, q queue.Query) (*queue.Page, error) {
	set, err := b.open(ctx, name)
	if err != nil {
		return nil, err
	}
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
	shards, err := b.meant(ctx, set)
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
		c := newCall(pageStep)
		c.room = room
		c.query, c.page, c.memory = &part, page, inflight.FromContext(ctx)
		if s.index == index && q.Cursor != "" {
			_, c.number, _ = parseCursor(q.Cursor)
		}
		if err := s.do(ctx, c); err != nil {
			return nil, err
		}
		if page.Cursor != "" {
			return page, nil
		}
		room = c.room
		if len(page.Jobs) >= q.Limit {
			if n+1 < len(shards) {
				page.Cursor = cursorOf(shards[n+1].index, 0)
			}
			return page, nil
		}
	}
	return page, nil
}

// fits reports whether a payload has room on the page and in the memory that the process may hold
// for its callers.
func (c *call) fits(size int) bool {
	if c.room -= size; c.room < 0 && len(c.page.Jobs) > 0 {
		return false
	}
	return c.memory.Take(int64(size))
}

func pageStep(s *shard, c *call) progress {
	seen := 0
	limit := len(c.page.Jobs) + c.query.Limit
	s.ledger.EachFrom(c.number, func(j ledger.Job) bool {
		if len(c.page.Jobs) == limit || seen == listStep {
			c.page.Cursor = cursorOf(s.index, j.Number)
			return false
		}
		seen++
		if c.query.State != "" && stateOf(j.State) != c.query.State || c.query.Type != "" && j.Type != c.query.Type {
			return true
		}
		if c.query.Payload && !c.fits(len(j.Payload)) {
			if c.page.Cursor = cursorOf(s.index, j.Number); len(c.page.Jobs) == 0 {
				c.refuse(crowded()) // a cursor would lead to the same page for ever
			}
			return false
		}
		c.page.Jobs = append(c.page.Jobs, s.info(&j))
		if c.query.Payload {
			c.page.Payloads = append(c.page.Payloads, []byte(j.Payload))
		}
		return true
	})
	return decided
}

// Stats returns the counts of the shards that are asked for, added up.
func (b *Broker) Stats(ctx context.Context, name string) (*queue.Stats, error) {
	set, err := b.open(ctx, name)
	if err != nil {
		return nil, err
	}
	shards, err := b.meant(ctx, set)
	if err != nil {
		return nil, err
	}
	total := &queue.Stats{Queue: name, Broker: b.cfg.Address, Paused: true}
	for _, s := range shards {
		c := newCall(statsStep)
		if err := s.do(ctx, c); err != nil {
			return nil, err
		}
		total.Add(c.stats)
	}
	return total, nil
}

func statsStep(s *shard, c *call) progress {
	c.stats = s.stats()
	return decided
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
		Broker: s.b.cfg.Address, Epoch: s.epoch,
	}
	if s.tools != nil {
		st.Duplicates = s.tools.rates.duplicates
		st.EnqueueRate, st.CompleteRate = s.tools.rates.perSecond(s.clock.wall)
	}
	if l.Oldest != 0 {
		st.OldestAge = millisecond(max(0, s.clock.now-l.Oldest))
	}
	return st
}

// Do carries out a command shard by shard, and returns how many jobs it affected.
func (b *Broker) Do(ctx context.Context, name string, cmd queue.Command) (int, error) {
	set, err := b.open(ctx, name)
	if err != nil {
		return 0, err
	}
	if refusal := checkCommand(&cmd); refusal != nil {
		return 0, refusal
	}
	shards, err := b.meant(ctx, set)
	if err != nil {
		return 0, err
	}
	met := 0
	for n, s := range shards {
		c := newCall(commandStep)
		c.command = &cmd
		if err := s.do(ctx, c); err != nil {
			if n > 0 && queue.TagOf(err) != queue.UnknownOutcome { // it was carried out on the shards before
				err = errors.Join(unknown(fmt.Sprintf("the action was carried out on %d of %d shards", n, len(shards))), err)
			}
			return met, err
		}
		met += c.met
	}
	return met, nil
}

// checkCommand validates a command.
func checkCommand(cmd *queue.Command) *queue.Error {
	switch {
	case !slices.Contains([]queue.Act{queue.Cancel, queue.Redrive, queue.RunNow, queue.Purge, queue.Pause, queue.Resume}, cmd.Act):
		return queue.Refuse(queue.BadRequest, "the action %.20q is not one of cancel, redrive, retry, purge, pause, resume", cmd.Act)
	case len(cmd.IDs) > queue.MaxCall:
		return queue.Refuse(queue.TooManyJobs, "%d IDs in one call, the limit is %d", len(cmd.IDs), queue.MaxCall)
	case len(cmd.IDs) > 0 && (cmd.Act == queue.Purge || cmd.Act == queue.Pause || cmd.Act == queue.Resume):
		return queue.Refuse(queue.BadRequest, "%s takes no IDs", cmd.Act)
	case cmd.State != "" && cmd.Act != queue.Purge:
		return queue.Refuse(queue.BadRequest, "%s takes no state", cmd.Act)
	case !slices.Contains([]queue.State{"", queue.Waiting, queue.Delayed, queue.Active, queue.Dead}, cmd.State):
		return queue.Refuse(queue.BadRequest, "jobs of the state %.20q cannot be purged", cmd.State).WithHint("states that can be purged: waiting, delayed, active, dead")
	}
	for _, id := range cmd.IDs {
		if err := checkID(id); err != nil {
			return err
		}
	}
	return nil
}

// qualifies reports whether the action applies to jobs in this state.
func qualifies(cmd *queue.Command, s ledger.State) bool {
	switch cmd.Act {
	case queue.Cancel: // a job that is named by ID may be dead, too
		return s != ledger.Dead || len(cmd.IDs) > 0
	case queue.Redrive:
		return s == ledger.Dead
	case queue.RunNow:
		return s == ledger.Delayed
	case queue.Purge:
		return stateOf(s) == cmd.State || cmd.State == "" && s != ledger.Active
	default:
		return false
	}
}

const (
	commandJobs = 500    // jobs in one record
	commandSeen = 10_000 // jobs that are examined in one step
)

var commandKinds = map[queue.Act]ledger.Kind{
	queue.Cancel: ledger.Cancel, queue.Redrive: ledger.Redrive, queue.RunNow: ledger.MakeReady, queue.Purge: ledger.Purge, queue.Pause: ledger.Pause, queue.Resume: ledger.Resume,
}

// commandStep makes one record for up to commandJobs jobs. It returns later if there are more.
func commandStep(s *shard, c *call) progress {
	cmd := c.command
	if s.commits.full() {
		switch {
		case c.wrote && !s.commits.idle():
			return s.commits.waitForNewest(c) // continues when a batch is durable and there may be room again
		case c.wrote:
			return later
		}
		c.refuse(full("too much is being written at the moment"))
		return placed
	}
	if cmd.Act == queue.Pause || cmd.Act == queue.Resume {
		s.commits.record(c, &ledger.Record{Kind: commandKinds[cmd.Act]})
		return decided
	}
	if len(cmd.IDs) > 0 {
		return s.commandIDs(c)
	}
	return s.commandAll(c)
}

// commandIDs makes a record for the jobs that the command names. It parks the call at the first one
// that is held.
func (s *shard) commandIDs(c *call) progress {
	r := ledger.Record{Kind: commandKinds[c.command.Act]}
	wait := false
	for ; c.next < len(c.command.IDs); c.next++ {
		id := c.command.IDs[c.next]
		j, ok := s.ledger.Find(id)
		_, held := s.ledger.Lookup(ledger.Pack(id)) // an enqueue of it may be in flight
		if wait = held || ok && slices.Contains(r.Numbers, j.Number); wait {
			break
		}
		if !ok && c.command.Act == queue.Cancel {
			s.commits.waitForAll(c)
		}
		if ok && qualifies(c.command, j.State) && (c.command.Type == "" || c.command.Type == j.Type) {
			r.Numbers = append(r.Numbers, j.Number)
		}
	}
	if len(r.Numbers) > 0 {
		c.met += len(r.Numbers)
		s.commits.record(c, &r)
	}
	if wait {
		return s.commits.waitForNewest(c)
	}
	return decided
}

// commandAll makes a record for the next jobs to which the command applies, in the order of their
// numbers.
func (s *shard) commandAll(c *call) progress {
	if c.limit == 0 { // jobs that are submitted later are not meant
		c.limit = s.ledger.Stats().Next
	}
	r := ledger.Record{Kind: commandKinds[c.command.Act]}
	seen, end, wait := 0, true, false
	s.ledger.EachFrom(c.number, func(j ledger.Job) bool {
		if j.Number >= c.limit {
			return false
		}
		if wait = j.Held; wait || len(r.Numbers) == commandJobs || seen == commandSeen {
			c.number, end = j.Number, false
			return false
		}
		seen++
		if qualifies(c.command, j.State) && (c.command.Type == "" || c.command.Type == j.Type) {
			r.Numbers = append(r.Numbers, j.Number)
		}
		return true
	})
	if len(r.Numbers) > 0 {
		c.met += len(r.Numbers)
		s.commits.record(c, &r)
	}
	switch {
	case end:
		return decided
	case wait:
		return s.commits.waitForNewest(c)
	}
	return later
}
