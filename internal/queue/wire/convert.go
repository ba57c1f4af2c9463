package wire

import (
	"time"

	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/queue"
)

// List converts the request's jobs, one or many. The error is a refusal.
func (r *EnqueueRequest) List() ([]queue.Job, error) {
	if r.Jobs == nil {
		j, err := r.job()
		return []queue.Job{j}, err
	}
	if !r.empty() {
		return nil, queue.Refuse(queue.BadRequest, "fields of a job stand beside jobs").
			WithHint(`either {"payload": …} for one job or {"jobs": [{"payload": …}, …]}`)
	}
	if err := limits.Count("jobs", len(r.Jobs)); err != nil {
		return nil, err
	}
	out := make([]queue.Job, len(r.Jobs))
	for i := range r.Jobs {
		j, err := r.Jobs[i].job()
		if err != nil {
			return nil, limits.At("jobs", i, err)
		}
		out[i] = j
	}
	return out, nil
}

func (j *Job) empty() bool {
	return j.ID == "" && j.Key == "" && j.Type == "" && j.Group == "" && j.Payload == nil && j.PayloadBase64 == nil &&
		j.Priority == 0 && j.DelayMS == 0 && j.RunAt.IsZero() && j.TTLMS == 0 && j.Retry == nil
}

func (j *Job) job() (queue.Job, error) {
	out := queue.Job{ID: j.ID, Key: j.Key, Type: j.Type, Group: j.Group, Priority: j.Priority, RunAt: j.RunAt}
	var err error
	if out.Payload, err = join("payload", j.Payload, j.PayloadBase64); err != nil {
		return out, err
	}
	if out.Delay, err = limits.Millis("delay_ms", j.DelayMS); err != nil {
		return out, err
	}
	if out.TTL, err = limits.Millis("ttl_ms", j.TTLMS); err != nil {
		return out, err
	}
	if out.Retry, err = j.Retry.Policy(); err != nil {
		return out, err
	}
	return out, limits.Job(&out)
}

// Policy converts r; nil means the queue's own policy. The error is a refusal.
func (r *Retry) Policy() (queue.Retry, error) {
	if r == nil {
		return queue.Retry{}, nil
	}
	out := queue.Retry{MaxAttempts: r.MaxAttempts, Factor: r.Factor, Jitter: r.Jitter, Back: r.Back}
	var err error
	if out.Backoff, err = limits.Millis("retry.backoff_ms", r.BackoffMS); err != nil {
		return out, err
	}
	out.MaxBackoff, err = limits.Millis("retry.max_backoff_ms", r.MaxBackoffMS)
	return out, err
}

// RetryOf is the inverse of Policy.
func RetryOf(r queue.Retry) *Retry {
	return &Retry{
		MaxAttempts: r.MaxAttempts, BackoffMS: limits.ToMillis(r.Backoff), MaxBackoffMS: limits.ToMillis(r.MaxBackoff),
		Factor: r.Factor, Jitter: r.Jitter, Back: r.Back,
	}
}

// Request converts r. The error is a refusal.
func (r *ClaimRequest) Request() (queue.ClaimRequest, error) {
	out := queue.ClaimRequest{Worker: r.Worker, Types: r.Types, Max: r.Max, RequestID: r.RequestID, Tokenless: r.Tokenless}
	var err error
	if out.Wait, err = limits.Millis("wait_ms", r.WaitMS); err != nil {
		return out, err
	}
	if out.Visibility, err = limits.Millis("visibility_ms", r.VisibilityMS); err != nil {
		return out, err
	}
	return out, limits.Claim(&out)
}

// ClaimOf is the inverse of Request.
func ClaimOf(r queue.ClaimRequest) ClaimRequest {
	return ClaimRequest{
		Worker: r.Worker, Types: r.Types, Max: r.Max, WaitMS: limits.ToMillis(r.Wait), VisibilityMS: limits.ToMillis(r.Visibility),
		RequestID: r.RequestID, Tokenless: r.Tokenless,
	}
}

// List converts the settlements. The error is a refusal of the whole call.
func (r *SettleRequest) List() ([]queue.Settlement, error) {
	if err := limits.Count("settlements", len(r.Settlements)); err != nil {
		return nil, err
	}
	out := make([]queue.Settlement, len(r.Settlements))
	for i := range r.Settlements {
		s, err := r.Settlements[i].Settlement()
		if err != nil {
			return nil, limits.At("settlements", i, err)
		}
		out[i] = s
	}
	return out, nil
}

// Settlement converts s. The error is a refusal.
func (s *Settlement) Settlement() (queue.Settlement, error) {
	out := queue.Settlement{Verb: s.Verb, ID: s.ID, Token: s.Token, Worker: s.Worker, Cause: s.Cause, Dead: s.Dead}
	var err error
	if out.Visibility, err = limits.Millis("visibility_ms", s.VisibilityMS); err != nil {
		return out, err
	}
	if out.Result, err = join("result", s.Result, s.ResultBase64); err != nil {
		return out, err
	}
	if s.RetryAfterMS != nil {
		d, err := limits.Millis("retry_after_ms", *s.RetryAfterMS)
		if err != nil {
			return out, err
		}
		out.RetryAfter = &d
	}
	return out, limits.Settlement(&out)
}

// Outcome converts o.
func (o *Outcome) Outcome() queue.Outcome {
	out := queue.Outcome{ID: o.ID, State: o.State, For: time.Duration(o.VisibilityMS) * time.Millisecond}
	if o.Error != nil {
		out.Err = o.Error.Refusal()
	}
	return out
}

// Claimed converts c.
func (c *Claimed) Claimed() queue.Claimed {
	return queue.Claimed{
		Job: c.Info.Info(), Payload: either(c.Payload, c.PayloadBase64), Token: c.Token, Until: c.Until,
		For: time.Duration(c.VisibilityMS) * time.Millisecond,
	}
}

// Info converts i.
func (i *Info) Info() queue.Info {
	return queue.Info{
		ID: i.ID, Queue: i.Queue, Type: i.Type, Group: i.Group, State: i.State, Priority: i.Priority,
		Attempts: i.Attempts, Deliveries: i.Deliveries, MaxAttempts: i.MaxAttempts, Worker: i.Worker,
		CreatedAt: i.CreatedAt, RunAt: i.RunAt, Until: i.Until, ExpiresAt: i.ExpiresAt, EndedAt: i.EndedAt,
		Cause: i.Cause, Size: i.Size, Result: either(i.Result, i.ResultBase64),
	}
}

// Bytes returns the payload.
func (v *JobView) Bytes() []byte { return either(v.Payload, v.PayloadBase64) }

func either(text, bin []byte) []byte {
	if text != nil {
		return text
	}
	return bin
}

// InfoOf converts the description of a job.
func InfoOf(i *queue.Info) Info {
	out := Info{
		ID: i.ID, Queue: i.Queue, Type: i.Type, Group: i.Group, State: i.State, Priority: i.Priority,
		Attempts: i.Attempts, Deliveries: i.Deliveries, MaxAttempts: i.MaxAttempts, Worker: i.Worker,
		CreatedAt: i.CreatedAt, RunAt: i.RunAt, Until: i.Until, ExpiresAt: i.ExpiresAt, EndedAt: i.EndedAt,
		Cause: i.Cause, Size: i.Size,
	}
	out.Result, out.ResultBase64 = split(i.Result)
	return out
}

// JobViewOf converts a job with its payload.
func JobViewOf(i *queue.Info, payload []byte) JobView {
	out := JobView{Info: InfoOf(i)}
	out.Payload, out.PayloadBase64 = split(payload)
	return out
}
