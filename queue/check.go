package queue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"math"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/emitd/emitd/queue/internal/ledger"
)

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`)

// checkName returns nil if a queue can have this name, and BadRequest if not.
func checkName(name string) *Error {
	if validName.MatchString(name) {
		return nil
	}
	return Refuse(BadRequest, "the queue name %.80q does not match %s", name, validName)
}

// prepared is a validated job, as the shard's goroutine gets it.
type prepared struct {
	id       string
	packed   ledger.ID
	kind     string
	group    string
	text     string // the payload if it is stored in the log
	payload  []byte // the payload if it becomes an object of its own
	blob     string
	size     int
	priority int8
	delay    time.Duration
	runAt    int64
	ttl      int64
	policy   ledger.Policy
	shard    int
}

// Limits of times and counts; larger values are refused as mistakes.
const (
	maxAhead    = 10 * 365 * 24 * time.Hour
	maxAttempts = 10_000
	minMillis   = int64(time.Millisecond)
)

// prepare validates a job, fills in the queue's defaults, and chooses the shard.
func (set *Settings) prepare(j *Job) (prepared, *Error) {
	id, err := jobID(j)
	if err != nil {
		return prepared{}, err
	}
	switch {
	case len(j.Type) > MaxType || !utf8.ValidString(j.Type):
		return prepared{}, badJob(id, "type has %d bytes, the limit is %d, of UTF-8", len(j.Type), MaxType)
	case len(j.Group) > MaxType || !utf8.ValidString(j.Group):
		return prepared{}, badJob(id, "group has %d bytes, the limit is %d, of UTF-8", len(j.Group), MaxType)
	case len(j.Payload) > MaxPayload:
		return prepared{}, Refuse(PayloadTooLarge, "job %q: the payload has %d bytes, the limit is %d", id, len(j.Payload), MaxPayload)
	case j.Priority < math.MinInt8 || j.Priority > math.MaxInt8:
		return prepared{}, badJob(id, "priority is %d, want -128 to 127", j.Priority)
	case j.Delay < 0 || j.Delay > maxAhead:
		return prepared{}, badJob(id, "delay is %v, want 0 to %v", j.Delay, maxAhead)
	case j.Delay != 0 && !j.RunAt.IsZero():
		return prepared{}, badJob(id, "delay and run-at are both given")
	case !j.RunAt.IsZero() && (j.RunAt.Year() < 1970 || j.RunAt.Year() > 2200):
		return prepared{}, badJob(id, "run-at is %v, want a year from 1970 to 2200", j.RunAt)
	case j.TTL < 0 || j.TTL > maxAhead:
		return prepared{}, badJob(id, "the time to live is %v, want 0 (for ever) to %v", j.TTL, maxAhead)
	}
	policy, err := set.policy(id, j.Retry)
	if err != nil {
		return prepared{}, err
	}
	p := prepared{
		id: id, packed: ledger.Pack(id), kind: j.Type, group: j.Group, priority: int8(j.Priority), delay: j.Delay,
		ttl: millis(cmp.Or(j.TTL, set.TTL)), policy: policy, shard: shardOf(cmp.Or(j.Group, id), set.Shards),
	}
	if !j.RunAt.IsZero() {
		p.runAt = max(1, j.RunAt.UnixMilli())
	}
	if len(j.Payload) > InlinePayload {
		p.payload = j.Payload
	} else {
		p.text = string(j.Payload) // a copy: the caller may change its slice after it has given up
	}
	return p, nil
}

func badJob(id, format string, args ...any) *Error {
	return Refuse(BadRequest, "job %q: "+format, append([]any{id}, args...)...)
}

// millis converts to milliseconds. It rounds up, so that a positive duration never becomes 0.
func millis(d time.Duration) int64 { return (int64(d) + minMillis - 1) / minMillis }

// jobID returns the job's ID: the given one, one derived from the key, or a new one.
func jobID(j *Job) (string, *Error) {
	switch {
	case j.ID != "" && j.Key != "":
		return "", badJob(j.ID, "id and key are both given")
	case j.ID != "":
		return j.ID, checkID(j.ID)
	case len(j.Key) > MaxID:
		return "", Refuse(BadRequest, "the key %.80q has %d bytes, the limit is %d", j.Key, len(j.Key), MaxID)
	case j.Key != "":
		// A UUID of version 8 (user-defined): 122 bits of the key's hash.
		sum := sha256.Sum256([]byte("emitd idempotency key\x00" + j.Key))
		id := uuid.UUID(sum[:16])
		id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
		return id.String(), nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return "", Refuse(Unavailable, "make an ID: %w", err)
	}
	return id.String(), nil
}

func checkID(id string) *Error {
	if id == "" || len(id) > MaxID {
		return Refuse(BadRequest, "the job ID %.80q has %d bytes, want 1 to %d", id, len(id), MaxID)
	}
	if !utf8.ValidString(id) {
		return Refuse(BadRequest, "the job ID %q is not UTF-8", id)
	}
	for _, r := range id {
		if r < ' ' || r == 0x7f {
			return Refuse(BadRequest, "the job ID %q has a control character", id)
		}
	}
	return nil
}

// policy returns the job's retry policy, with zero fields taken from the queue's.
func (set *Settings) policy(id string, r Retry) (ledger.Policy, *Error) {
	r = r.or(set.Retry)
	if why := r.check(); why != "" {
		return ledger.Policy{}, badJob(id, "%s", why)
	}
	p := ledger.Policy{
		Max: uint16(r.MaxAttempts), Back: r.Back, Factor: float32(r.Factor), Jitter: float32(max(0, r.Jitter)),
		Backoff: millis(r.Backoff), MaxBackoff: millis(r.MaxBackoff),
	}
	p.MaxBackoff = max(p.MaxBackoff, p.Backoff)
	return p, nil
}

// or returns r with its zero fields taken from d.
func (r Retry) or(d Retry) Retry {
	return Retry{
		MaxAttempts: cmp.Or(r.MaxAttempts, d.MaxAttempts), Backoff: cmp.Or(r.Backoff, d.Backoff), MaxBackoff: cmp.Or(r.MaxBackoff, d.MaxBackoff),
		Factor: cmp.Or(r.Factor, d.Factor), Jitter: cmp.Or(r.Jitter, d.Jitter), Back: r.Back || d.Back,
	}
}

var defaultRetry = Retry{MaxAttempts: 3, Backoff: time.Second, MaxBackoff: 5 * time.Minute, Factor: 2, Jitter: 0.2}

func (r Retry) check() string {
	switch {
	case r.MaxAttempts < 0 || r.MaxAttempts > maxAttempts:
		return fmt.Sprintf("max attempts is %d, want 1 to %d", r.MaxAttempts, maxAttempts)
	case r.Backoff < 0 || r.Backoff > maxAhead:
		return fmt.Sprintf("the back-off is %v, want 0 to %v", r.Backoff, maxAhead)
	case r.MaxBackoff < 0 || r.MaxBackoff > maxAhead:
		return fmt.Sprintf("the longest back-off is %v, want 0 to %v", r.MaxBackoff, maxAhead)
	case r.Factor != 0 && !(r.Factor >= 1 && r.Factor <= 100):
		return fmt.Sprintf("the factor is %v, want 1 to 100", r.Factor)
	case !(r.Jitter <= 1):
		return fmt.Sprintf("the jitter is %v, want at most 1", r.Jitter)
	}
	return ""
}

func (r *ClaimRequest) check(set *Settings) *Error {
	switch {
	case len(r.Worker) > MaxType || !utf8.ValidString(r.Worker):
		return Refuse(BadRequest, "the worker's name has %d bytes, the limit is %d, of UTF-8", len(r.Worker), MaxType)
	case r.Tokenless && r.Worker == "":
		return Refuse(BadRequest, "a claim without a token needs a worker's name")
	case len(r.RequestID) > MaxID || !utf8.ValidString(r.RequestID):
		return Refuse(BadRequest, "the request ID has %d bytes, the limit is %d, of UTF-8", len(r.RequestID), MaxID)
	case r.Max < 0 || r.Max > MaxCall:
		return Refuse(TooManyJobs, "%d jobs asked for, want 1 to %d", r.Max, MaxCall)
	case len(r.Types) > MaxCall:
		return Refuse(BadRequest, "%d types asked for, the limit is %d", len(r.Types), MaxCall)
	case r.Wait < 0 || r.Wait > MaxWait:
		return Refuse(BadRequest, "the wait is %v, want 0 to %v", r.Wait, MaxWait)
	case r.Visibility < 0 || r.Visibility > maxVisibility:
		return Refuse(BadRequest, "the visibility timeout is %v, want up to %v", r.Visibility, maxVisibility)
	}
	for _, t := range r.Types {
		if len(t) > MaxType {
			return Refuse(BadRequest, "the type %.80q has %d bytes, the limit is %d", t, len(t), MaxType)
		}
	}
	r.Max = max(1, r.Max)
	r.Visibility = cmp.Or(r.Visibility, set.Visibility)
	return nil
}

// maxVisibility is the longest visibility timeout; a worker that needs more extends its claim.
const maxVisibility = 24 * time.Hour

// check validates a settlement, whatever the job's state.
func (x *Settlement) check() *Error {
	if err := checkID(x.ID); err != nil {
		return err
	}
	switch {
	case x.Verb != Extend && x.Verb != Complete && x.Verb != Fail && x.Verb != Release:
		return Refuse(BadRequest, "job %q: the verb %.20q is not one of extend, complete, fail, release", x.ID, x.Verb)
	case x.Token == "" && x.Worker == "":
		return Refuse(BadRequest, "job %q: a settlement needs a token, or the worker's name of a claim without one", x.ID)
	case len(x.Token) > maxToken:
		return Refuse(StaleClaim, "job %q: this is no token", x.ID)
	case len(x.Result) > MaxResult:
		return Refuse(PayloadTooLarge, "job %q: the result has %d bytes, the limit is %d", x.ID, len(x.Result), MaxResult)
	case x.Visibility < 0 || x.Visibility > maxVisibility:
		return Refuse(BadRequest, "job %q: the visibility timeout is %v, want up to %v", x.ID, x.Visibility, maxVisibility)
	case x.RetryAfter != nil && (*x.RetryAfter < 0 || *x.RetryAfter > maxAhead):
		return Refuse(BadRequest, "job %q: retry-after is %v, want 0 to %v", x.ID, *x.RetryAfter, maxAhead)
	}
	return nil
}

// cut shortens a text to at most most bytes without splitting a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// shardOf returns the shard of a key by jump consistent hashing (Lamping and Veach, A Fast, Minimal
// Memory, Consistent Hash Algorithm, 2014): going from n to n+1 shards moves one key in n+1.
func shardOf(key string, shards int) int {
	if shards == 1 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	k := h.Sum64()
	at, next := int64(0), int64(0)
	for next < int64(shards) {
		at = next
		k = k*2862933555777941757 + 1
		next = int64(float64(at+1) * (float64(1<<31) / float64((k>>33)+1)))
	}
	return int(at)
}

func cursorOf(shard int, number uint64) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%d", shard, number))
}

func parseCursor(text string) (shard int, number uint64, err *Error) {
	if text == "" {
		return 0, 0, nil
	}
	raw, e := base64.RawURLEncoding.DecodeString(text)
	if e == nil {
		_, e = fmt.Sscanf(string(raw), "%d.%d", &shard, &number)
	}
	if e != nil || cursorOf(shard, number) != text || shard < 0 {
		return 0, 0, notACursor(text)
	}
	return shard, number, nil
}

func notACursor(text string) *Error {
	return Refuse(BadRequest, "the cursor %.80q is not one of a page", text)
}

// over refuses a call whose context has ended already.
func over(ctx context.Context) *Error {
	if ctx.Err() == nil {
		return nil
	}
	return canceled(ctx, Unavailable)
}
