// Package queue is a job queue that needs nothing but a bucket: its contract for callers
// ([Service]), and the broker that keeps it, a built-in daemon.
//
// # What is promised
//
//  1. An acknowledged write is durable. A job that was acknowledged is completed, dead or cancelled
//     one day; it is never lost, whatever happens to brokers.
//  2. A job is completed at most once, and the completion is acknowledged only to the claim that did
//     it; that claim may repeat it.
//  3. One holder per (job, epoch, attempt). A claim is over when it is settled, when it expires, or
//     when an operator ends the job; from then on it is refused with [StaleClaim].
//  4. Submitting an ID or key again within the dedup window (per queue; default 10 minutes or
//     1,000,000 jobs after the job's end, whichever is less; live jobs always) changes nothing.
//  5. Per shard, the highest priority is claimed first, then the oldest job. A retried job keeps its
//     place unless its policy sends it back.
//  6. A no (StaleClaim, JobNotFound) comes from a broker that owns the shard at that moment, or not
//     at all.
//
// Execution is at least once: with soft claims, a job claimed within the last second before a crash
// of the broker may be handed out again, and either holder may complete it first. With
// [DurableClaims], and after a clean handover, it is not. A job that is handed out begins at most
// max-attempts attempts, and one more for each such crash.
//
// # How
//
// A queue has shards; one shard is one unit of the daemon emit:queue/<queue>, served by one node at
// a time. Its state is a ledger (package ledger) folded from a journal (package journal), a fenced
// log on the bucket. Which queues there are stands in one object, the [Registry].
//
//	Enqueue ──▶ inbox ──▶ decide against the ledger ──▶ records ──▶ journal ──▶ durable
//	                        ▲      jobs are busy ─────────────────────────────────┤
//	                        └───────── apply to the ledger, then answer ◀─────────┘
//
// One goroutine per shard does this in rounds: what waits in the inbox is decided together and
// appended together. The ledger holds only what is acknowledged; a call that meets a busy job waits
// for its segment and is decided anew. An answer that writes nothing waits for what was decided
// before it. Claims, first heartbeats and expiries are soft: applied at once, written with the next
// segment or within a second. Heartbeats after the first, empty claims and refusals write nothing,
// and an idle broker writes nothing.
//
// # Attempts
//
// An attempt is counted at the first proof that it was begun (heartbeat, complete, fail), or when a
// claim ends without a word. A job is dead after max-attempts attempts or three times as many
// deliveries; it is kept, with the cause, until it is redriven or purged. The record that it is dead
// is durable before it leaves its place.
//
// A claim whose caller has gone before it is answered is handed back, unless it has a request ID: it is
// kept for the repetition of that call. A claim whose answer is lost later counts as an attempt when it
// ends, because the broker cannot tell it from one whose worker has died.
//
// A claim whose payload, an object of its own, cannot be read is handed back: it counts as no attempt
// and no delivery, and the job waits a second, twice as long each time, up to a minute. The other jobs
// of the claim are handed out. A job whose payload object is gone is dead with that cause.
//
// # Takeover
//
// A new owner replays the journal, which deposes the former one: its next write is fenced, it
// acknowledges nothing from then on, and its run ends. Every known claim gets one fresh visibility
// timeout. A claim whose record was lost with the former owner is honoured when its holder speaks
// up, unless the job was handed out again: its token proves it (HMAC by a key kept with the
// journal). A run that drains flushes, answers what is under way, refuses the rest with
// [QueueNotOwner] and closes the journal, so that the successor starts at once. If there is much to
// replay, it writes a checkpoint before, and serves meanwhile.
//
// A run ends when its queue was removed. The brokers of other queues delete the objects.
//
// # Time
//
// Delays, times to live, claims and the dedup window go by queue time: the estimate of the cluster
// store's clock that the broker is given, made monotone by the journal. A broker that finds it ahead
// of its estimate lets it go on a sixteenth slower than its own clock, until they meet. Durability
// needs no clock.
//
// # Memory
//
// A shard holds its jobs in memory, about 100 bytes each besides payloads; MaxJobs and MaxBytes
// bound them, and what is beyond is refused with [QueueFull]. Payloads above InlinePayload are
// objects of their own, written before the record that names them and deleted after the job's end.
// One whose broker dies in between is deleted by the next broker.
//
// # Not promised
//
// Order across shards. An ID belongs to its group: the same ID under another group may be another
// job. After an error other than a refusal of the caller's mistake, some of a call's jobs may have
// been submitted; repeating the call with the same IDs is right.
package queue
