package broker

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// Settle settles claims: it splits the settlements by shard, lets each shard decide its own, and
// returns the outcomes in the order of the settlements.
func (b *Broker) Settle(ctx context.Context, name string, what []queue.Settlement) (_ []queue.Outcome, err error) {
	defer b.instruments.begin(ctx, name, "settle", "settle").end(&err)
	set, err := b.beginCall(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(what) > queue.MaxCall {
		return nil, queue.Refuse(queue.TooManyJobs, "%d settlements in one call, the limit is %d", len(what), queue.MaxCall)
	}
	outcomes := make([]queue.Outcome, len(what))
	parts := map[int][]int{}
	for i := range what {
		if refusal := checkSettlement(&what[i]); refusal != nil {
			outcomes[i] = queue.Outcome{ID: what[i].ID, Err: refusal}
			continue
		}
		index := shardOfClaim(&what[i], set.Shards)
		if otherScope(ctx, index) {
			outcomes[i] = jobNotFound(&what[i])
			continue
		}
		if parts[index] == nil {
			parts[index] = make([]int, 0, len(what)/set.Shards+1)
		}
		parts[index] = append(parts[index], i)
	}
	failed := map[int]error{} // by shard
	for index, positions := range parts {
		if err := b.settleOnShard(ctx, set, index, what, positions, outcomes, false); err != nil {
			failed[index] = err
		}
	}
	if len(failed) == len(parts) {
		for _, e := range failed {
			if err == nil || queue.TagOf(e) == queue.UnknownOutcome { // it wins: the others say that nothing happened
				err = e
			}
		}
		if err != nil {
			return nil, err
		}
	}
	for index, err := range failed {
		for _, i := range parts[index] {
			outcomes[i] = notSettled(what[i].ID, err)
		}
	}
	if err := b.settleOnOtherShards(ctx, name, set, what, outcomes); err != nil {
		return nil, err
	}
	return outcomes, b.checkAllShardsHere(ctx, set, what, outcomes)
}

// notSettled is the outcome of a settlement that a shard has not answered, while others have answered theirs.
func notSettled(id string, err error) queue.Outcome {
	e, ok := errors.AsType[*queue.Error](err)
	if !ok {
		e = queue.Refuse(queue.UnknownOutcome, "%w", err)
	}
	return queue.Outcome{ID: id, Err: e}
}

// checkAllShardsHere refuses to say that there is no job whose token may be of a former shard, if shards of other nodes
// may have it. A caller that splits its calls by shard asks these itself.
func (b *Broker) checkAllShardsHere(ctx context.Context, set *queue.Settings, what []queue.Settlement, outcomes []queue.Outcome) error {
	if _, of := queue.ShardsOf(ctx); set.Layout == 0 || of > 0 || len(b.localShards(set.Name)) >= set.Shards {
		return nil
	}
	for i := range what {
		if what[i].Token == "" || outcomes[i].Err == nil || outcomes[i].Err.Tag != queue.JobNotFound {
			continue
		}
		if len(what) == 1 {
			return b.notOwner(set.Name, -1)
		}
		outcomes[i].Err = b.notOwner(set.Name, -1)
	}
	return nil
}

// shardOfClaim returns the shard that the token names. Without a token it is the shard of the job's
// ID, which is right for jobs without a group only; see settleOnOtherShards.
func shardOfClaim(x *queue.Settlement, shards int) int {
	if x.Token != "" && shards > 1 {
		var room [maxToken]byte
		if t, _, _, ok := parseToken(x.Token, &room); ok && t.shard < shards {
			return t.shard
		}
	}
	return shardOf(x.ID, shards)
}

// settleOnShard settles one shard's part of a call and stores the outcomes at their positions.
// elsewhere says that the shard is not the one that the token or the ID names.
func (b *Broker) settleOnShard(ctx context.Context, set *queue.Settings, index int, what []queue.Settlement, positions []int, outcomes []queue.Outcome, elsewhere bool) error {
	s, err := b.serving(ctx, set, index)
	if err != nil {
		return err
	}
	c := &settleCall{elsewhere: elsewhere, settlements: make([]queue.Settlement, len(positions)), outcomes: make([]queue.Outcome, 0, len(positions))}
	c.call = newCall(c)
	for n, at := range positions {
		c.settlements[n] = what[at]
	}
	c.tokens = s.verifyTokens(c.settlements)
	if err := s.do(ctx, &c.call); err != nil {
		return err
	}
	for n, at := range positions {
		outcomes[at] = c.outcomes[n]
	}
	return nil
}

// verifyTokens parses and verifies the tokens. It runs on the caller's goroutine.
func (s *shard) verifyTokens(what []queue.Settlement) []token {
	out := make([]token, len(what))
	seal := s.tokenCodecs.Get().(*tokenCodec)
	for i := range what {
		if t, ok := seal.decode(what[i].Token, what[i].ID); ok && t.shard == s.index {
			out[i] = t
		} else if len(s.formerKeys) > 0 && what[i].Token != "" {
			out[i] = s.verifyFormer(&what[i])
		}
	}
	s.tokenCodecs.Put(seal)
	return out
}

// verifyFormer parses and verifies a token of a former shard.
func (s *shard) verifyFormer(x *queue.Settlement) token {
	var room [maxToken]byte
	named, _, _, ok := parseToken(x.Token, &room)
	for i := 0; ok && i < len(s.formerKeys); i++ {
		k := &s.formerKeys[i]
		if k.Shard != named.shard {
			continue
		}
		seal := k.codecs.Get().(*tokenCodec)
		t, genuine := seal.decode(x.Token, x.ID)
		k.codecs.Put(seal)
		if genuine {
			t.former = true
			return t
		}
	}
	return token{}
}

// otherScope reports whether a call that another node has split is for other shards.
func otherScope(ctx context.Context, index int) bool {
	shards, of := queue.ShardsOf(ctx)
	return of > 0 && !slices.Contains(shards, index)
}

// settleOnOtherShards asks the node's other shards about settlements that the shard of the ID or token does not
// know. Without a token, a job with a group is on its group's shard. With a token that was given out before the
// queue got another number of shards, the job is on any.
func (b *Broker) settleOnOtherShards(ctx context.Context, name string, set *queue.Settings, what []queue.Settlement, outcomes []queue.Outcome) error {
	if set.Shards == 1 {
		return nil
	}
	for i := range what {
		if what[i].Token != "" && set.Layout == 0 || outcomes[i].Err == nil || outcomes[i].Err.Tag != queue.JobNotFound {
			continue
		}
		var unsure error
		for _, s := range b.localShards(name) {
			if s.index == shardOfClaim(&what[i], set.Shards) || otherScope(ctx, s.index) {
				continue
			}
			if err := b.settleOnShard(ctx, set, s.index, what, []int{i}, outcomes, true); err != nil {
				unsure = err // the job may be there
			}
			if outcomes[i].Err == nil || outcomes[i].Err.Tag != queue.JobNotFound {
				break
			}
		}
		if unsure != nil && outcomes[i].Err != nil && outcomes[i].Err.Tag == queue.JobNotFound {
			if len(what) == 1 {
				return unsure
			}
			outcomes[i] = notSettled(what[i].ID, unsure)
		}
	}
	return nil
}

// settleCall settles claims.
type settleCall struct {
	call
	settlements []queue.Settlement
	tokens      []token // parallel to settlements; zero: not a token of this shard for the job
	elsewhere   bool    // the shard is not the one that the settlements name
	outcomes    []queue.Outcome
}

// step decides settlements until it meets one whose job is held.
func (c *settleCall) step(s *shard) progress {
	if c.next == 0 && s.commits.full() && slices.ContainsFunc(c.settlements, func(x queue.Settlement) bool { return x.Verb != queue.Extend }) {
		c.refuse(s.commits.refusal())
		return handled
	}
	for ; c.next < len(c.settlements); c.next++ {
		if s.commits.size() > roundBytes {
			return later
		}
		x := &c.settlements[c.next]
		j, out := s.jobOfHolder(c, x)
		if j != nil && j.Held {
			return s.commits.waitForNewest(&c.call)
		}
		if j != nil {
			out = s.settleClaim(c, x, j)
		}
		if out.Err != nil {
			c.negative = true
		}
		c.outcomes = append(c.outcomes, out)
	}
	return decided
}

// jobOfHolder returns the job if the settlement comes from the claim's holder, or if the job is held.
// Otherwise it returns the answer.
func (s *shard) jobOfHolder(c *settleCall, x *queue.Settlement) (*ledger.Job, queue.Outcome) {
	if x.Token == "" {
		return s.jobOfWorker(c, x)
	}
	t := c.tokens[c.next]
	switch {
	case t == (token{}) && c.elsewhere:
		return nil, jobNotFound(x)
	case t == (token{}):
		return nil, stale(x, "this is not a token of the job")
	case t.former:
		return s.jobOfFormer(c, x, t)
	}
	var ok bool
	j := s.claims.job()
	*j, ok = s.ledger.JobWithoutPayload(t.number) // the MAC proves that the job has this ID
	switch {
	case !ok:
		return nil, s.answerEnded(c, x, t.nonce)
	case j.Held:
		return j, queue.Outcome{}
	}
	// The delivery alone does not name a claim, because deliveries can be numbered twice. Example: owner 1 hands
	// out delivery 3 as a soft claim and crashes. Owner 2 replays delivery 2 and hands out delivery 3 to another
	// worker. The epoch tells the first worker's token from the second's.
	same := j.Epoch == t.epoch && uint64(j.Deliveries) == t.delivery && j.Nonce == t.nonce
	if j.State == ledger.Active && same {
		return j, queue.Outcome{}
	}
	if s.acceptLostClaim(x, j, t) {
		return j, queue.Outcome{}
	}
	return nil, stale(x, "the claim is over; the job is "+string(stateOf(j.State)))
}

// jobOfFormer is jobOfHolder for a token of a former shard. The job has another number here, and the epoch of its
// claim is not kept; its delivery and the random nonce are.
func (s *shard) jobOfFormer(c *settleCall, x *queue.Settlement, t token) (*ledger.Job, queue.Outcome) {
	j, ok := s.ledger.Find(x.ID)
	switch {
	case !ok:
		if state, held := s.ledger.Lookup(ledger.Pack(x.ID)); held && state == ledger.None {
			return &ledger.Job{Held: true}, queue.Outcome{} // the ID is being submitted
		}
		return nil, s.answerEnded(c, x, t.nonce)
	case j.Held:
		return &j, queue.Outcome{}
	case j.State == ledger.Active && j.Epoch == 0 && uint64(j.Deliveries) == t.delivery && j.Nonce == t.nonce:
		return &j, queue.Outcome{}
	}
	return nil, stale(x, "the claim is over; the job is "+string(stateOf(j.State)))
}

func jobNotFound(x *queue.Settlement) queue.Outcome {
	return queue.Outcome{ID: x.ID, Err: queue.Refuse(queue.JobNotFound, "there is no job %q, or it ended too long ago", x.ID)}
}

// acceptLostClaim accepts a claim that an earlier owner made and whose record was lost with it. The claim
// must be newer than what the log knows of the job, and this owner must not have handed out the job
// since.
//
// Example: owner 1 hands out delivery 3 as a soft claim and crashes before its record is written.
// Owner 2 replays delivery 2 and has the job waiting. The worker completes delivery 3 with its
// token: epoch 1 is older than owner 2's, delivery 3 is newer than 2, so the claim is applied now.
// If owner 2 had claimed the job for another worker, its own epoch would be in the job and the old
// token is stale.
func (s *shard) acceptLostClaim(x *queue.Settlement, j *ledger.Job, t token) bool {
	if t.epoch >= s.epoch || t.delivery > ledger.MaxDeliveries {
		return false
	}
	switch j.State {
	case ledger.Waiting, ledger.Delayed:
		if t.delivery <= uint64(j.Deliveries) {
			return false
		}
	case ledger.Active:
		newer := t.epoch > j.Epoch || t.epoch == j.Epoch && t.delivery > uint64(j.Deliveries)
		if j.Epoch >= s.epoch || !newer || t.delivery < uint64(j.Deliveries) {
			return false
		}
	default:
		return false
	}
	visibility := millis(s.settings.Visibility)
	s.commits.applySoft(ledger.Record{
		Kind: ledger.Claim, Numbers: []uint64{j.Number}, Deliveries: []uint64{t.delivery}, Worker: x.Worker, Epoch: t.epoch, Nonce: t.nonce,
		Until: s.clock.now + visibility, Visibility: visibility,
	})
	*j, _ = s.ledger.JobWithoutPayload(j.Number)
	return true
}

// jobOfWorker is jobOfHolder for a settlement without a token: the worker's name must be that of the
// claim.
func (s *shard) jobOfWorker(c *settleCall, x *queue.Settlement) (*ledger.Job, queue.Outcome) {
	j, ok := s.ledger.Find(x.ID)
	if !ok {
		return nil, s.answerEnded(c, x, workerNonce(x.Worker))
	}
	if j.Held {
		return &j, queue.Outcome{}
	}
	if j.State != ledger.Active || !j.Tokenless || j.Worker != x.Worker {
		return nil, stale(x, "the worker does not hold the job; it is "+string(stateOf(j.State)))
	}
	return &j, queue.Outcome{}
}

// answerEnded answers for a job that the ledger no longer has. The claim that completed it may repeat
// its complete.
func (s *shard) answerEnded(c *settleCall, x *queue.Settlement, nonce uint32) queue.Outcome {
	end, ok := s.ledger.Ended(x.ID)
	switch {
	case !ok:
		return jobNotFound(x)
	case end.State == ledger.Completed && x.Verb == queue.Complete && end.Nonce == nonce:
		s.commits.waitForAll(&c.call)
		return queue.Outcome{ID: x.ID, State: queue.Completed}
	}
	return stale(x, "the job is "+string(stateOf(end.State)))
}

// stale returns a StaleClaim outcome.
func stale(x *queue.Settlement, why string) queue.Outcome {
	return queue.Outcome{ID: x.ID, Err: queue.Refuse(queue.StaleClaim, "job %q: %s", x.ID, why).WithHint("stop working on it; another worker may have it")}
}

// settleClaim makes the records of a settlement by the claim's holder.
func (s *shard) settleClaim(c *settleCall, x *queue.Settlement, j *ledger.Job) queue.Outcome {
	switch {
	case x.Verb == queue.Extend:
		return s.extend(x, j)
	case x.Verb == queue.Complete && len(x.Result) == 0:
		s.commits.hold(j.Number)
		s.commits.recordPending(&c.call, pending{number: j.Number})
		return queue.Outcome{ID: x.ID, State: queue.Completed}
	}
	return s.recordSettlement(c, x, j)
}

// recordSettlement adds the hard record of a settlement other than Extend, and returns the outcome.
func (s *shard) recordSettlement(c *settleCall, x *queue.Settlement, j *ledger.Job) queue.Outcome {
	var r ledger.Record
	out := queue.Outcome{ID: x.ID}
	switch x.Verb {
	case queue.Complete:
		r.Kind, r.Result, out.State = ledger.Complete, slices.Clone(x.Result), queue.Completed
	case queue.Fail:
		s.fillFail(x, j, &r)
		switch {
		case r.Dead:
			out.State = queue.Dead
		case r.RunAt > s.clock.now:
			out.State = queue.Delayed
		default:
			out.State = queue.Waiting
		}
	case queue.Release:
		r.Kind, out.State = ledger.Release, queue.Waiting
		if j.Exhausted(false) {
			why := "delivered and released too often"
			if j.Attempts >= int(j.Policy.Max) {
				why = "released in its last attempt, which counts because a heartbeat was sent"
			}
			r.Kind, r.Cause, out.State = ledger.DeadLetter, exhausted(j, why), queue.Dead
		} else if j.Policy.Back {
			r.Places = []uint64{s.ledger.NextNumber()}
		}
	}
	r.Numbers = []uint64{j.Number}
	s.commits.record(&c.call, &r)
	return out
}

// extend starts the visibility timeout anew. The first extension proves that the attempt began, so
// it makes a soft record; later ones write nothing.
func (s *shard) extend(x *queue.Settlement, j *ledger.Job) queue.Outcome {
	visibility := j.Visibility
	if x.Visibility > 0 {
		visibility = millis(x.Visibility)
	}
	if !j.Begun {
		s.commits.applySoft(ledger.Record{Kind: ledger.AttemptStarted, Numbers: []uint64{j.Number}, Deliveries: []uint64{uint64(j.Deliveries)}, Epoch: j.Epoch})
	}
	s.commits.extend(j.Number, visibility)
	return queue.Outcome{ID: x.ID, State: queue.Active, For: millisecond(visibility)}
}

// fillFail fills in a Fail record: the job is dead, or waits for its next attempt.
func (s *shard) fillFail(x *queue.Settlement, j *ledger.Job, r *ledger.Record) {
	r.Kind, r.Cause = ledger.Fail, truncate(x.Cause, queue.MaxCause)
	if x.Dead || j.Exhausted(true) {
		r.Dead = true
		return
	}
	attempts := j.Attempts
	if !j.Begun {
		attempts++
	}
	wait := j.Policy.Wait(attempts, rand.Float64())
	if x.RetryAfter != nil {
		wait = millis(*x.RetryAfter)
	}
	if wait > 0 {
		r.RunAt = s.clock.now + wait
	}
	if j.Policy.Back {
		r.Places = []uint64{s.ledger.NextNumber()}
	}
}
