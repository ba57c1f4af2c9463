// Package limits validates what a caller sends to the queue. The server refuses invalid calls and
// names the field; the client refuses them without a request. The limits themselves are defined in
// package queue. The broker checks what depends on a queue's settings.
//
// Each function returns a refusal (*queue.Error) or nil.
package limits

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/queue"
)

// MaxVisibility is the longest visibility timeout. A worker that needs more extends its claim.
const MaxVisibility = 24 * time.Hour

// Job refuses a job that exceeds the limits of package queue or contradicts itself.
func Job(j *queue.Job) error {
	if err := first(
		text("id", j.ID), text("key", j.Key),
		text("type", j.Type), text("group", j.Group),
	); err != nil {
		return err
	}
	switch r := j.Retry; {
	case j.ID != "" && j.Key != "":
		return queue.Refuse(queue.BadRequest, "id and key are both given").WithHint("the id is an idempotency key already")
	case len(j.Payload) > queue.MaxPayload:
		return queue.Refuse(queue.PayloadTooLarge, "payload: %d bytes, at most %d are taken", len(j.Payload), queue.MaxPayload).
			WithHint("store it elsewhere and enqueue its address")
	case j.Priority < math.MinInt8 || j.Priority > math.MaxInt8:
		return queue.Refuse(queue.BadRequest, "priority: %d is not within -128 and 127", j.Priority)
	case j.Delay != 0 && !j.RunAt.IsZero():
		return queue.Refuse(queue.BadRequest, "delay_ms and run_at are both given")
	case j.Delay < 0 || j.TTL < 0 || r.Backoff < 0 || r.MaxBackoff < 0:
		return queue.Refuse(queue.BadRequest, "delay_ms, ttl_ms and back-offs are not negative")
	case r.MaxAttempts < 0 || r.MaxAttempts > math.MaxInt16:
		return queue.Refuse(queue.BadRequest, "retry.max_attempts: %d is not within 1 and %d", r.MaxAttempts, math.MaxInt16)
	case r.Factor != 0 && !(r.Factor >= 1 && r.Factor <= 100):
		return queue.Refuse(queue.BadRequest, "retry.factor: %v is not within 1 and 100", r.Factor)
	case !(r.Jitter <= 1) || math.IsInf(r.Jitter, 0):
		return queue.Refuse(queue.BadRequest, "retry.jitter: %v is above 1", r.Jitter)
	}
	return nil
}

// Claim refuses a claim that exceeds the limits.
func Claim(r *queue.ClaimRequest) error {
	if err := first(text("worker", r.Worker), text("request_id", r.RequestID)); err != nil {
		return err
	}
	switch {
	case r.Max < 0:
		return queue.Refuse(queue.BadRequest, "max: %d is negative", r.Max)
	case r.Max > queue.MaxCall:
		return queue.Refuse(queue.TooManyJobs, "max: %d, at most %d in one call", r.Max, queue.MaxCall)
	case r.Wait < 0 || r.Wait > queue.MaxWait:
		return queue.Refuse(queue.BadRequest, "wait_ms: %d is not within 0 and %d", r.Wait.Milliseconds(), queue.MaxWait.Milliseconds())
	case r.Visibility < 0:
		return queue.Refuse(queue.BadRequest, "visibility_ms is negative")
	case len(r.Types) > queue.MaxCall:
		return queue.Refuse(queue.BadRequest, "types: %d, at most %d", len(r.Types), queue.MaxCall)
	case r.Tokenless && r.Worker == "":
		return queue.Refuse(queue.BadRequest, "worker is missing: a claim without a token is fenced by it")
	}
	for i, t := range r.Types {
		if err := text("type", t); err != nil {
			return At("types", i, err)
		}
	}
	return nil
}

var verbs = []queue.Verb{queue.Extend, queue.Complete, queue.Fail, queue.Release}

// Settlement refuses a settlement that is invalid whatever claim it is for.
func Settlement(s *queue.Settlement) error {
	if err := first(text("id", s.ID), text("worker", s.Worker)); err != nil {
		return err
	}
	switch {
	case !slices.Contains(verbs, s.Verb):
		return queue.Refuse(queue.BadRequest, "verb: %q is none of extend, complete, fail, release", s.Verb)
	case s.ID == "":
		return queue.Refuse(queue.BadRequest, "id is missing")
	case s.Token == "" && s.Worker == "":
		return queue.Refuse(queue.BadRequest, "token is missing").
			WithHint("send the token of the claim; worker replaces it only where the claim was made without a token")
	case len(s.Token) > maxToken:
		return queue.Refuse(queue.BadRequest, "token: %d bytes, none is longer than %d", len(s.Token), maxToken)
	case len(s.Result) > queue.MaxResult:
		return queue.Refuse(queue.PayloadTooLarge, "result: %d bytes, at most %d are kept", len(s.Result), queue.MaxResult)
	case s.Verb != queue.Complete && s.Result != nil:
		return queue.Refuse(queue.BadRequest, "result belongs to complete, not to %s", s.Verb)
	case s.Verb != queue.Fail && (s.Cause != "" || s.RetryAfter != nil || s.Dead):
		return queue.Refuse(queue.BadRequest, "cause, retry_after_ms and dead belong to fail, not to %s", s.Verb)
	case s.Verb != queue.Extend && s.Visibility != 0:
		return queue.Refuse(queue.BadRequest, "visibility_ms belongs to extend, not to %s", s.Verb)
	}
	return nil
}

// maxToken is the longest accepted token; those of the broker are far shorter.
const maxToken = 1 << 10

// Queue refuses an invalid queue name. A valid one has 1 to 64 of a-z, 0-9, '.', '_' and '-', the
// first and last a letter or digit.
func Queue(name string) error {
	bad := name == "" || len(name) > queue.MaxName
	for i := range len(name) {
		c := name[i]
		word := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		inner := i > 0 && i < len(name)-1 && (c == '.' || c == '_' || c == '-')
		bad = bad || !word && !inner
	}
	if bad {
		return queue.Refuse(queue.BadRequest, "queue: %.80q is no name of a queue", name).
			WithHint("1 to %d of a-z, 0-9, '.', '_' and '-', the first and last a letter or digit", queue.MaxName)
	}
	return nil
}

var acts = []queue.Act{queue.Cancel, queue.Redrive, queue.RunNow, queue.Purge, queue.Pause, queue.Resume}

// Command refuses an unknown action, and fields that the action does not use: an operator must not
// believe that an ignored field had an effect.
func Command(c *queue.Command) error {
	if err := first(checkIDs(c.IDs), State(c.State), text("type", c.Type)); err != nil {
		return err
	}
	switch {
	case !slices.Contains(acts, c.Act):
		return queue.Refuse(queue.BadRequest, "act: %.40q is none of cancel, redrive, retry, purge, pause, resume", string(c.Act))
	case c.Act != queue.Purge && c.State != "":
		return queue.Refuse(queue.BadRequest, "state belongs to purge, not to %s", c.Act)
	case c.Act == queue.Purge && c.IDs != nil:
		return queue.Refuse(queue.BadRequest, "purge takes a state and a type, no ids").WithHint("cancel takes ids")
	case (c.Act == queue.Pause || c.Act == queue.Resume) && (c.IDs != nil || c.Type != ""):
		return queue.Refuse(queue.BadRequest, "%s is for the whole queue: ids and type do not belong to it", c.Act)
	case c.IDs != nil && len(c.IDs) == 0:
		return queue.Refuse(queue.BadRequest, "ids is empty").WithHint("leave it out to mean all jobs that qualify")
	}
	return nil
}

func checkIDs(ids []string) error {
	if len(ids) > queue.MaxCall {
		return queue.Refuse(queue.TooManyJobs, "ids: %d, at most %d in one call", len(ids), queue.MaxCall)
	}
	for i, id := range ids {
		if err := ID(id); err != nil {
			return At("ids", i, err)
		}
	}
	return nil
}

// ID refuses an invalid job ID.
func ID(id string) error {
	if id == "" {
		return queue.Refuse(queue.BadRequest, "id is missing")
	}
	return text("id", id)
}

// State refuses an unknown state; empty means any.
func State(s queue.State) error {
	switch s {
	case "", queue.Waiting, queue.Delayed, queue.Active, queue.Completed, queue.Dead, queue.Cancelled:
		return nil
	}
	return queue.Refuse(queue.BadRequest, "state: %.80q is none of waiting, delayed, active, completed, dead, cancelled", string(s))
}

// Count refuses an empty list, and one with more than MaxCall elements.
func Count(field string, n int) error {
	switch {
	case n == 0:
		return queue.Refuse(queue.BadRequest, "%s is empty", field)
	case n > queue.MaxCall:
		return queue.Refuse(queue.TooManyJobs, "%s: %d, at most %d in one call", field, n, queue.MaxCall).
			WithHint("split the call")
	}
	return nil
}

// maxText is the limit of every name; all names have the same limit on purpose.
const maxText = min(queue.MaxID, queue.MaxType)

// text refuses a name that is too long, or has control characters, with which log lines could be
// forged.
func text(field, s string) error {
	if len(s) > maxText {
		return queue.Refuse(queue.BadRequest, "%s: %d bytes, at most %d", field, len(s), maxText)
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return queue.Refuse(queue.BadRequest, "%s has a control character", field)
		}
	}
	if !utf8.ValidString(s) {
		return queue.Refuse(queue.BadRequest, "%s is no UTF-8", field)
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// At adds the index of the refused list element to a refusal.
func At(field string, i int, err error) error {
	e, ok := errors.AsType[*queue.Error](err)
	if !ok {
		return err
	}
	e.Message = fmt.Sprintf("%s[%d].%s", field, i, e.Message)
	return e
}

// Call refuses a call whose queue name is invalid, or that has no elements or too many.
func Call(name string, n int) error {
	if err := Queue(name); err != nil {
		return err
	}
	return Count("jobs", n)
}

// maxMillis is the longest duration in a body: about a century.
const maxMillis = 100 * 366 * 24 * 3600 * 1000

// Millis converts the milliseconds of a field, and refuses negative and absurd values.
func Millis(field string, ms int64) (time.Duration, error) {
	if ms < 0 || ms > maxMillis {
		return 0, queue.Refuse(queue.BadRequest, "%s: %d is not within 0 and %d", field, ms, int64(maxMillis))
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// ToMillis is the inverse of Millis. It rounds up, so that a positive duration never becomes 0.
func ToMillis(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
