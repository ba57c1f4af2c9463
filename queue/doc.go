// Package queue is a job queue that needs no storage but a bucket. It defines the contract for
// callers ([Service]) and the broker that serves it ([Broker]), which is the agent of a built-in
// daemon.
//
// # Terms
//
// A queue has one or more shards. A shard is an independent part of a queue and one unit of the
// daemon emit:queue/<queue>; the cluster assigns it to one node at a time. The broker on that node
// serves it. A job is submitted, claimed by a worker, and settled: completed, failed, released or
// extended. A claim is a worker's temporary, exclusive right to a job; it ends after the visibility
// timeout unless the worker extends it. Each claim of a job counts as a delivery; each execution
// that began counts as an attempt. A dead job (dead letter) is tried no more and is kept for
// inspection. The terms are those of docs/glossary.md.
//
// # What is promised
//
//  1. An acknowledged write is durable. A job that was acknowledged is never lost, whatever
//     happens to brokers: it ends completed, dead or cancelled.
//  2. A job is completed at most once. Only the claim that completed it gets the acknowledgement,
//     and that claim may repeat the call.
//  3. One worker holds a job at a time, per (job, epoch, attempt). A claim ends when it is
//     settled, when it expires, or when an operator ends the job. From then on, calls that use it
//     are refused with [StaleClaim].
//  4. Submitting an ID or key again within the deduplication window changes nothing. The window is
//     set per queue. It covers live jobs always, and ended jobs for 10 minutes or up to 1,000,000
//     IDs by default, whichever is less.
//  5. A shard hands out the job with the highest priority first, and among equals the oldest. A
//     retried job keeps its place unless its policy puts it at the end.
//  6. A negative answer (StaleClaim, JobNotFound) comes only from a broker that owns the shard at
//     that moment.
//
// Jobs are executed at least once. With soft claims, a job that was claimed within the last second
// before its broker crashed may be claimed again, and either worker may complete it first. With
// [DurableClaims], or after a clean hand-over, this does not happen. A claimed job begins at most
// max-attempts attempts, and one more for each such crash.
//
// # State
//
// A shard's state is a ledger (package ledger): a pure state machine that is built from records.
// The records are stored in a journal (package journal), the shard's write-ahead log in the bucket,
// which fences earlier owners. One object, the [Registry], lists all queues.
//
// One goroutine per shard owns the ledger and works in rounds. The ledger holds only what is
// durable, with one exception: soft records.
//
//	Enqueue ──▶ inbox ──▶ decide against the ledger ──▶ records ──▶ journal ──▶ durable
//	                        ▲      jobs are held ─────────────────────────────────┤
//	                        └───────── apply to the ledger, then answer ◀─────────┘
//
// # The way of an enqueue
//
// [Broker.Enqueue] runs on the caller's goroutine: it validates the jobs, picks each job's shard by
// its group or ID, and writes payloads above [InlinePayload] as objects of their own. It then puts
// one call into the inbox of each shard and waits. The shard's goroutine takes all calls that are
// in the inbox and decides each against the ledger. An ID that is known makes a receipt with
// Duplicate; a new one makes a record. At the end of the round, all records are appended to the
// journal as one batch (group commit). The journal writes the batch as a segment and reports when
// it is durable. The shard then applies the records to the ledger and answers the calls. A call
// that meets a held job, which is a job with a record that is not durable yet, waits for that batch
// and is decided anew. An answer that wrote nothing, such as a duplicate's receipt, waits for every
// batch that was decided before it, because it may rest on one of them.
//
// # The way of a claim
//
// [Broker.Claim] asks the queue's shards on this node one after the other, each time beginning with
// another one. If none has a job and the caller waits (long poll), the call is put into the inboxes
// of all of them. The first shard that has jobs takes it. The shard picks the best jobs of the
// ledger. A soft claim is applied to the ledger and answered at once; its record is written with
// the next batch, within a second. A durable claim, and every claim without tokens, is answered
// when its record is durable. The caller's goroutine then makes the tokens and reads payloads that
// are objects of their own. A claim that cannot be delivered goes back to its shard, which releases
// it.
//
// First heartbeats and expiries are soft too. Later heartbeats, empty claims and refusals write
// nothing, and an idle broker writes nothing.
//
// # Attempts
//
// An attempt is counted at the first proof that it began (heartbeat, complete, fail), or when a
// claim expires. A job is dead after max-attempts attempts or three times as many deliveries. It is
// kept, with the cause, until it is redriven or purged. The record of a job's death is durable
// before the job leaves its place.
//
// If the caller of a claim is gone before the answer, the claim is released. A claim with a request
// ID is kept instead, so that a repeated call gets the same jobs. If the answer is lost later, the
// claim counts as an attempt when it ends, because the broker cannot tell it from one whose worker
// died.
//
// If the payload object of a claimed job cannot be read, that claim is released. It counts as no
// attempt and no delivery, and the job waits 1 s, then twice as long each time, up to a minute. The
// other jobs of the call are handed out. A job whose payload object does not exist any more is dead
// with that cause.
//
// # Takeover
//
// A new owner replays the journal. This fences the former owner: its next write fails, it
// acknowledges nothing from then on, and its run ends. Every known claim gets one fresh visibility
// timeout. A claim whose record was lost with the former owner is accepted when its worker settles
// it, unless the job was claimed again meanwhile. The claim's token proves it (an HMAC with a key
// that is stored with the journal).
//
// When a run drains, it writes what was decided, answers the calls in flight, and refuses the
// others with [QueueNotOwner]. Then it closes the journal, so that the successor can start at once.
// If the successor would have much to replay, the run first writes a checkpoint, and serves
// meanwhile.
//
// A run also ends when its queue was removed. The brokers of other queues then delete its objects.
//
// # Time
//
// Delays, times to live, claims and the deduplication window go by queue time. Queue time is the
// broker's estimate of the cluster store's clock, and the journal keeps it from going back. A
// broker that finds queue time ahead of its estimate lets it run a sixteenth slower than its own
// clock until they meet. Durability needs no clock.
//
// # Memory
//
// A shard holds its jobs in memory: about 100 bytes each, plus payloads. MaxJobs and MaxBytes bound
// this; a call beyond the bounds is refused with [QueueFull]. A payload above InlinePayload is an
// object of its own. It is written before the record that names it and deleted after the job's end.
// If the broker dies in between, the shard's next broker deletes it.
//
// # Not promised
//
// There is no order across shards. An ID is unique within its group only: the same ID in another
// group may be another job. After an error that does not refuse the caller's own mistake, some jobs
// of the call may have been submitted. The caller can repeat the call with the same IDs.
package queue
