package api

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// Sharding maps jobs and claims to the shards of a queue.
type Sharding interface {
	// Shards returns how many shards a queue has. [queue.QueueNotFound] if there is none. The number
	// may be out of date: brokers refuse calls that were made for another one. If the Sharding is a
	// [client.Invalidator], it is then told so and asked again.
	Shards(ctx context.Context, queue string) (int, error)
	// ShardOfJob returns the shard of a job that has an ID or a key.
	ShardOfJob(j *queue.Job, shards int) int
	// ShardOfSettlement returns the shard of a claim: the one that its token names, or else that of
	// its job's ID.
	ShardOfSettlement(s *queue.Settlement, shards int) int
}

// claimWaitPerNode is how long a waiting claim waits at one node before it asks the next.
const claimWaitPerNode = 500 * time.Millisecond

// shardHolder is a node that serves shards of a queue.
type shardHolder struct {
	first      int // the lowest shard
	shards     []int
	part       bool // not all of the queue's shards
	count      int  // of the queue's shards, as far as this node knows
	svc        queue.Service
	generation int64           // generation of the run that serves the first shard
	callerCtx  context.Context // context of the caller
	ctx        context.Context // context of the call at this node: has the generation and the shards
	err        error           // why no node serves these shards now
}

// on returns the place restricted to some of its shards.
func (p shardHolder) on(shards ...int) shardHolder {
	p.shards, p.first, p.part = shards, shards[0], true
	p.ctx = queue.OnShards(p.ctx, shards, p.count)
	return p
}

// places returns the nodes that serve a queue. For most queues it is one node, which has all
// shards.
func (f *Forwarder) places(ctx context.Context, name string) ([]shardHolder, error) {
	n := 1
	if f.cfg.Sharding != nil && !hopOf(ctx).forwarded {
		var err error
		if n, err = f.cfg.Sharding.Shards(ctx, name); err != nil {
			return nil, err
		}
	}
	var out []shardHolder
	for shard := range n {
		p := f.route(ctx, name, shard)
		p.count = n
		i := slices.IndexFunc(out, func(o shardHolder) bool { return o.svc == p.svc && (o.err == nil) == (p.err == nil) })
		if i < 0 {
			out = append(out, p)
			continue
		}
		out[i].shards = append(out[i].shards, shard)
	}
	if len(out) > 1 {
		for i := range out {
			out[i] = out[i].on(out[i].shards...)
		}
	}
	return out, nil
}

// atPlaces makes a call at the nodes that serve a queue. If it is refused and the queue has another number of
// shards by now, it is made once more for these.
func atPlaces[T any](f *Forwarder, ctx context.Context, name string, do func(places []shardHolder) (T, error)) (T, error) { //nolint:revive // as its callers' methods
	for until := time.Now().Add(f.cfg.HandoverWait); ; {
		places, err := f.places(ctx, name)
		if err != nil {
			var none T
			return none, err
		}
		out, err := do(places)
		if queue.TagOf(err) != queue.Unavailable || ctx.Err() != nil || !f.resharded(ctx, name, shardCount(places)) || time.Now().After(until) {
			return out, err
		}
	}
}

// resharded reports whether a queue has another number of shards than this by now.
func (f *Forwarder) resharded(ctx context.Context, name string, count int) bool {
	d, ok := f.cfg.Sharding.(client.Invalidator)
	if !ok || hopOf(ctx).forwarded {
		return false
	}
	d.Invalidate()
	n, err := f.cfg.Sharding.Shards(ctx, name)
	return err == nil && n != count
}

// single returns the only place, if there is exactly one.
func single(places []shardHolder) (shardHolder, bool) {
	return places[0], len(places) == 1
}

// callSplit makes a call on a list at all places to which elements belong, concurrently, and returns
// the answers in the list's order. If the call fails at one place and may have had an effect at
// another, its outcome is unknown: the caller repeats all of it, which changes nothing where it had
// an effect.
func callSplit[T any](f *Forwarder, name string, places []shardHolder, shards []int, do func(p shardHolder, positions []int) ([]T, error)) ([]T, error) {
	out, errs, called := callParts(f, name, places, shards, do)
	return out, combineErrors(errs, called)
}

// callParts is callSplit with the error of each place, and how many places were called.
func callParts[T any](f *Forwarder, name string, places []shardHolder, shards []int, do func(p shardHolder, positions []int) ([]T, error)) (out []T, errs []error, called int) {
	out, errs = make([]T, len(shards)), make([]error, len(places))
	var all sync.WaitGroup
	for i, p := range places {
		var positions []int
		for position, shard := range shards {
			if slices.Contains(p.shards, shard) {
				positions = append(positions, position)
			}
		}
		if len(positions) == 0 {
			continue
		}
		called++
		all.Go(func() {
			part, err := callAt(f, name, p, func(p shardHolder) ([]T, error) { return do(p, positions) })
			if errs[i] = err; err != nil {
				return
			}
			for n, position := range positions {
				out[position] = part[n]
			}
		})
	}
	all.Wait()
	return out, errs, called
}

// combineErrors combines the errors of the places that were asked.
func combineErrors(errs []error, called int) error {
	var failed []error
	for _, err := range errs {
		if err != nil {
			failed = append(failed, err)
		}
	}
	switch {
	case len(failed) == 0:
		return nil
	case called == 1:
		return failed[0]
	case len(failed) == called && !slices.ContainsFunc(failed, func(err error) bool { return queue.TagOf(err) == queue.UnknownOutcome }):
		return failed[0]
	}
	return queue.Refuse(queue.UnknownOutcome, "some of the queue's shards may have carried it out: %w", errors.Join(failed...)).
		WithHint("repeat it with the same ids, keys or tokens")
}

// pick returns the elements at the given positions.
func pick[T any](list []T, positions []int) []T {
	out := make([]T, len(positions))
	for i, at := range positions {
		out[i] = list[at]
	}
	return out
}

// Enqueue implements [queue.Producer].
func (f *Forwarder) Enqueue(ctx context.Context, name string, jobs []queue.Job) ([]queue.Receipt, error) {
	return atPlaces(f, ctx, name, func(places []shardHolder) ([]queue.Receipt, error) { return f.enqueue(name, places, jobs) })
}

func (f *Forwarder) enqueue(name string, places []shardHolder, jobs []queue.Job) ([]queue.Receipt, error) {
	if p, only := single(places); only {
		return callAt(f, name, p, func(p shardHolder) ([]queue.Receipt, error) { return p.svc.Enqueue(p.ctx, name, jobs) })
	}
	count := shardCount(places)
	named := slices.Clone(jobs)
	shards := make([]int, len(jobs))
	for i := range named {
		if named[i].ID == "" && named[i].Key == "" { // the ID determines the shard
			named[i].ID = client.NewID()
		}
		shards[i] = f.cfg.Sharding.ShardOfJob(&named[i], count)
	}
	return callSplit(f, name, places, shards, func(p shardHolder, positions []int) ([]queue.Receipt, error) {
		return p.svc.Enqueue(p.ctx, name, pick(named, positions))
	})
}

// Settle implements [queue.Consumer]. If the queue has had another number of shards, a settlement that the shard of
// its token does not know is asked about at the others.
func (f *Forwarder) Settle(ctx context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	return atPlaces(f, ctx, name, func(places []shardHolder) ([]queue.Outcome, error) { return f.settle(name, places, what) })
}

// othersWait is how long heartbeats wait for further nodes once one has answered. A node that hangs must not delay the
// answers of the others until their claims have ended. Reports have more time, and wait as every call.
const othersWait = 2 * time.Second

var errOthersAnswered = errors.New("the node has not answered, and others have")

// settle settles at the places of the claims' shards. Settlements that their place does not answer get its error as
// their outcome, unless none answers.
func (f *Forwarder) settle(name string, places []shardHolder, what []queue.Settlement) ([]queue.Outcome, error) {
	if p, only := single(places); only {
		return callAt(f, name, p, func(p shardHolder) ([]queue.Outcome, error) { return p.svc.Settle(p.ctx, name, what) })
	}
	count := shardCount(places)
	shards := make([]int, len(what))
	for i := range what {
		shards[i] = f.cfg.Sharding.ShardOfSettlement(&what[i], count)
	}
	c := settling{f: f, name: name, what: what}
	c.heartbeats = slices.ContainsFunc(what, func(x queue.Settlement) bool { return x.Verb == queue.Extend })
	end := c.begin()
	out, errs, called := callParts(f, name, places, shards, c.at)
	end()
	c.out = out
	var answered []shardHolder
	failed := 0
	for n, err := range errs {
		if err == nil {
			answered = append(answered, places[n])
			continue
		}
		failed++
		for i, shard := range shards {
			if slices.Contains(places[n].shards, shard) {
				c.out[i] = notSettled(what[i].ID, err)
			}
		}
	}
	if failed > 0 && failed == called {
		return nil, combineErrors(errs, called)
	}
	if f.movedJobs(name, places) {
		c.elsewhere(answered, shards, errors.Join(errs...))
	}
	return c.out, nil
}

// settling is a call of Settle at several places.
type settling struct {
	f          *Forwarder
	name       string
	what       []queue.Settlement
	out        []queue.Outcome
	heartbeats bool            // some of what
	late       context.Context // ends when the places that have not answered get no more time
	answered   func()          // one place has
}

// begin begins to ask places. If there are heartbeats, the last of them have othersWait once one has answered.
func (c *settling) begin() (end func()) {
	late, expire := context.WithCancelCause(context.Background())
	c.late, c.answered = late, func() {}
	if c.heartbeats {
		c.answered = sync.OnceFunc(func() {
			timer := time.AfterFunc(othersWait, func() { expire(errOthersAnswered) })
			context.AfterFunc(late, func() { timer.Stop() })
		})
	}
	return func() { expire(nil) }
}

// at settles some of the settlements at one place.
func (c *settling) at(p shardHolder, positions []int) ([]queue.Outcome, error) {
	ctx, cancel := context.WithCancelCause(p.ctx)
	defer context.AfterFunc(c.late, func() { cancel(context.Cause(c.late)) })()
	defer cancel(nil)
	part, err := p.svc.Settle(ctx, c.name, pick(c.what, positions))
	if err == nil {
		c.answered()
	}
	return part, err
}

// elsewhere asks the other places about the settlements of which their own one does not know the job. If none of those that
// answer knows it, and some do not answer (unsure says why), the job may be there.
func (c *settling) elsewhere(places []shardHolder, shards []int, unsure error) {
	for _, p := range places {
		unknown := c.unknown(func(i int) bool { return !slices.Contains(p.shards, shards[i]) })
		if len(unknown) == 0 {
			continue
		}
		end := c.begin()
		c.answered() // the places of the shards have
		found, err := callAt(c.f, c.name, p, func(p shardHolder) ([]queue.Outcome, error) { return c.at(p, unknown) })
		end()
		if err != nil {
			unsure = errors.Join(unsure, err)
			continue
		}
		for n, i := range unknown {
			c.out[i] = found[n]
		}
	}
	if unsure == nil {
		return
	}
	for _, i := range c.unknown(func(int) bool { return true }) {
		c.out[i] = notSettled(c.what[i].ID, unsure)
	}
}

// unknown returns the positions of settlements whose job is not known so far.
func (c *settling) unknown(of func(i int) bool) (positions []int) {
	for i := range c.out {
		if c.out[i].Err != nil && c.out[i].Err.Tag == queue.JobNotFound && of(i) {
			positions = append(positions, i)
		}
	}
	return positions
}

// notSettled is the outcome of a settlement whose place has not answered, while others have answered theirs. The caller
// repeats it: one lost shard must not end the claims of jobs on the others.
func notSettled(id string, err error) queue.Outcome {
	e, ok := errors.AsType[*queue.Error](err)
	if !ok {
		e = queue.Refuse(queue.UnknownOutcome, "%w", err)
	}
	return queue.Outcome{ID: id, Err: e}
}

// layouts is a [Sharding] that knows how often a queue's number of shards has changed.
type layouts interface {
	Layout(ctx context.Context, queue string) (uint64, error)
}

// movedJobs reports whether jobs of the queue may be on another shard than their token says.
func (f *Forwarder) movedJobs(name string, places []shardHolder) bool {
	l, ok := f.cfg.Sharding.(layouts)
	if !ok {
		return false
	}
	n, err := l.Layout(places[0].callerCtx, name)
	return err != nil || n > 0
}

func shardCount(places []shardHolder) int {
	n := 0
	for _, p := range places {
		n += len(p.shards)
	}
	return n
}

// Claim implements [queue.Consumer]. It asks one place after the other until one has jobs. A
// waiting claim waits at each of them for a while. The order depends on the request ID, so a
// repeated call first asks the place that has answered it before. If all places refuse, the claim is refused.
func (f *Forwarder) Claim(ctx context.Context, name string, req queue.ClaimRequest) ([]queue.Claimed, error) {
	return atPlaces(f, ctx, name, func(places []shardHolder) ([]queue.Claimed, error) { return f.claim(ctx, name, places, req) })
}

func (f *Forwarder) claim(ctx context.Context, name string, places []shardHolder, req queue.ClaimRequest) ([]queue.Claimed, error) {
	if p, only := single(places); only {
		return callAt(f, name, p, func(p shardHolder) ([]queue.Claimed, error) { return p.svc.Claim(p.ctx, name, req) })
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(cmp.Or(req.RequestID, req.Worker, client.NewID())))
	begin := int(h.Sum32() % uint32(len(places))) // there are few places
	deadline := time.Now().Add(req.Wait)
	refused := make([]error, len(places)) // how each place has answered last
	for n := 0; ; n++ {
		at := (begin + n) % len(places)
		p, part := places[at], req
		if part.Wait = 0; n >= len(places) { // after one round without waiting
			part.Wait = max(0, min(claimWaitPerNode, time.Until(deadline)))
		}
		last := n >= len(places)-1 && time.Until(deadline) <= 0
		claims, err := callOnce(f, name, p, func(p shardHolder) ([]queue.Claimed, error) { return p.svc.Claim(p.ctx, name, part) })
		refused[at] = err
		why, again := refusedByAll(refused)
		switch {
		case len(claims) > 0 || ctx.Err() != nil || queue.TagOf(err) == queue.UnknownOutcome:
			return claims, err
		case last || !again:
			return nil, why
		case err != nil && part.Wait > 0 && backoff.Sleep(ctx, part.Wait) != nil:
			return nil, ctx.Err()
		}
	}
}

// refusedByAll returns why all places have refused a call, or nil if one has not. It prefers a refusal that the same call
// would get again. again is false if it would get them all again.
func refusedByAll(refused []error) (why error, again bool) {
	if slices.Contains(refused, nil) {
		return nil, true
	}
	why = refused[0]
	for _, err := range slices.Backward(refused) {
		e, ok := errors.AsType[*queue.Error](err)
		if ok {
			_, ok = refusal.Retryable(e)
		}
		if ok {
			again = true
		} else {
			why = err
		}
	}
	return why, again
}

// Get implements [queue.Operator]. A job with a group may not be on the shard of its ID, so all
// shards are asked, that one first.
func (f *Forwarder) Get(ctx context.Context, name, id string) (info *queue.Info, payload []byte, err error) {
	info, err = atPlaces(f, ctx, name, func(places []shardHolder) (found *queue.Info, err error) {
		found, payload, err = f.get(name, places, id)
		return found, err
	})
	return info, payload, err
}

func (f *Forwarder) get(name string, places []shardHolder, id string) (*queue.Info, []byte, error) {
	if len(places) > 1 {
		own := f.cfg.Sharding.ShardOfJob(&queue.Job{ID: id}, shardCount(places))
		slices.SortStableFunc(places, func(a, b shardHolder) int {
			return cmp.Compare(notServing(a, own), notServing(b, own))
		})
	}
	var unsure error
	for _, p := range places {
		var payload []byte
		info, err := callAt(f, name, p, func(p shardHolder) (info *queue.Info, err error) {
			info, payload, err = p.svc.Get(p.ctx, name, id)
			return info, err
		})
		if err == nil {
			return info, payload, nil
		}
		if unsure == nil || queue.TagOf(err) != queue.JobNotFound { // a place that did not answer may have it
			unsure = err
		}
	}
	return nil, nil, unsure
}

func notServing(p shardHolder, shard int) int {
	if slices.Contains(p.shards, shard) {
		return 0
	}
	return 1
}

// pageLimit is the length of a page if the caller sets none.
const pageLimit = 100

// List implements [queue.Operator]. It lists shard by shard, wherever each is now and even if all are at one place, so
// that the list is complete even if shards move between its pages. A cursor is "<shard>~<its own cursor>", if the queue has several shards.
func (f *Forwarder) List(ctx context.Context, name string, q queue.Query) (*queue.Page, error) {
	return atPlaces(f, ctx, name, func(places []shardHolder) (*queue.Page, error) { return f.list(name, places, q) })
}

func (f *Forwarder) list(name string, places []shardHolder, q queue.Query) (*queue.Page, error) {
	if shardCount(places) == 1 {
		return callAt(f, name, places[0], func(p shardHolder) (*queue.Page, error) { return p.svc.List(p.ctx, name, q) })
	}
	shard := 0
	var err error
	if q.Cursor != "" {
		first, inner, ok := strings.Cut(q.Cursor, "~")
		if shard, err = strconv.Atoi(first); err != nil || !ok || shard < 0 || shard >= shardCount(places) {
			return nil, queue.Refuse(queue.BadRequest, "cursor: %.80q is not from a page", q.Cursor)
		}
		q.Cursor = inner
	}
	out, limit := &queue.Page{Jobs: []queue.Info{}}, cmp.Or(q.Limit, pageLimit)
	bytes := 0
	for ; shard < shardCount(places); shard++ {
		p := placeOfShard(places, shard)
		q.Limit = limit - len(out.Jobs)
		page, err := callAt(f, name, p, func(p shardHolder) (*queue.Page, error) { return p.svc.List(p.ctx, name, q) })
		if err != nil {
			return nil, err
		}
		out.Jobs, out.Payloads = append(out.Jobs, page.Jobs...), append(out.Payloads, page.Payloads...)
		for _, p := range page.Payloads {
			bytes += len(p)
		}
		switch {
		case page.Cursor != "":
			out.Cursor = strconv.Itoa(shard) + "~" + page.Cursor
			return out, nil
		case (len(out.Jobs) >= limit || bytes >= queue.MaxPayload) && shard+1 < shardCount(places):
			out.Cursor = strconv.Itoa(shard+1) + "~"
			return out, nil
		}
		q.Cursor = ""
	}
	return out, nil
}

// placeOfShard returns the place of one shard.
func placeOfShard(places []shardHolder, shard int) shardHolder {
	i := slices.IndexFunc(places, func(p shardHolder) bool { return slices.Contains(p.shards, shard) })
	return places[i].on(shard)
}

// callAll makes a call at every place, concurrently. Answers and errors are in the order of the
// places.
func callAll[T any](f *Forwarder, name string, places []shardHolder, do func(p shardHolder) (T, error)) ([]T, []error) {
	out, errs := make([]T, len(places)), make([]error, len(places))
	var all sync.WaitGroup
	for i, p := range places {
		all.Go(func() { out[i], errs[i] = callAt(f, name, p, do) })
	}
	all.Wait()
	return out, errs
}

// Stats implements [queue.Operator]. It returns the sum over all shards, or an error.
func (f *Forwarder) Stats(ctx context.Context, name string) (*queue.Stats, error) {
	return atPlaces(f, ctx, name, func(places []shardHolder) (*queue.Stats, error) { return f.stats(name, places) })
}

func (f *Forwarder) stats(name string, places []shardHolder) (*queue.Stats, error) {
	parts, errs := callAll(f, name, places, func(p shardHolder) (*queue.Stats, error) { return p.svc.Stats(p.ctx, name) })
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	sum, brokers := *parts[0], []string{parts[0].Broker}
	for _, part := range parts[1:] {
		sum.Add(part)
		brokers = append(brokers, part.Broker)
	}
	sum.Broker = strings.Join(brokers, ",")
	return &sum, nil
}

// Do implements [queue.Operator], at every place. After an unknown outcome, the count is that of
// the places that are known to have carried out the command. Repeating it changes nothing there.
func (f *Forwarder) Do(ctx context.Context, name string, c queue.Command) (int, error) {
	return atPlaces(f, ctx, name, func(places []shardHolder) (int, error) { return f.do(name, places, c) })
}

func (f *Forwarder) do(name string, places []shardHolder, c queue.Command) (int, error) {
	met, errs := callAll(f, name, places, func(p shardHolder) (int, error) { return p.svc.Do(p.ctx, name, c) })
	sum, called := 0, len(places)
	for _, n := range met {
		sum += n
	}
	switch {
	case len(c.IDs) == 0:
	case sum == 0: // the places that have answered have changed nothing: only those that refuse count
		called = len(slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil }))
	case c.Act == queue.Redrive: // a broker says that a job cannot be redriven only if it has redriven no other
		errs = slices.DeleteFunc(errs, func(err error) bool { return queue.TagOf(err) == queue.BadRequest })
	}
	return sum, combineErrors(errs, called)
}
