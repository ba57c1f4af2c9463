package queue

import (
	"context"
	"time"
)

// Limits of what a caller may send. A call beyond them is refused as a whole with [BadRequest],
// [PayloadTooLarge] or [TooManyJobs], and nothing of it is stored.
const (
	MaxName    = 64       // bytes of a queue's name
	MaxID      = 64       // bytes of a job's ID and of a key
	MaxType    = 64       // bytes of a job's type, of a worker's name and of a group
	MaxPayload = 16 << 20 // bytes; beyond InlinePayload a payload is an object of its own
	MaxResult  = 64 << 10 // bytes of a result
	MaxCause   = 4 << 10  // bytes of an error text; longer ones are cut
	MaxCall    = 1_000    // jobs, claims or settlements in one call
	MaxPage    = 1_000    // jobs in one page of a list
	MaxWait    = time.Minute

	// InlinePayload is the largest payload, in bytes, that travels inside the log.
	InlinePayload = 256 << 10
)

// DefaultQueue is the queue of calls that name none.
const DefaultQueue = "default"

// Job is what a producer submits.
type Job struct {
	// ID names the job within its queue. The client chooses it, or the broker makes one.
	// Submitting an ID again within the deduplication window changes nothing and returns a
	// receipt with Duplicate. So a client that retries with the same ID or Key never creates a
	// duplicate.
	ID string
	// Key is an idempotency key for callers that have no ID. The broker derives the ID from it.
	Key string
	// Type chooses the handler; workers claim by type. May be empty.
	Type string
	// Group keeps jobs on one shard, where their order is kept. May be empty.
	Group string
	// Payload is opaque to the queue; the JSON API carries JSON.
	Payload []byte
	// Priority is -128 to 127; the higher one is claimed first. Default 0.
	Priority int
	// Delay is how long the job waits before it can be claimed; RunAt is the time, on the queue's clock, from which
	// it can be claimed. At most one of them may be set. A time in the past means now.
	Delay time.Duration
	RunAt time.Time
	// TTL is how long the job may wait for a worker. A job that waits longer becomes dead, with the cause that it
	// expired. 0: without limit.
	TTL time.Duration
	// Retry is the policy after a failure; zero fields take the queue's policy.
	Retry Retry
}

// Retry is the policy after a failed attempt.
type Retry struct {
	MaxAttempts int           // attempts after which the job is dead; default 3
	Backoff     time.Duration // after the first failure; default 1 s
	MaxBackoff  time.Duration // default 5 min
	Factor      float64       // growth of the back-off; default 2
	// Jitter is the fraction of a back-off by which it is varied to either side; default 0.2,
	// negative for none.
	Jitter float64
	// Back puts a retried job behind the jobs that were submitted meanwhile. By default it
	// keeps its place.
	Back bool
}

// Receipt confirms that a job is durable.
type Receipt struct {
	ID        string
	Duplicate bool  // the ID is known: a live job, or one that ended within the deduplication window
	State     State // as of now
}

// State is a job's place in its life cycle.
type State string

// The states of a job.
const (
	Waiting   State = "waiting"   // may be claimed
	Delayed   State = "delayed"   // may be claimed later
	Active    State = "active"    // claimed
	Completed State = "completed" // done; remembered for the deduplication window
	Dead      State = "dead"      // tried no more; kept with its cause until redriven or purged
	Cancelled State = "cancelled" // cancelled by an operator; remembered for the deduplication window
)

// ClaimRequest asks for jobs.
type ClaimRequest struct {
	Worker string   // the worker's name, for people; required if Tokenless, where it identifies the holder
	Types  []string // job types to claim; empty: any
	Max    int      // most jobs to return; default 1. The answer has fewer if their payloads together exceed MaxPayload
	// Wait is how long the call waits for jobs if there are none (long poll), at most MaxWait.
	// Waiting costs no storage request.
	Wait time.Duration
	// Visibility is the claim's visibility timeout, at most 24 h; default the queue's.
	Visibility time.Duration
	// RequestID makes a repetition of this call return the same claims, within Visibility.
	RequestID string
	// Tokenless claims are settled by (job, worker) alone, for clients that do not support tokens. Such a claim is
	// durable before the call returns, whatever the queue's setting for claims is.
	Tokenless bool
}

// Claimed is a job that a worker has claimed.
type Claimed struct {
	Job     Info
	Payload []byte
	Token   string        // proves the claim; opaque
	Until   time.Time     // when the claim ends, by the queue's clock; extend it before
	For     time.Duration // how long the claim lasts from now, unless extended: less than Visibility for a repeated call
}

// Verb is how a worker settles a claim.
type Verb string

// The verbs.
const (
	Extend   Verb = "extend"   // start the visibility timeout anew (heartbeat)
	Complete Verb = "complete" // done
	Fail     Verb = "fail"     // failed: retried by policy, or dead
	Release  Verb = "release"  // return the job at once; not an attempt, unless it was extended before, which counts one
)

// Settlement settles one claim.
type Settlement struct {
	Verb   Verb
	ID     string
	Token  string
	Worker string // only for a tokenless claim
	// Visibility is the new visibility timeout, for Extend; default the claim's.
	Visibility time.Duration
	// Result is stored for Complete and kept within the deduplication window. May be nil.
	Result []byte
	// Cause is the error text of Fail.
	Cause string
	// RetryAfter is the pause before the next attempt, for Fail; nil follows the job's policy.
	RetryAfter *time.Duration
	// Dead makes the job dead at once, for Fail: there is no further attempt.
	Dead bool
}

// Outcome is the answer to one settlement. Err is nil, [StaleClaim], [JobNotFound] or a kind of bad
// request. An error does not affect the other settlements of the call. If only some of a queue's shards answer, Err of the
// others' settlements is [Unavailable], [QueueNotOwner] or [UnknownOutcome]: repeat these. If none answers, the call fails.
type Outcome struct {
	ID    string
	State State         // of the job after the settlement
	For   time.Duration // the claim's new visibility timeout, for Extend
	Err   *Error
}

// Info describes a job for people and lists.
type Info struct {
	ID          string
	Queue       string
	Type        string
	Group       string
	State       State
	Priority    int
	Attempts    int // executions that began: each is counted once it was extended, has failed or expired
	Deliveries  int // times that the job was claimed
	MaxAttempts int
	Worker      string    // holder of the newest claim
	CreatedAt   time.Time // all times are of the queue's clock
	RunAt       time.Time // for Delayed: when it may be claimed
	Until       time.Time // for Active: when the claim ends
	ExpiresAt   time.Time // end of the TTL; zero: never
	EndedAt     time.Time // for Completed, Cancelled and Dead
	Cause       string    // error text of the last failure
	Size        int       // of the payload, in bytes
	Result      []byte    // only if Completed
}

// Query selects jobs for a list, oldest first.
type Query struct {
	State   State  // empty: Waiting, Delayed, Active and Dead; jobs in other states are not listed
	Type    string // empty: all
	Cursor  string // Cursor of the previous page; empty: the first page
	Limit   int    // default 100, at most MaxPage
	Payload bool   // include payloads that are inline
}

// Page is one page of a list.
type Page struct {
	Jobs     []Info
	Payloads [][]byte // parallel to Jobs; only if Query.Payload
	Cursor   string   // of the next page; empty: this is the last page
}

// Act is an operator's action on jobs or on a queue.
type Act string

// The acts.
const (
	Cancel  Act = "cancel"  // end jobs; the claim of an active one becomes stale
	Redrive Act = "redrive" // make dead jobs waiting again, with their attempts reset; a job can be delivered 65,534 times in all
	RunNow  Act = "retry"   // make delayed jobs waiting now
	Purge   Act = "purge"   // remove jobs in one state; without a state all but active ones
	Pause   Act = "pause"   // stop handing out jobs
	Resume  Act = "resume"
)

// Command is one operator action on a queue.
type Command struct {
	Act   Act
	IDs   []string // for Cancel, Redrive and RunNow: these jobs; nil: all to which the act applies; an empty list is refused
	State State    // for Purge
	Type  string   // only jobs of this type; empty: all
}

// Stats are the counts of a queue, summed over the shards that were asked.
type Stats struct {
	Queue     string
	Shards    int
	Paused    bool
	Waiting   int64
	Delayed   int64
	Active    int64
	Dead      int64
	OldestAge time.Duration // of the oldest waiting job
	// Totals since the queue was created. Expired counts jobs whose TTL ended; Died counts the other ones that became dead.
	Enqueued, Completed, Failed, Expired, Cancelled, Died, Duplicates int64
	// Rates per second over the last minute, as this broker measured them.
	EnqueueRate, CompleteRate float64
	// Memory in bytes: of the index, of payloads, of the deduplication window.
	IndexBytes, PayloadBytes, DedupBytes int64
	DedupIDs                             int64
	// Writes is the number of segments that the brokers have written since they took the shards over.
	Writes int64
	// WriteBudget is how many segments with few records the shards may write per second, together; 0: no
	// limit.
	WriteBudget float64
	Broker      string // address of the node that answered
	Epoch       int64
}

// Add adds the counts of other shards of the same queue. Broker stays.
func (t *Stats) Add(s *Stats) {
	t.Shards += s.Shards
	t.Paused = t.Paused && s.Paused
	t.Waiting += s.Waiting
	t.Delayed += s.Delayed
	t.Active += s.Active
	t.Dead += s.Dead
	t.OldestAge = max(t.OldestAge, s.OldestAge)
	t.Enqueued += s.Enqueued
	t.Completed += s.Completed
	t.Failed += s.Failed
	t.Expired += s.Expired
	t.Cancelled += s.Cancelled
	t.Died += s.Died
	t.Duplicates += s.Duplicates
	t.EnqueueRate += s.EnqueueRate
	t.CompleteRate += s.CompleteRate
	t.IndexBytes += s.IndexBytes
	t.PayloadBytes += s.PayloadBytes
	t.DedupBytes += s.DedupBytes
	t.DedupIDs += s.DedupIDs
	t.Writes += s.Writes
	t.WriteBudget += s.WriteBudget
	t.Epoch = max(t.Epoch, s.Epoch)
}

// Producer submits jobs.
type Producer interface {
	// Enqueue makes all jobs durable and returns one receipt per job. After [UnknownOutcome]
	// some of them may be durable; the caller can repeat the call with the same IDs or keys.
	Enqueue(ctx context.Context, queue string, jobs []Job) ([]Receipt, error)
}

// Consumer works on jobs.
type Consumer interface {
	// Claim claims jobs, the highest priority first, then the oldest.
	Claim(ctx context.Context, queue string, req ClaimRequest) ([]Claimed, error)
	// Settle settles claims and returns one outcome per settlement, in the same order.
	// Complete, Fail and Release are durable when Settle returns.
	Settle(ctx context.Context, queue string, what []Settlement) ([]Outcome, error)
}

// Operator inspects and manages a queue.
type Operator interface {
	Get(ctx context.Context, queue, id string) (*Info, []byte, error)
	List(ctx context.Context, queue string, q Query) (*Page, error)
	Stats(ctx context.Context, queue string) (*Stats, error)
	// Do carries out a command and returns how many jobs it affected.
	Do(ctx context.Context, queue string, c Command) (int, error)
}

// Service is what callers see of a queue: the broker in this process, or a client of a broker
// elsewhere.
type Service interface {
	Producer
	Consumer
	Operator
}
