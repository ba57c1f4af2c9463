package broker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// Claim claims jobs of the shards that this node serves; see the package comment for its way.
func (b *Broker) Claim(ctx context.Context, name string, req queue.ClaimRequest) (_ []queue.Claimed, err error) {
	defer b.instruments.begin(ctx, name, "claim", "receive").end(&err)
	set, err := b.beginListed(ctx, name)
	if err != nil {
		return nil, err
	}
	if refusal := checkClaim(&req, set); refusal != nil {
		return nil, refusal
	}
	shards := b.localShards(name)
	if len(shards) == 0 {
		return nil, b.notOwner(name, -1)
	}
	if req.RequestID != "" { // also if it does not wait: it may look for what the lost call has claimed
		b.polls.supersede(pollID{name, req.RequestID})
	}
	got, err := b.claimNow(ctx, shards, req)
	if len(got) == 0 && err == nil && req.Wait > 0 {
		got, err = b.poll(ctx, shards, req)
	}
	if len(got) == 0 && err != nil {
		return nil, err
	}
	out, err := b.claims(ctx, got, &req)
	b.instruments.consumed(ctx, name, len(out))
	if cap(got) > 0 {
		clear(got)
		b.claimedPool.Put(&got)
	}
	return out, err
}

// claimedSlice returns an empty slice for this many claims, reused if possible: the elements are large.
func (b *Broker) claimedSlice(jobs int) []claimedJob {
	if kept, _ := b.claimedPool.Get().(*[]claimedJob); kept != nil && cap(*kept) >= jobs {
		return (*kept)[:0]
	}
	return make([]claimedJob, 0, jobs)
}

// claimedJob is a claimed job as the shard returns it. Token and payload object are left to the
// caller's goroutine, because they take time.
type claimedJob struct {
	shard *shard
	id    ledger.ID
	job   ledger.Job    // without its ID's text
	until time.Duration // visibility timeout from now
}

// load fills in the job with this number as it stands in the ledger, and reports whether there is
// one.
func (h *claimedJob) load(s *shard, number uint64) (ok bool) {
	h.shard = s
	h.job, ok = s.ledger.JobWithoutPayload(number)
	h.id, h.job.Payload = s.ledger.IDAndPayload(number)
	return ok
}

// claimNow asks the shards one after the other until it has enough jobs, each time beginning with
// another shard. It does not wait for jobs.
func (b *Broker) claimNow(ctx context.Context, shards []*shard, req queue.ClaimRequest) ([]claimedJob, error) {
	if len(shards) == 1 && req.Wait > 0 {
		return nil, nil // poll does the same in one call: it returns at once if there are jobs
	}
	var claims []claimedJob
	room := queue.MaxPayload
	claimOnce := func(again bool) error {
		first := int(b.nextFirstShard.Add(1)) % len(shards)
		for n := range shards {
			part := req
			part.Max -= len(claims)
			c := newClaimCall(ctx, &part, new(atomic.Bool), make(chan *call, 1))
			c.onlyRepeated, c.payloadBudget = again, room
			s := shards[(first+n)%len(shards)]
			if err := s.do(ctx, &c.call); err != nil {
				if ctx.Err() != nil && c.taken.Swap(true) {
					callerGone(s, c)
				}
				return err
			}
			room = c.payloadBudget
			if claims = append(claims, c.claimed...); len(claims) >= req.Max {
				return nil
			}
		}
		return nil
	}
	if req.RequestID != "" && len(shards) > 1 { // first all shards that have answered this request ID before
		switch err := claimOnce(true); {
		case err != nil: // all of them or none: the caller would not call again for the rest
			return nil, err
		case len(claims) > 0:
			return claims, nil
		}
	}
	err := claimOnce(false)
	return claims, err
}

// poll puts the call into all shards; the first one that has jobs answers it.
func (b *Broker) poll(ctx context.Context, shards []*shard, req queue.ClaimRequest) ([]claimedJob, error) {
	l := b.polls.begin(shards[0].name, req.RequestID)
	defer b.polls.end(l)
	taken, done, calls := &l.taken, l.done, make([]*claimCall, len(shards))
	for i, s := range shards {
		calls[i] = newClaimCall(ctx, &req, taken, done)
		calls[i].longPoll = true
		if err := s.submit(ctx, &calls[i].call); err != nil {
			if taken.Swap(true) {
				return awaitAnswer(ctx, shards[:i], calls, done)
			}
			return nil, err
		}
	}
	timer := time.NewTimer(req.Wait)
	defer timer.Stop()
	withdraw := func() {
		for i, s := range shards {
			s.claims.withdraw(calls[i])
		}
	}
	var why error
	select {
	case c := <-done:
		got, err := answerOf(c)
		if len(got) == 0 { // its caller has called again
			withdraw()
		}
		return got, err
	case <-shards[0].runEnded:
		why = shards[0].notOwner()
	case <-timer.C:
	case <-ctx.Done():
		why = canceled(ctx, queue.Unavailable)
	}
	if taken.Swap(true) {
		return awaitAnswer(ctx, shards, calls, done)
	}
	withdraw()
	return nil, why
}

// awaitAnswer waits for the shard that has taken the call already: its jobs are claimed and must reach
// the caller. If the context ends first, callerGone makes the shards release them.
func awaitAnswer(ctx context.Context, shards []*shard, calls []*claimCall, done chan *call) ([]claimedJob, error) {
	select {
	case c := <-done:
		return answerOf(c)
	case <-ctx.Done():
	}
	for i, s := range shards {
		callerGone(s, calls[i])
	}
	return nil, canceled(ctx, queue.UnknownOutcome)
}

// answerOf returns the result of an answered claim call.
func answerOf(c *call) ([]claimedJob, error) {
	if c.err != nil {
		return nil, c.err
	}
	return c.work.(*claimCall).claimed, nil
}

// claimCall claims jobs.
type claimCall struct {
	call
	request       *queue.ClaimRequest
	longPoll      bool // wait until there are jobs
	onlyRepeated  bool // answer only if the same request ID was claimed before
	payloadBudget int  // bytes that the answer's payloads may still take
	memory        *inflight.Call
	claimed       []claimedJob
}

// newClaimCall makes a claim call. The calls of one long poll share taken and done.
func newClaimCall(ctx context.Context, req *queue.ClaimRequest, taken *atomic.Bool, done chan *call) *claimCall {
	c := &claimCall{request: req, payloadBudget: queue.MaxPayload, memory: inflight.FromContext(ctx)}
	c.call = call{work: c, taken: taken, done: done}
	return c
}

// claims makes the worker's view of claimed jobs: it adds tokens, and payloads that are objects of
// their own; see addPayloads.
func (b *Broker) claims(ctx context.Context, got []claimedJob, req *queue.ClaimRequest) ([]queue.Claimed, error) {
	out := make([]queue.Claimed, len(got))
	for i := range got {
		h := &got[i]
		j := &h.job
		j.ID = h.id.String()
		out[i] = queue.Claimed{Job: h.shard.info(j), Payload: []byte(j.Payload), Until: time.UnixMilli(j.At), For: h.until}
		if !j.Tokenless {
			t := token{shard: h.shard.index, number: j.Number, epoch: j.Epoch, delivery: uint64(j.Deliveries), nonce: j.Nonce}
			seal := h.shard.tokenCodecs.Get().(*tokenCodec)
			out[i].Token = seal.encode(t, j.ID)
			h.shard.tokenCodecs.Put(seal)
		}
	}
	return b.addPayloads(ctx, got, out, req)
}

// step repeats an earlier answer, hands out jobs, adds the call to the long polls, or answers that there is none.
func (c *claimCall) step(s *shard) progress {
	if c.complete { // its durable claims were written; finish answers it
		return handled
	}
	if again := s.repeatAnswer(c); again != nil {
		return *again
	}
	if !c.onlyRepeated && s.claimFor(c) {
		return handled
	}
	if c.longPoll && !s.commits.full() {
		s.claims.wait(c)
		return handled
	}
	if !c.claimAnswer() {
		return handled
	}
	if s.commits.full() && !c.onlyRepeated {
		c.refuse(s.commits.refusal())
		return handled
	}
	c.answer()
	return handled
}

// repeatAnswer answers a call whose request ID was used before with the same claims. It returns nil if
// there are none.
func (s *shard) repeatAnswer(c *claimCall) *progress {
	if c.request.RequestID == "" {
		return nil
	}
	if w := s.claims.batchOf(c.request.RequestID); w != nil {
		p := s.commits.waitFor(&c.call, w)
		return &p
	}
	var claims []claimedJob
	fits := true
	for _, n := range s.ledger.JobsOfRequest(c.request.RequestID) {
		var h claimedJob
		if h.load(s, n) && !h.job.Held {
			fits = fits && c.memory.Take(int64(h.job.Size))
			h.until = millisecond(h.job.At - s.clock.now)
			claims = append(claims, h)
		}
	}
	if len(claims) == 0 {
		return nil
	}
	p := handled
	switch {
	case !c.claimAnswer():
	case !fits:
		c.refuse(memoryFull())
	default:
		c.claimed = claims
		c.answer()
	}
	return &p
}

// servePolls gives jobs to the long polls, in the order in which they came. A broker that may have been replaced refuses
// them: a job whose claim has expired for it may have been extended at its successor.
func (s *shard) servePolls() {
	s.claims.removeWithdrawn()
	switch {
	case len(s.claims.waiting) == 0 || s.commits.blocked:
		return
	case !s.holdsAssignment():
		s.claims.releaseWaiting(s.refuseCall)
		return
	}
	s.claims.serve(func() bool {
		_, any := s.ledger.Best(nil)
		return any && !s.ledger.Paused()
	}, s.claimFor)
}

// claimFor claims the best jobs for a call. It returns false if there are none or they may not be
// handed out now, and true if the call needs nothing more: it was answered, refused, waits for its
// durable claims, or its caller has gone.
func (s *shard) claimFor(c *claimCall) bool {
	req := c.request
	if s.ledger.Paused() || s.commits.full() {
		return false
	}
	n, ok := s.ledger.Best(req.Types)
	if !ok || s.ledger.Size(n) > c.payloadBudget {
		return false
	}
	fits := c.memory.Take(int64(s.ledger.Size(n)))
	if !c.claimAnswer() {
		return true
	}
	if !fits {
		c.refuse(memoryFull())
		return true
	}
	r := ledger.Record{
		Kind: ledger.Claim, Worker: req.Worker, Request: req.RequestID, Epoch: s.epoch, Nonce: nonce(req),
		Until: s.clock.now + millis(req.Visibility), Visibility: millis(req.Visibility), Tokenless: req.Tokenless,
	}
	durable := req.Tokenless || s.settings.Claims == queue.DurableClaims
	one := r
	c.claimed = s.b.claimedSlice(min(req.Max, s.ledger.Waiting()))
	for ; ok && len(c.claimed) < req.Max; n, ok = s.ledger.Best(req.Types) {
		size := s.ledger.Size(n)
		if size > c.payloadBudget || len(c.claimed) > 0 && !c.memory.Take(int64(size)) {
			break // it stays for another call
		}
		c.claimed = append(c.claimed, claimedJob{until: req.Visibility})
		h := &c.claimed[len(c.claimed)-1]
		h.load(s, n)
		if h.job.DeliveriesEnded() { // an earlier version let it be redriven
			c.claimed = c.claimed[:len(c.claimed)-1]
			s.giveUp(&h.job)
			continue
		}
		c.payloadBudget -= size
		r.Numbers = append(r.Numbers, n)
		r.Deliveries = append(r.Deliveries, uint64(h.job.Deliveries)+1)
		if durable {
			s.commits.hold(n) // Best returns no held job
		} else { // applied now, or Best would return it again
			one.At, one.Numbers, one.Deliveries = s.clock.now, r.Numbers[len(r.Numbers)-1:], r.Deliveries[len(r.Deliveries)-1:]
			s.commits.mustApply(&one, s.clock.now)
		}
		h.apply(&r)
	}
	switch {
	case len(c.claimed) == 0:
	case durable:
		s.recordDurableClaim(c, &r)
		return true
	default:
		r.At = s.clock.now
		s.commits.encodeSoft(&r)
	}
	c.answer()
	return true
}

// apply makes h show the job as the claim leaves it.
func (h *claimedJob) apply(r *ledger.Record) {
	j := &h.job
	j.State, j.At, j.Worker, j.Epoch, j.Nonce, j.Begun = ledger.Active, r.Until, r.Worker, r.Epoch, r.Nonce, false
	j.Visibility, j.Tokenless, j.Deliveries = r.Visibility, r.Tokenless, j.Deliveries+1
}

// giveUp makes a waiting job a dead letter that cannot be delivered again.
func (s *shard) giveUp(j *ledger.Job) {
	s.commits.record(nil, &ledger.Record{Kind: ledger.DeadLetter, Numbers: []uint64{j.Number}, Cause: exhausted(j, "it was redriven too often")})
}

// recordDurableClaim writes the claims as a hard record; the call is answered when it is durable. A repeated
// call with the same request ID finds the batch in claims.
func (s *shard) recordDurableClaim(c *claimCall, r *ledger.Record) {
	s.claims.begin(r.Request, s.commits.currentBatch())
	s.commits.recordPending(&c.call, pending{other: r})
	c.complete = true
}

// nonce returns a number that distinguishes claims that are equal in everything else. For a claim
// without a token it is derived from the worker's name, so that the worker's repeated complete is
// recognised.
func nonce(req *queue.ClaimRequest) uint32 {
	if req.Tokenless {
		return workerNonce(req.Worker)
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint32(b[:])
}

func workerNonce(worker string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(worker))
	return h.Sum32()
}

// info returns the job as callers see it.
func (s *shard) info(j *ledger.Job) queue.Info {
	i := queue.Info{
		ID: j.ID, Queue: s.name, Type: j.Type, Group: j.Group, State: stateOf(j.State), Priority: int(j.Priority), Attempts: j.Attempts,
		Deliveries: j.Deliveries, MaxAttempts: int(j.Policy.Max), Worker: j.Worker, CreatedAt: time.UnixMilli(j.Created), Cause: j.Cause, Size: j.Size,
	}
	if j.Expires != 0 {
		i.ExpiresAt = time.UnixMilli(j.Expires)
	}
	switch j.State {
	case ledger.Delayed:
		i.RunAt = time.UnixMilli(j.At)
	case ledger.Active:
		i.Until = time.UnixMilli(j.At)
	case ledger.Dead:
		i.EndedAt = time.UnixMilli(j.At)
	default:
	}
	return i
}
