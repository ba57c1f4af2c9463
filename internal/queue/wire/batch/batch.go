// Package batch converts calls of the queue to and from the messages of
// emitd.queue.v1.QueueService. It refuses what package limits refuses.
package batch

import (
	"time"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/internal/queue/wire/queuev1"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// states and verbs, indexed by their protobuf number.
var (
	states     = []queue.State{"", queue.Waiting, queue.Delayed, queue.Active, queue.Completed, queue.Dead, queue.Cancelled}
	protoVerbs = []queue.Verb{"", queue.Extend, queue.Complete, queue.Fail, queue.Release}
)

func stateOf(s queuev1.State) queue.State {
	if s < 0 || int(s) >= len(states) {
		return ""
	}
	return states[s]
}

func protoState(s queue.State) queuev1.State {
	for i, known := range states {
		if s == known {
			return queuev1.State(i)
		}
	}
	return queuev1.State_STATE_UNSPECIFIED
}

func protoVerb(v queue.Verb) queuev1.Verb {
	for i, known := range protoVerbs {
		if v == known {
			return queuev1.Verb(i)
		}
	}
	return queuev1.Verb_VERB_UNSPECIFIED
}

// Jobs converts the jobs of a request. The error is a refusal.
func Jobs(r *queuev1.EnqueueRequest) ([]queue.Job, error) {
	if err := limits.Count("jobs", len(r.GetJobs())); err != nil {
		return nil, err
	}
	out := make([]queue.Job, len(r.GetJobs()))
	for i, j := range r.GetJobs() {
		if err := jobFromProto(&out[i], j); err != nil {
			return nil, limits.At("jobs", i, err)
		}
	}
	return out, nil
}

func jobFromProto(out *queue.Job, j *queuev1.Job) error {
	*out = queue.Job{
		ID: j.GetId(), Key: j.GetKey(), Type: j.GetType(), Group: j.GetGroup(), Payload: j.GetPayload(),
		Priority: int(j.GetPriority()), RunAt: moment(j.GetRunAtMs()),
	}
	var err error
	if out.Delay, err = limits.Millis("delay_ms", j.GetDelayMs()); err != nil {
		return err
	}
	if out.TTL, err = limits.Millis("ttl_ms", j.GetTtlMs()); err != nil {
		return err
	}
	if r := j.GetRetry(); r != nil {
		plain := wire.Retry{
			MaxAttempts: int(r.GetMaxAttempts()), BackoffMS: r.GetBackoffMs(), MaxBackoffMS: r.GetMaxBackoffMs(),
			Factor: r.GetFactor(), Jitter: r.GetJitter(), Back: r.GetBack(),
		}
		if out.Retry, err = plain.Policy(); err != nil {
			return err
		}
	}
	return limits.Job(out)
}

// EnqueueRequest is the inverse of Jobs.
func EnqueueRequest(name string, jobs []queue.Job) *queuev1.EnqueueRequest {
	out := &queuev1.EnqueueRequest{Queue: name, Jobs: make([]*queuev1.Job, len(jobs))}
	block := make([]queuev1.Job, len(jobs))
	for i := range jobs {
		j, p := &jobs[i], &block[i]
		p.Id, p.Key, p.Type, p.Group, p.Payload = j.ID, j.Key, j.Type, j.Group, j.Payload
		p.Priority, p.DelayMs, p.TtlMs = int32(j.Priority), limits.ToMillis(j.Delay), limits.ToMillis(j.TTL) // checked to fit
		p.RunAtMs = unixMilli(j.RunAt)
		if r := j.Retry; r != (queue.Retry{}) {
			p.Retry = &queuev1.Retry{
				MaxAttempts: int32(r.MaxAttempts), BackoffMs: limits.ToMillis(r.Backoff), MaxBackoffMs: limits.ToMillis(r.MaxBackoff), // checked to fit
				Factor: r.Factor, Jitter: r.Jitter, Back: r.Back,
			}
		}
		out.Jobs[i] = p
	}
	return out
}

// EnqueueResponse converts receipts.
func EnqueueResponse(rs []queue.Receipt) *queuev1.EnqueueResponse {
	out := &queuev1.EnqueueResponse{Jobs: make([]*queuev1.Receipt, len(rs))}
	block := make([]queuev1.Receipt, len(rs))
	for i, r := range rs {
		p := &block[i]
		p.Id, p.Duplicate, p.State = r.ID, r.Duplicate, protoState(r.State)
		out.Jobs[i] = p
	}
	return out
}

// Receipts is the inverse of EnqueueResponse.
func Receipts(r *queuev1.EnqueueResponse) []queue.Receipt {
	out := make([]queue.Receipt, len(r.GetJobs()))
	for i, p := range r.GetJobs() {
		out[i] = queue.Receipt{ID: p.GetId(), Duplicate: p.GetDuplicate(), State: stateOf(p.GetState())}
	}
	return out
}

// Claim converts a claim request. The error is a refusal.
func Claim(r *queuev1.ClaimRequest) (queue.ClaimRequest, error) {
	plain := wire.ClaimRequest{
		Worker: r.GetWorker(), Types: r.GetTypes(), Max: int(r.GetMax()), WaitMS: r.GetWaitMs(),
		VisibilityMS: r.GetVisibilityMs(), RequestID: r.GetRequestId(), Tokenless: r.GetTokenless(),
	}
	return plain.Request()
}

// ClaimRequest is the inverse of Claim.
func ClaimRequest(name string, r queue.ClaimRequest) *queuev1.ClaimRequest {
	return &queuev1.ClaimRequest{
		Queue: name, Worker: r.Worker, Types: r.Types, Max: int32(r.Max), WaitMs: limits.ToMillis(r.Wait), // checked to fit
		VisibilityMs: limits.ToMillis(r.Visibility), RequestId: r.RequestID, Tokenless: r.Tokenless,
	}
}

// ClaimResponse converts claimed jobs.
func ClaimResponse(cs []queue.Claimed) *queuev1.ClaimResponse {
	out := &queuev1.ClaimResponse{Jobs: make([]*queuev1.Claimed, len(cs))}
	block := make([]queuev1.Claimed, len(cs))
	for i := range cs {
		c, p := &cs[i], &block[i]
		p.Id, p.Type, p.Group, p.Payload, p.Token = c.Job.ID, c.Job.Type, c.Job.Group, c.Payload, c.Token
		p.Priority, p.Attempts, p.Deliveries = int32(c.Job.Priority), int32(c.Job.Attempts), int32(c.Job.Deliveries) // small counts
		p.MaxAttempts = int32(c.Job.MaxAttempts)                                                                     // checked to fit
		p.CreatedAtMs, p.UntilMs, p.VisibilityMs = unixMilli(c.Job.CreatedAt), unixMilli(c.Until), limits.ToMillis(c.For)
		p.ExpiresAtMs, p.Cause = unixMilli(c.Job.ExpiresAt), c.Job.Cause
		out.Jobs[i] = p
	}
	return out
}

// Claims is the inverse of ClaimResponse, for the named queue.
func Claims(name, worker string, r *queuev1.ClaimResponse) []queue.Claimed {
	out := make([]queue.Claimed, len(r.GetJobs()))
	for i, p := range r.GetJobs() {
		out[i] = queue.Claimed{
			Job: queue.Info{
				ID: p.GetId(), Queue: name, Type: p.GetType(), Group: p.GetGroup(), State: queue.Active, Priority: int(p.GetPriority()),
				Attempts: int(p.GetAttempts()), Deliveries: int(p.GetDeliveries()), MaxAttempts: int(p.GetMaxAttempts()),
				Worker: worker, CreatedAt: moment(p.GetCreatedAtMs()), Until: moment(p.GetUntilMs()),
				ExpiresAt: moment(p.GetExpiresAtMs()), Cause: p.GetCause(), Size: len(p.GetPayload()),
			},
			Payload: p.GetPayload(), Token: p.GetToken(), Until: moment(p.GetUntilMs()),
			For: time.Duration(p.GetVisibilityMs()) * time.Millisecond,
		}
	}
	return out
}

// Settlements converts the settlements of a call. The error is a refusal.
func Settlements(r *queuev1.SettleRequest) ([]queue.Settlement, error) {
	if err := limits.Count("settlements", len(r.GetSettlements())); err != nil {
		return nil, err
	}
	out := make([]queue.Settlement, len(r.GetSettlements()))
	for i, p := range r.GetSettlements() {
		if err := settlementFromProto(&out[i], p); err != nil {
			return nil, limits.At("settlements", i, err)
		}
	}
	return out, nil
}

func settlementFromProto(out *queue.Settlement, p *queuev1.Settlement) error {
	*out = queue.Settlement{
		ID: p.GetId(), Token: p.GetToken(), Worker: p.GetWorker(), Result: p.GetResult(), Cause: p.GetCause(), Dead: p.GetDead(),
	}
	if v := p.GetVerb(); v > 0 && int(v) < len(protoVerbs) {
		out.Verb = protoVerbs[v]
	}
	var err error
	if out.Visibility, err = limits.Millis("visibility_ms", p.GetVisibilityMs()); err != nil {
		return err
	}
	if p.RetryAfterMs != nil {
		d, err := limits.Millis("retry_after_ms", p.GetRetryAfterMs())
		if err != nil {
			return err
		}
		out.RetryAfter = &d
	}
	return limits.Settlement(out)
}

// SettleRequest is the inverse of Settlements.
func SettleRequest(name string, ss []queue.Settlement) *queuev1.SettleRequest {
	out := &queuev1.SettleRequest{Queue: name, Settlements: make([]*queuev1.Settlement, len(ss))}
	block := make([]queuev1.Settlement, len(ss))
	for i := range ss {
		s, p := &ss[i], &block[i]
		p.Verb, p.Id, p.Token, p.Worker = protoVerb(s.Verb), s.ID, s.Token, s.Worker
		p.VisibilityMs, p.Result, p.Cause, p.Dead = limits.ToMillis(s.Visibility), s.Result, s.Cause, s.Dead
		if s.RetryAfter != nil {
			after := limits.ToMillis(*s.RetryAfter)
			p.RetryAfterMs = &after
		}
		out.Settlements[i] = p
	}
	return out
}

// SettleResponse converts outcomes.
func SettleResponse(os []queue.Outcome) *queuev1.SettleResponse {
	out := &queuev1.SettleResponse{Outcomes: make([]*queuev1.Outcome, len(os))}
	block := make([]queuev1.Outcome, len(os))
	for i := range os {
		p := &block[i]
		p.Id, p.State, p.VisibilityMs = os[i].ID, protoState(os[i].State), limits.ToMillis(os[i].For)
		if os[i].Err != nil {
			p.Error = Refusal(os[i].Err)
		}
		out.Outcomes[i] = p
	}
	return out
}

// Outcomes is the inverse of SettleResponse.
func Outcomes(r *queuev1.SettleResponse) []queue.Outcome {
	out := make([]queue.Outcome, len(r.GetOutcomes()))
	for i, p := range r.GetOutcomes() {
		out[i] = queue.Outcome{
			ID: p.GetId(), State: stateOf(p.GetState()), For: time.Duration(p.GetVisibilityMs()) * time.Millisecond,
		}
		if p.GetError() != nil {
			out[i].Err = Refused(p.GetError())
		}
	}
	return out
}

// Refusal converts a refusal.
func Refusal(e *queue.Error) *queuev1.Refusal {
	p := refusal.ProblemOf(e)
	return &queuev1.Refusal{Tag: string(p.Tag), Message: p.Message, Hint: p.Hint, RetryAfterMs: p.RetryAfterMS, Holder: p.Holder}
}

// Refused is the inverse of Refusal.
func Refused(r *queuev1.Refusal) *queue.Error {
	p := refusal.Problem{
		Tag: queue.Tag(r.GetTag()), Message: r.GetMessage(), Hint: r.GetHint(), RetryAfterMS: r.GetRetryAfterMs(), Holder: r.GetHolder(),
	}
	return p.Refusal()
}

func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
