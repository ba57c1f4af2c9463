// Package journal is a write-ahead log on a bucket, with fenced owners.
//
// One process at a time owns a journal. It appends records. The journal gathers them into segments
// and writes each segment as one object with one conditional request. Only then are its records
// acknowledged. A process that takes the journal over finds every acknowledged record. From then on
// the former owner can acknowledge nothing: not after a pause of any length, and not with requests
// that a proxy delayed. This needs no clock. The caller decides what the records mean: it builds
// its state from them ([StateBuilder]) and returns that state as a checkpoint.
//
// # Objects
//
// All objects are below the caller's prefix. Package journal/format describes their content.
//
//	HEAD                        who owns the journal and where its newest checkpoint is; replaced
//	                            only if unchanged (compare and swap)
//	heads/<number, 20 digits>   copies of HEAD; only ever created
//	log/<slot, 20 digits>       one segment; only ever created
//	ckpt/<slot>-<id>/<part>     the state after all slots below <slot>, and runs, which belong to
//	                            later checkpoints, too
//
// # Terms
//
// A *slot* is the number of a segment. Slots are filled in order, from 1. An *epoch* is the number
// of an ownership: every takeover begins the next one, also one by the same process. The *window*
// is how many slots an owner may have outstanding, counted from the lowest slot that is not
// acknowledged. A *fence* is a segment without records that ends all earlier epochs. It is in the
// first slot that was empty. The slots behind it that an earlier owner may still fill are void,
// whatever is written there later. The fence's *jump* is the number of these slots, itself
// included; skipped slots cost nothing.
//
// # Takeover
//
// A takeover makes this process the owner and rebuilds the state:
//
//	R1  Replace HEAD by one with epoch+1. Refuse if HEAD belongs to another store
//	    ([ErrOtherStore]) or to a generation that is not lower ([GenerationError]); the same
//	    owner may use the same generation again. The window in HEAD becomes the larger of
//	    what it was and eight times our own; after a clean close, our own.
//	R2  Read the checkpoint and the slots after it, up to the first empty slot F. At a fence in
//	    slot s, continue at s + its jump. A segment of our epoch or a higher one means that
//	    another process has taken over meanwhile.
//	R3  Create a fence in F. Its jump is the window in HEAD. If the slot is taken, read it as in
//	    R2 and continue from there. The earlier read of F proves nothing: only a successful
//	    creation proves that the slot was empty.
//	R4  Read HEAD again. If it is not what R1 wrote, begin again.
//	R5  The first slot for our records is F + jump.
//
// Why no earlier owner can acknowledge after R3: F is the lowest unacknowledged slot of each of
// them, F is taken, and an owner acknowledges in the order of slots. Why a slot of theirs is never
// read as ours: they can only write within the window, and the fence makes the window void. Why the
// window in HEAD may only grow until a fence exists: a process that is interrupted between R1 and
// R3 has not voided the writes of the owners before it. Why R4: a slow reader may read slots that a
// later owner has deleted as garbage, and would take the first of them for F.
//
// Example: owner A of epoch 1 has acknowledged slot 10 and has requests for slots 11 and 12 in
// flight; its window is 8. It is paused. B writes HEAD with epoch 2 and window 64, reads slots 1 to
// 10, finds slot 11 empty, and creates a fence there with jump 64. A's request for slot 11 now
// fails: A is fenced. A's request for slot 12 may still succeed, but slot 12 is void: every reader
// goes from the fence in 11 to slot 75, B's first. If A's request for slot 11 is faster than B's
// fence, B replays slot 11 and tries slot 12. A may then acknowledge slot 11, and B has it.
//
// An owner that keeps writing may fill F again and again before the fence. A *barrier* stops it: a
// second fence, in the last slot that the window in HEAD covers. The slots before it are read as
// before. The first empty slot or the barrier, whichever comes first, becomes the fence.
//
// An owner that closes writes so into HEAD, after all its writes were acknowledged. Nothing can be
// outstanding then, so a takeover needs neither R3 nor R4.
//
// A takeover costs these store latencies, one after the other: reading HEAD; replacing it, while
// checkpoint and slots are already read; and, unless HEAD says closed, the fence and HEAD once
// more. Reading more than [Config.Readahead] slots costs one more for each such number; after a
// crash it begins with 32 slots. The former owner's Close costs one for the writes in flight and
// one for HEAD; it also waits for the copy of the HEAD before, if that is being written.
//
// An object that HEAD or a checkpoint names and that does not exist is [ErrMissing]; it never
// counts as empty. If HEAD has changed meanwhile, the takeover begins again, because another owner
// may have deleted the object.
//
// In the code, [Open] drives an owner.Machine (open.go) and sends its requests. The machine works in
// these files of package owner:
//
//   - takeover.go: replaceHead sends R1; rereadHead reads HEAD again for R4.
//   - replay.go: readAhead reads parts and slots, and advance emits them in order (R2). createFence
//     writes the fence (R3).
//   - logwalk.go and tail.go decide whether an empty slot is the end of the log or a lost segment.
//   - commit.go: beginOwnership begins with the first slot (R5).
//
// # Committing
//
// A record is written at once if no other is being written, unless fewer callers wait for it than
// waited for the segment before ([Log.AppendFor]). Under load, segments are written
// [Config.MinGap] apart, at 4 MiB, and never more than the window allows; [Config.WritesPerSecond]
// is a budget for stores that bill each write. A write that fails, or has an unknown outcome, is
// repeated with the same bytes, the lowest slot first. On a store that refuses writes, or takes
// long for them, fewer are under way than the window allows, down to one with pauses of up to a
// second; owner/congestion.go has the rules. If the slot is then taken, a random number in its header (the put ID) tells whether
// the segment is ours. If it is not, the owner is *fenced*: the log ends with [ErrFenced], and
// records that were not acknowledged have an unknown outcome. Slots are acknowledged strictly in
// order. An idle journal reads and writes nothing, except one mark; see Damage.
//
// # Time
//
// Every record has a time of the caller's clock. It never goes back, across all owners. The journal
// decides nothing by it.
//
// # Checkpoints and garbage
//
// A checkpoint is written part by part, beside the log. It is in force when HEAD names it. Some
// state only grows at its end and shrinks at its beginning. It is not written again with each
// checkpoint but in *runs*. A run is a part of the checkpoint that wrote it, and HEAD lists the
// runs of each checkpoint by name. Every run is stored before the first HEAD that names it. A run
// that HEAD names no more, or that belongs to an aborted checkpoint, is never named again.
//
// When a checkpoint is in force, these objects are deleted: slots that neither it nor the previous
// checkpoint needs, and older checkpoints, except runs that one of the two names. A former owner
// may still delete what HEAD allowed when its own last checkpoint came into force. That harms no
// one, because no later owner reads those objects. Fences are never deleted. The reason is that the
// bucket only guarantees "create if absent"; if the name became absent again, a delayed request
// could create it. (In simulation, deleting fences lost a third of the acknowledged records.) Names
// of slots below a checkpoint may be created again by such a request; nobody reads them.
//
// # Damage
//
// People and programs that do not know about a journal may delete its objects, exchange them, or
// restore older ones. A takeover detects this before it returns any state, and refuses:
//
//   - Each object has a checksum, and contains its slot, or its checkpoint and part number.
//   - Each segment contains the put ID of the one before it; the first one of a journal contains a
//     number derived from the journal's secret. So a segment of another journal, or one in the
//     wrong slot, does not fit. HEAD contains the journal's name.
//   - Each segment, and HEAD, say up to which slot everything was acknowledged when they were
//     written. If such a segment is behind an empty slot, the empty slot is a lost segment and not
//     the end of the log. The same follows from any segment that is further ahead than an owner may
//     write. A takeover lists the log to check this.
//   - After the last segment, an idle journal writes one *mark*: a segment without records, which
//     says that the last segment was acknowledged. It is written a second after the last segment,
//     at most once a minute.
//   - HEAD has a serial number that counts its changes. Its owner stores a copy of each HEAD in
//     heads/<number>, except the last one of a clean close. A copy with a higher number than HEAD's
//     means that somebody restored an older HEAD. A takeover does not read the copies, because an
//     older HEAD leads to the same state as long as its checkpoint exists: the log is read to its
//     end. It refuses an older HEAD that says closed at a slot where the log continues.
//
// A repair ([BeginRepair], [RestoreHead], [Config.Salvage]) takes over what is left. HEAD names the
// repair until it has ended; meanwhile every other process is refused with [ErrRepairing].
//
// Damage that leaves no trace is not detected. One case is the loss of the newest segment, in the
// second before anything is written behind it (a minute if segments come one at a time). The other
// is the loss of everything since some moment, as after the restore of a backup.
//
// # What is not promised
//
// A record that was never acknowledged may still be found by a later owner: it is durable if it was
// written before the fence. Two processes may believe at the same time that they are the owner;
// only one of them can acknowledge. The bucket must keep the contract of package blob; a bucket
// that ignores conditions loses data.
//
// The protocol descends from the Delta Lake log (commit by create-if-absent), from SlateDB's
// write-ahead log (random ID in the segment, fencing by a write into the log) and from Lampson's
// use of epochs. The fence that is a slot of the log and is never deleted is this package's own.
package journal

import (
	"iter"
	"time"

	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/storage/blob"
)

// Codec compresses and decompresses the objects of journals.
type Codec = format.Codec

// NewCodec returns a codec. Any number of journals may share it.
func NewCodec() *Codec { return format.NewCodec() }

// Config configures a journal's owner. Bucket, Prefix, StoreID, Generation and Owner are required;
// the zero value of every other field is a good default.
type Config struct {
	Bucket blob.Bucket
	// Prefix of all keys, without a slash at the end. It must never be used for another
	// journal.
	Prefix string

	// StoreID is the identity of the cluster store whose generations order the owners. A
	// journal belongs to one store, so that two clusters on one bucket do not take it from each
	// other.
	StoreID string
	// Generation of the run that opens the journal. Open refuses if the journal was owned by a
	// higher one.
	Generation int64
	// Owner is the incarnation of the process. The same owner may open the journal again with
	// the same generation; other owners need a higher one.
	Owner string
	// Adopt takes the journal over although it belongs to another store, whatever its
	// generation.
	Adopt bool
	// Name identifies the content, such as the queue and the shard. Open refuses a journal
	// whose HEAD has another name. Empty: not checked.
	Name string
	// Salvage takes over what is left of a damaged journal: missing and damaged segments are
	// skipped, and [Log.Lost] lists them. It is for repairs.
	Salvage bool

	// Window is how many slots may be outstanding; default 32, at most 8,192. A larger one uses
	// a slow store better under load; each outstanding slot holds a segment in memory.
	Window int
	// MinGap is the least time between two segments. A longer one adds latency and saves requests:
	// there is at most one write per MinGap. By default, a record is written at once when none is
	// being written, or at most 2 ms later if it waits for callers: see Log.AppendFor. Otherwise, the default keeps the window full: the latency of a write divided by
	// Window, but at least 2 ms and at most 5 ms.
	MinGap time.Duration
	// WritesPerSecond limits the average number of writes with few records, for a store that bills
	// each one; 0: no limit. A write with 27 records or more costs nothing of it, so throughput is not
	// limited. After a second without writes, this many are made at once. With a limit, a record
	// waits at most 1/WritesPerSecond for its write.
	WritesPerSecond float64
	// MaxPending is the limit for the bytes of records that are not acknowledged; default 64
	// MiB. Beyond it, Append returns ErrFull.
	MaxPending int
	// PartSize is the approximate size in bytes of one object of a checkpoint; default 8 MiB.
	PartSize int
	// Readahead is how many slots a takeover reads concurrently; default 256. Fewer are read if
	// they are large, so that at most about 64 MiB wait in memory, and while reads fail.
	Readahead int
	// CallTimeout is the time limit of a single request; default 15 s. Requests are repeated
	// until the context ends. Open gives up earlier: when nothing was read for OpenTimeout;
	// default 1 min.
	CallTimeout, OpenTimeout time.Duration
	// MarkAfter is how long a journal is idle before it writes a mark; default 1 s. MarkEvery
	// is the least time between two marks; default 1 min. See Damage above.
	MarkAfter, MarkEvery time.Duration

	// Codec compresses the objects. The journals of a process should share one, because its
	// tables are large. Default: a new one for this journal.
	Codec *Codec

	Hooks Hooks
}

// Hooks are called when something happens. Nil ones are skipped. They are called on goroutines of
// the log, one at a time; a slow one delays the others, and Close.
type Hooks struct {
	// OnRetry is called for every request that failed and will be repeated.
	OnRetry func(op string, attempt int, err error)
	// OnCheckpoint is called for every checkpoint that came into force: HEAD names it now.
	OnCheckpoint func(upTo uint64, bytes int64)
	// OnCollected is called at the end of a garbage collection, with the number of deleted
	// objects and the error, if there was one.
	OnCollected func(deleted int, err error)
}

// StateBuilder is the state that is built from the records. Open calls its methods, on its own goroutine
// and in this order: Reset, Restore for each run and then for each chunk of the checkpoint, Replay
// for the records after it. When the takeover begins again, Reset is called again, and everything
// before it is void. The slices are valid only during the call. An error ends Open.
type StateBuilder interface {
	Reset()
	// Restore gets the runs of the newest checkpoint, in the order in which they were written,
	// and then its chunks.
	Restore(chunk []byte) error
	// Replay gets the records of one call of Append, in order; at is their time.
	Replay(slot uint64, at time.Time, records iter.Seq[[]byte]) error
}

// Stats are the counts of a log.
type Stats struct {
	Epoch   int64
	Head    uint64 // the highest slot with a record of this log, durable or not
	Durable uint64 // the highest acknowledged slot

	PendingBytes int // bytes of records that are not acknowledged
	Outstanding  int // slots that are being written

	// Slots and bytes since the newest checkpoint: a replay reads this much. See CheckpointDue.
	Slots int
	Bytes int64

	// Segments and records since Open, and the stored bytes of the segments.
	Segments, Records, SegmentBytes int64
	// Repeated counts requests that were sent again. Recognised counts slots that were found to
	// be our own after an unknown outcome.
	Repeated, Recognised int64
}
