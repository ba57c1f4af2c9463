package queue

import (
	"context"
	"time"
)

// Limits of what a caller may send. What is beyond is refused as a whole with [BadRequest],
// [PayloadTooLarge] or [TooManyJobs]; nothing of it is kept.
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
	// ID names the job within its queue: client-chosen, or made by the broker. Submitting an ID
	// again within the dedup window changes nothing and returns the first receipt's facts, so a
	// client that retries with the same ID or Key never duplicates.
	ID string
	// Key is an idempotency key for callers that have no ID: the ID is then made of it.
	Key string
	// Type chooses the handler; workers claim by type. May be empty.
	Type string
	// Group keeps jobs together on one shard, where order is kept. May be empty.
	Group string
	// Payload is opaque here; the JSON API carries JSON.
	Payload []byte
	// Priority is -128 to 127; the higher one is claimed first. Default 0.
	Priority int
	// Delay makes the job claimable so much later; RunAt at that time of the queue's clock. At
	// most one of them is given. A time in the past is now.
	Delay time.Duration
	RunAt time.Time
	// TTL is how long the job may wait before it is given up as expired; 0 is for ever.
	TTL time.Duration
	// Retry says what follows a failure; zero fields take the queue's policy.
	Retry Retry
}

// Retry is what follows a failed attempt.
type Retry struct {
	MaxAttempts int           // before the job is dead; default 3
	Backoff     time.Duration // after the first failure; default 1 s
	MaxBackoff  time.Duration // default 5 min
	Factor      float64       // growth of the back-off; default 2
	// Jitter spreads a back-off by this fraction of it to either side; default 0.2, negative none.
	Jitter float64
	// Back puts a retried job behind what was submitted meanwhile. Default: it keeps its place.
	Back bool
}

// Receipt says that a job is durable.
type Receipt struct {
	ID        string
	Duplicate bool  // it was there before, or had been within the dedup window
	State     State // as of now
}

// State is where a job stands.
type State string

// The states of a job.
const (
	Waiting   State = "waiting"   // may be claimed
	Delayed   State = "delayed"   // may be claimed later
	Active    State = "active"    // claimed
	Completed State = "completed" // done; known within the dedup window
	Dead      State = "dead"      // given up, kept with its cause until redriven or purged
	Cancelled State = "cancelled" // taken back; known within the dedup window
)

// ClaimRequest asks for jobs.
type ClaimRequest struct {
	Worker string   // names the claimer to people; and fences it where Tokenless
	Types  []string // of jobs; empty: any
	Max    int      // jobs; default 1. Fewer come if their payloads are more than MaxPayload together
	// Wait is how long an empty claim waits for jobs (long poll), at most MaxWait. An empty claim
	// costs no storage request.
	Wait time.Duration
	// Visibility is how long the claim lasts without an extension; default the queue's.
	Visibility time.Duration
	// RequestID makes a repetition of this call return the same claims, within Visibility.
	RequestID string
	// Tokenless claims are settled by (job, worker) alone, for clients that know no tokens. They
	// are durable before they are answered, whatever the queue's mode.
	Tokenless bool
}

// Claimed is a job in a worker's hands.
type Claimed struct {
	Job     Info
	Payload []byte
	Token   string    // proves the claim; opaque
	Until   time.Time // of the queue's clock; extend before
	For     time.Duration
}

// Verb is what a worker does with a claim.
type Verb string

// The verbs.
const (
	Extend   Verb = "extend"   // keep it for another visibility timeout (heartbeat)
	Complete Verb = "complete" // done
	Fail     Verb = "fail"     // failed: retried by policy, or dead
	Release  Verb = "release"  // give it back at once; not an attempt
)

// Settlement is what a worker says about one claim.
type Settlement struct {
	Verb   Verb
	ID     string
	Token  string
	Worker string // of a tokenless claim
	// Visibility of Extend; default the claim's.
	Visibility time.Duration
	// Result of Complete, kept within the dedup window. May be nil.
	Result []byte
	// Cause of Fail.
	Cause string
	// Retry of Fail: nil by policy; a pointer says after how long.
	RetryAfter *time.Duration
	// Dead of Fail: no further attempt.
	Dead bool
}

// Outcome is the answer to one settlement. Err is nil, [StaleClaim], [JobNotFound] or a kind of
// bad request; the others of the call are not affected.
type Outcome struct {
	ID    string
	State State         // the job's afterwards
	For   time.Duration // of Extend: the claim's new length
	Err   *Error
}

// Info is a job as people and lists see it.
type Info struct {
	ID          string
	Queue       string
	Type        string
	Group       string
	State       State
	Priority    int
	Attempts    int // begun
	Deliveries  int // handed out
	MaxAttempts int
	Worker      string    // of the newest claim
	CreatedAt   time.Time // times are of the queue's clock
	RunAt       time.Time // Delayed: when it may be claimed
	Until       time.Time // Active: when the claim ends
	ExpiresAt   time.Time // of the TTL; zero: never
	EndedAt     time.Time // Completed, Cancelled, Dead
	Cause       string    // of the last failure
	Size        int       // bytes of the payload
	Result      []byte    // Completed
}

// Query chooses jobs of a list, oldest first.
type Query struct {
	State   State  // empty: all that are kept (not Completed, Cancelled)
	Type    string // empty: all
	Cursor  string // of the previous page
	Limit   int    // default 100, at most MaxPage
	Payload bool   // with payloads, as far as they are inline
}

// Page is a part of a list.
type Page struct {
	Jobs     []Info
	Payloads [][]byte // parallel to Jobs if asked for
	Cursor   string   // of the next page; empty: the end
}

// Act is what an operator does.
type Act string

// The acts.
const (
	Cancel  Act = "cancel"  // take jobs back; an active one ends, its token is stale
	Redrive Act = "redrive" // dead jobs wait again, with fresh attempts
	RunNow  Act = "retry"   // delayed jobs wait now
	Purge   Act = "purge"   // remove jobs of a state (all: empty); active ones only if named so
	Pause   Act = "pause"   // claims are empty
	Resume  Act = "resume"
)

// Command is an operator's act on a queue.
type Command struct {
	Act   Act
	IDs   []string // Cancel, Redrive, RunNow: these; empty: all that qualify
	State State    // Purge
	Type  string   // only jobs of this type; empty: all
}

// Stats of a queue, over all shards asked.
type Stats struct {
	Queue     string
	Shards    int
	Paused    bool
	Waiting   int64
	Delayed   int64
	Active    int64
	Dead      int64
	OldestAge time.Duration // of the oldest waiting job
	// Totals since the queue exists.
	Enqueued, Completed, Failed, Expired, Cancelled, Died, Duplicates int64
	// Rates per second over the last minute of this broker.
	EnqueueRate, CompleteRate float64
	// Memory in bytes: of the index, of payloads, of the dedup window.
	IndexBytes, PayloadBytes, DedupBytes int64
	DedupIDs                             int64
	Broker                               string // address of the node that serves it
	Epoch                                int64
}

// Producer submits jobs.
type Producer interface {
	// Enqueue makes all jobs durable, or none is promised: after [UnknownOutcome] some may be, and
	// the call can be repeated with the same IDs or keys.
	Enqueue(ctx context.Context, queue string, jobs []Job) ([]Receipt, error)
}

// Consumer works on jobs.
type Consumer interface {
	// Claim hands out jobs, the highest priority first, then the oldest.
	Claim(ctx context.Context, queue string, req ClaimRequest) ([]Claimed, error)
	// Settle says what became of claims; outcomes are in the order of the settlements. Complete,
	// Fail and Release are durable when answered.
	Settle(ctx context.Context, queue string, what []Settlement) ([]Outcome, error)
}

// Operator looks after a queue.
type Operator interface {
	Get(ctx context.Context, queue, id string) (*Info, []byte, error)
	List(ctx context.Context, queue string, q Query) (*Page, error)
	Stats(ctx context.Context, queue string) (*Stats, error)
	// Do carries an act out and returns how many jobs it met.
	Do(ctx context.Context, queue string, c Command) (int, error)
}

// Service is a queue broker as its callers see it: the broker in this process, or a client of one
// elsewhere.
type Service interface {
	Producer
	Consumer
	Operator
}
