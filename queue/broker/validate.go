package broker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
)

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`)

// checkName returns nil if a queue can have this name, and BadRequest if not.
func checkName(name string) *queue.Error {
	if validName.MatchString(name) {
		return nil
	}
	return queue.Refuse(queue.BadRequest, "the queue name %.80q does not match %s", name, validName)
}

// maxShards is the most shards that one queue may have.
const maxShards = 256

// withDefaults returns the settings with the defaults in place of zero fields.
func withDefaults(set queue.Settings) queue.Settings {
	set.Shards = cmp.Or(set.Shards, 1)
	set.Claims = cmp.Or(set.Claims, queue.SoftClaims)
	set.Visibility = cmp.Or(set.Visibility, 30*time.Second)
	set.Retry = retryOr(set.Retry, defaultRetry)
	set.DedupWindow = cmp.Or(set.DedupWindow, 10*time.Minute)
	set.DedupIDs = cmp.Or(set.DedupIDs, 1_000_000)
	set.MaxJobs = cmp.Or(set.MaxJobs, 10_000_000)
	set.MaxBytes = cmp.Or(set.MaxBytes, 1<<30)
	return set
}

// checkSettings returns nil if a queue can have these settings, and BadRequest if not.
func checkSettings(set *queue.Settings) *queue.Error {
	if err := checkName(set.Name); err != nil {
		return err
	}
	bad := func(format string, args ...any) *queue.Error {
		return queue.Refuse(queue.BadRequest, "queue %q: "+format, append([]any{set.Name}, args...)...)
	}
	switch {
	case set.Shards < 0 || set.Shards > maxShards:
		return bad("shards is %d, want 1 to %d", set.Shards, maxShards)
	case set.Claims != "" && set.Claims != queue.SoftClaims && set.Claims != queue.DurableClaims:
		return bad("claims is %.20q, want %q or %q", set.Claims, queue.SoftClaims, queue.DurableClaims)
	case set.Visibility < 0 || set.Visibility > limits.MaxVisibility || set.Visibility > 0 && set.Visibility < time.Second:
		return bad("the visibility timeout is %v, want 1s to %v", set.Visibility, limits.MaxVisibility)
	case set.TTL < 0 || set.TTL > maxAhead:
		return bad("the time to live is %v, want 0 (for ever) to %v", set.TTL, maxAhead)
	case set.DedupWindow < 0 || set.DedupWindow > 30*24*time.Hour:
		return bad("the dedup window is %v, want up to 30 days", set.DedupWindow)
	case set.DedupIDs < 0 || set.DedupIDs > 100_000_000:
		return bad("the dedup window has %d IDs, want up to 100,000,000", set.DedupIDs)
	case set.MaxJobs < 0 || set.MaxJobs > 100_000_000 || set.MaxBytes < 0:
		return bad("max jobs is %d (up to 100,000,000), max bytes %d; want 0 (the default) or more", set.MaxJobs, set.MaxBytes)
	}
	if why := checkRetry(set.Retry); why != "" {
		return bad("%s", why)
	}
	return nil
}

// validJob is a validated job, as the shard's goroutine gets it.
type validJob struct {
	id       string
	packed   ledger.ID
	jobType  string
	group    string
	inline   string // the payload if it is stored in the log
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
func prepare(set *queue.Settings, j *queue.Job) (validJob, *queue.Error) {
	id, err := jobID(j)
	if err != nil {
		return validJob{}, err
	}
	switch {
	case len(j.Type) > queue.MaxType || !utf8.ValidString(j.Type):
		return validJob{}, badJob(id, "type has %d bytes, the limit is %d, of UTF-8", len(j.Type), queue.MaxType)
	case len(j.Group) > queue.MaxType || !utf8.ValidString(j.Group):
		return validJob{}, badJob(id, "group has %d bytes, the limit is %d, of UTF-8", len(j.Group), queue.MaxType)
	case len(j.Payload) > queue.MaxPayload:
		return validJob{}, queue.Refuse(queue.PayloadTooLarge, "job %q: the payload has %d bytes, the limit is %d", id, len(j.Payload), queue.MaxPayload)
	case j.Priority < math.MinInt8 || j.Priority > math.MaxInt8:
		return validJob{}, badJob(id, "priority is %d, want -128 to 127", j.Priority)
	case j.Delay < 0 || j.Delay > maxAhead:
		return validJob{}, badJob(id, "delay is %v, want 0 to %v", j.Delay, maxAhead)
	case j.Delay != 0 && !j.RunAt.IsZero():
		return validJob{}, badJob(id, "delay and run-at are both given")
	case !j.RunAt.IsZero() && (j.RunAt.Year() < 1970 || j.RunAt.Year() > 2200):
		return validJob{}, badJob(id, "run-at is %v, want a year from 1970 to 2200", j.RunAt)
	case j.TTL < 0 || j.TTL > maxAhead:
		return validJob{}, badJob(id, "the time to live is %v, want 0 (for ever) to %v", j.TTL, maxAhead)
	}
	policy, err := policyOf(set, id, j.Retry)
	if err != nil {
		return validJob{}, err
	}
	p := validJob{
		id: id, packed: ledger.Pack(id), jobType: j.Type, group: j.Group, priority: int8(j.Priority), delay: j.Delay,
		ttl: millis(cmp.Or(j.TTL, set.TTL)), policy: policy, shard: shardOf(cmp.Or(j.Group, id), set.Shards),
	}
	if !j.RunAt.IsZero() {
		p.runAt = max(1, j.RunAt.UnixMilli())
	}
	if len(j.Payload) > queue.InlinePayload {
		p.payload = j.Payload
	} else {
		p.inline = string(j.Payload) // a copy: the caller may change its slice after it has given up
	}
	return p, nil
}

func badJob(id, format string, args ...any) *queue.Error {
	return queue.Refuse(queue.BadRequest, "job %q: "+format, append([]any{id}, args...)...)
}

// millis converts to milliseconds. It rounds up, so that a positive duration never becomes 0.
func millis(d time.Duration) int64 { return (int64(d) + minMillis - 1) / minMillis }

// jobID returns the job's ID: the given one, one derived from the key, or a new one.
func jobID(j *queue.Job) (string, *queue.Error) {
	switch {
	case j.ID != "" && j.Key != "":
		return "", badJob(j.ID, "id and key are both given")
	case j.ID != "":
		return j.ID, checkID(j.ID)
	case len(j.Key) > queue.MaxID:
		return "", queue.Refuse(queue.BadRequest, "the key %.80q has %d bytes, the limit is %d", j.Key, len(j.Key), queue.MaxID)
	case j.Key != "":
		// A UUID of version 8 (user-defined): 122 bits of the key's hash.
		sum := sha256.Sum256([]byte("emitd idempotency key\x00" + j.Key))
		id := uuid.UUID(sum[:16])
		id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
		return id.String(), nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return "", queue.Refuse(queue.Unavailable, "generate an ID: %w", err)
	}
	return id.String(), nil
}

func checkID(id string) *queue.Error {
	if id == "" || len(id) > queue.MaxID {
		return queue.Refuse(queue.BadRequest, "the job ID %.80q has %d bytes, want 1 to %d", id, len(id), queue.MaxID)
	}
	if !utf8.ValidString(id) {
		return queue.Refuse(queue.BadRequest, "the job ID %q is not UTF-8", id)
	}
	for _, r := range id {
		if r < ' ' || r == 0x7f {
			return queue.Refuse(queue.BadRequest, "the job ID %q has a control character", id)
		}
	}
	return nil
}

// policyOf returns the job's retry policy, with zero fields taken from the queue's.
func policyOf(set *queue.Settings, id string, r queue.Retry) (ledger.Policy, *queue.Error) {
	r = retryOr(r, set.Retry)
	if why := checkRetry(r); why != "" {
		return ledger.Policy{}, badJob(id, "%s", why)
	}
	p := ledger.Policy{
		Max: uint16(r.MaxAttempts), Back: r.Back, Factor: float32(r.Factor), Jitter: float32(max(0, r.Jitter)),
		Backoff: millis(r.Backoff), MaxBackoff: millis(r.MaxBackoff),
	}
	p.MaxBackoff = max(p.MaxBackoff, p.Backoff)
	return p, nil
}

// retryOr returns r with its zero fields taken from d.
func retryOr(r, d queue.Retry) queue.Retry {
	return queue.Retry{
		MaxAttempts: cmp.Or(r.MaxAttempts, d.MaxAttempts), Backoff: cmp.Or(r.Backoff, d.Backoff), MaxBackoff: cmp.Or(r.MaxBackoff, d.MaxBackoff),
		Factor: cmp.Or(r.Factor, d.Factor), Jitter: cmp.Or(r.Jitter, d.Jitter), Back: r.Back || d.Back,
	}
}

var defaultRetry = queue.Retry{MaxAttempts: 3, Backoff: time.Second, MaxBackoff: 5 * time.Minute, Factor: 2, Jitter: 0.2}

// checkRetry returns what is wrong with a retry policy, or "".
func checkRetry(r queue.Retry) string {
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

// checkClaim validates a claim request and fills in the defaults.
func checkClaim(r *queue.ClaimRequest, set *queue.Settings) *queue.Error {
	switch {
	case len(r.Worker) > queue.MaxType || !utf8.ValidString(r.Worker):
		return queue.Refuse(queue.BadRequest, "the worker's name has %d bytes, the limit is %d, of UTF-8", len(r.Worker), queue.MaxType)
	case r.Tokenless && r.Worker == "":
		return queue.Refuse(queue.BadRequest, "a claim without a token needs a worker's name")
	case len(r.RequestID) > queue.MaxID || !utf8.ValidString(r.RequestID):
		return queue.Refuse(queue.BadRequest, "the request ID has %d bytes, the limit is %d, of UTF-8", len(r.RequestID), queue.MaxID)
	case r.Max < 0 || r.Max > queue.MaxCall:
		return queue.Refuse(queue.TooManyJobs, "%d jobs asked for, want 1 to %d", r.Max, queue.MaxCall)
	case len(r.Types) > queue.MaxCall:
		return queue.Refuse(queue.BadRequest, "%d types asked for, the limit is %d", len(r.Types), queue.MaxCall)
	case r.Wait < 0 || r.Wait > queue.MaxWait:
		return queue.Refuse(queue.BadRequest, "the wait is %v, want 0 to %v", r.Wait, queue.MaxWait)
	case r.Visibility < 0 || r.Visibility > limits.MaxVisibility:
		return queue.Refuse(queue.BadRequest, "the visibility timeout is %v, want up to %v", r.Visibility, limits.MaxVisibility)
	}
	for _, t := range r.Types {
		if len(t) > queue.MaxType {
			return queue.Refuse(queue.BadRequest, "the type %.80q has %d bytes, the limit is %d", t, len(t), queue.MaxType)
		}
	}
	r.Max = max(1, r.Max)
	r.Visibility = cmp.Or(r.Visibility, set.Visibility)
	return nil
}

// checkSettlement validates a settlement, whatever the job's state.
func checkSettlement(x *queue.Settlement) *queue.Error {
	if err := checkID(x.ID); err != nil {
		return err
	}
	switch {
	case x.Verb != queue.Extend && x.Verb != queue.Complete && x.Verb != queue.Fail && x.Verb != queue.Release:
		return queue.Refuse(queue.BadRequest, "job %q: the verb %.20q is not one of extend, complete, fail, release", x.ID, x.Verb)
	case x.Token == "" && x.Worker == "":
		return queue.Refuse(queue.BadRequest, "job %q: a settlement needs a token or, for a claim without one, the worker's name", x.ID)
	case len(x.Token) > maxToken:
		return queue.Refuse(queue.StaleClaim, "job %q: this is not a token", x.ID)
	case len(x.Result) > queue.MaxResult:
		return queue.Refuse(queue.PayloadTooLarge, "job %q: the result has %d bytes, the limit is %d", x.ID, len(x.Result), queue.MaxResult)
	case x.Visibility < 0 || x.Visibility > limits.MaxVisibility:
		return queue.Refuse(queue.BadRequest, "job %q: the visibility timeout is %v, want up to %v", x.ID, x.Visibility, limits.MaxVisibility)
	case x.RetryAfter != nil && (*x.RetryAfter < 0 || *x.RetryAfter > maxAhead):
		return queue.Refuse(queue.BadRequest, "job %q: retry-after is %v, want 0 to %v", x.ID, *x.RetryAfter, maxAhead)
	}
	return nil
}

// truncate shortens a text to at most most bytes without splitting a character.
func truncate(text string, most int) string {
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

func parseCursor(text string) (shard int, number uint64, err *queue.Error) {
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

// withLayout adds to a cursor how often the queue's number of shards had changed, so that it is not taken for one
// of later shards. A queue of the first layout has none.
func withLayout(cursor string, layout uint64) string {
	if layout == 0 || cursor == "" {
		return cursor
	}
	return strconv.FormatUint(layout, 10) + "." + cursor
}

// cutLayout is the inverse of withLayout. It refuses a cursor of another layout.
func cutLayout(text string, layout uint64) (cursor string, err *queue.Error) {
	of, cursor, ok := strings.Cut(text, ".")
	if !ok {
		of, cursor = "0", text
	}
	n, bad := strconv.ParseUint(of, 10, 64)
	switch {
	case text == "":
		return "", nil
	case bad != nil || withLayout(cursor, n) != text:
		return "", notACursor(text)
	case n != layout:
		return "", queue.Refuse(queue.BadRequest, "the cursor %.80q is from before the queue got another number of shards", text).WithHint("begin the list anew")
	}
	return cursor, nil
}

func notACursor(text string) *queue.Error {
	return queue.Refuse(queue.BadRequest, "the cursor %.80q is not from a page", text)
}

// contextError refuses a call whose context has ended already.
func contextError(ctx context.Context) *queue.Error {
	if ctx.Err() == nil {
		return nil
	}
	return canceled(ctx, queue.Unavailable)
}
