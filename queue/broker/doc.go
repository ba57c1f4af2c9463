// Package broker serves the queues of package queue from a bucket. A [Broker] is the agent of the
// built-in daemon emit:queue/<queue>: the cluster assigns it the queue's shards one by one, and it
// is the [queue.Service] of the shards that it was assigned.
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
// its group or ID, and writes payloads above [queue.InlinePayload] as objects of their own. It
// then puts one call into the inbox of each shard and waits. The shard's goroutine takes all calls that are
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
// are not in memory. A claim that cannot be delivered goes back to its shard, which releases
// it.
//
// First heartbeats and expiries are soft too. Later heartbeats, empty claims and refusals write
// nothing, and an idle broker writes nothing.
//
// # Undelivered claims
//
// If the caller of a claim is gone before the answer, the claim is released. A claim with a request
// ID is kept instead, so that a repeated call gets the same jobs. If the answer is lost later, the
// claim counts as an attempt when it ends, because the broker cannot tell it from one whose worker
// died.
//
// If the payload of a claimed job cannot be read, that claim is released. It counts as no
// attempt and no delivery, and the job waits 1 s, then twice as long each time, up to a minute. The
// other jobs of the call are handed out. A job whose payload does not exist any more is dead
// with that cause.
//
// # Payloads
//
// A payload of more than 128 bytes is in the segment in which it was submitted, and not in the state.
// Payloads that were submitted last are in memory too, up to 32 MiB a shard, so a job that is claimed soon
// after its submission needs no read. Otherwise the broker reads the whole segment and keeps it for the jobs
// behind it, up to 32 MiB of segments. A reader that finds its segment gone asks the shard where the payload
// is now.
//
// Segments to which jobs refer survive checkpoints. When a checkpoint has come into force, a goroutine of
// the shard reads older segments of which less than a quarter is needed, and, if there are 64 or more,
// those with less than 64 KiB. The shard then records their payloads again (cleaning.go).
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
// others with [queue.QueueNotOwner]. Then it closes the journal, so that the successor can start at
// once. If the successor would have much to replay, the run first writes a checkpoint, and serves
// meanwhile.
//
// # Resharding
//
// [Registry.Reshard] changes the number of shards. The list of queues names the stage. First the brokers of all
// former shards declare that they follow the change, and each unit gets a node. Then each former shard drains and
// writes a seal as the last record of its log; whoever has its unit exports the jobs (export.go). When all have
// done so, the list names the new shards. Each begins its log with an import of its part (importformer.go) and is
// served. When all have their jobs, the former shards are on the list of removed ones. The run of a unit goes on
// from the former shard to the new one (move.go). The broker that has shard 0 begins the stages.
//
// A later broker of a former shard replays the seal and does not serve it, whatever list it has read. An import
// that is not complete is void. A call that another node has split for the former number of shards is refused.
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
// A shard holds its jobs in memory: about 100 bytes each, plus payloads of up to 128 bytes. MaxJobs and MaxBytes of
// [queue.Settings] bound this; a call beyond the bounds is refused with [queue.QueueFull]. A payload
// above InlinePayload is an object of its own. It is written before the record that names it and deleted after the job's end.
// If the broker dies in between, the shard's next broker deletes it.
package broker
