// Package journal is a durable, fenced log of records on a bucket.
//
// One process at a time owns a journal. It appends records, which are gathered into segments; a
// segment becomes durable by one conditional write of one object, and only then are its records
// acknowledged. Whoever takes the journal over finds every acknowledged record, and from then on
// the former owner cannot acknowledge anything: not after a pause of any length, not with requests
// that a proxy held back, and without any clock. What the records mean is the caller's affair; the
// caller folds them into a state ([Fold]) and hands that state back as a checkpoint.
//
// # Objects
//
// Everything lies below the caller's prefix. Package journal/format says what is in the objects.
//
//	HEAD                        who owns the journal and where its newest checkpoint is; only ever
//	                            replaced if unchanged
//	heads/<number, 20 digits>   copies of HEAD; only ever created
//	log/<slot, 20 digits>       one segment; only ever created
//	ckpt/<slot>-<id>/<part>     the state that covers all slots below <slot>, and runs, which are part
//	                            of later states, too
//
// # Words
//
// A *slot* is the number of a segment; slots are filled in order, from 1. An *epoch* is one
// ownership: every takeover, also of the same process, begins the next one. The *window* is how
// many slots an owner may have outstanding, counted from the lowest one that is not acknowledged.
// A *fence* is a segment without records that ends all earlier epochs: it stands in the first slot
// that was empty, and the slots behind it, as many as any earlier owner may still fill, are void
// whatever may land there. Their number, the fence's *jump*, costs nothing.
//
// # Taking over
//
//	R1  replace HEAD by one with epoch+1. Refused if HEAD belongs to another store
//	    ([ErrForeign]) or to a generation that is not lower ([GenerationError]; the same one
//	    may come again from the same owner). HEAD's window becomes the larger of what it was and
//	    eight times our own.
//	R2  read the checkpoint and the slots that follow, until the first empty slot F. A fence at s
//	    means: go on at s + its jump. A segment of our epoch or a higher one means that somebody
//	    has taken over meanwhile.
//	R3  create a fence in F; its jump is HEAD's window. If the slot is taken, read it as in R2
//	    and go on from there. What was read before does not count: only a creation tells that a
//	    slot is empty.
//	R4  read HEAD again: it must still be what R1 wrote, else begin again.
//	R5  the first slot for records is F + jump.
//
// Why nobody else can acknowledge then: the lowest unacknowledged slot of every earlier owner is F,
// F is taken, and acknowledgements are given in order. Why no slot of theirs is taken for ours: they
// lie in the window, and the window is void. Why the window in HEAD must only grow until a fence
// stands: who is interrupted between R1 and R3 has not ended the pipeline before. Why R4: who reads
// slowly may meet slots that a later owner has collected, and take the first of them for F.
//
// If an owner is still writing, and so fast that F is taken again and again, a *barrier* stops it: a
// fence in the last slot that the window in HEAD covers. The slots before it are read as ever; what
// is met first, an empty slot or the barrier, becomes the fence.
//
// An owner that closes says so in HEAD, after everything it wrote was acknowledged. Nothing can be
// outstanding then, so R3 and R4 fall away. A takeover costs, in store latencies one after the
// other: HEAD, its replacement (during which checkpoint and slots are already read) and, unless
// closed cleanly, the fence and HEAD once more; reading more than [Config.Readahead] slots costs
// another one each time (after a crash it begins with 32). The former owner's Close costs one for
// what is in flight and one for HEAD.
//
// An object that HEAD or a checkpoint refers to and that is not there is [ErrMissing], never
// "empty"; the attempt begins again if HEAD has moved, for then another owner may have cleaned up.
//
// # Committing
//
// The first record after a pause is written at once. Under load, segments are cut [Config.MinGap]
// apart, at 4 MiB, and never more than the window allows. An attempt whose outcome is unknown is
// repeated with the same bytes; if the slot is then taken, its header tells by a random number
// whether it is ours. If it is not, the owner is *fenced*: the log ends with [ErrFenced], and what
// was not acknowledged has an unknown outcome. Acknowledgements are given strictly in the order of
// slots. An idle journal writes nothing and reads nothing,
// but for one mark, see Damage.
//
// # Time
//
// Every record has a time of the caller's clock that never goes back, over all owners. The journal
// decides nothing by it.
//
// # Checkpoints and garbage
//
// A checkpoint is written part by part, beside the log, and counts when HEAD names it. What of a state
// is only ever added to at its end and dropped at its beginning is not written again each time: it is
// written in *runs*, which are parts of the checkpoint that made them, and HEAD lists the runs of each
// checkpoint by name. Every run is stored before the first HEAD that names it; a run that HEAD does not
// name any more, or that belongs to a checkpoint that was given up, is never named again.
//
// Then slots are deleted that neither the checkpoint nor the previous one needs, and older checkpoints,
// except the runs that one of the two names. So a former owner that still collects, as HEAD was when
// its own last checkpoint came to count, deletes nothing that a later owner reads. Fences are
// never deleted: a name that is created only if absent must not become absent again while a
// request for it may be under way. (Deleting them lost a third of the acknowledged records in
// simulation.) Names below a checkpoint may re-appear; nobody reads them.
//
// # Damage
//
// Objects of a bucket may be deleted, exchanged or put back in an older form by people and programs that
// know nothing of a journal. A takeover notices that before it gives out anything, and refuses:
//
//   - Each object has a checksum, and says which slot or which part of which checkpoint it is.
//   - Each segment names the one before it by that one's random number, the first one of a journal by a
//     number made of its secret. So a segment of another journal, or one that was exchanged with another,
//     does not fit. HEAD says of what it is the journal.
//   - Each segment says up to which slot everything was acknowledged when it was written, and so does
//     HEAD. So an empty slot behind which such a segment stands, or any segment as far away as nobody may
//     be ahead, is a missing one and not the end of the log. A takeover lists the log to look.
//   - An idle journal says once that its last segment was acknowledged, by a *mark*: a segment without
//     records, a second after the last one, at most once a minute.
//   - HEAD counts its changes, and its owner keeps a copy of each but the last (of a clean close) in
//     heads/<number>; a copy with a higher number than HEAD's says that HEAD is an older one. A takeover
//     does not look at them: an older HEAD leads to the same state, as long as the checkpoint it names is
//     there, since the log goes on to its end; one that says that the log was closed where it goes on is
//     refused.
//
// A repair ([BeginRepair], [RestoreHead], [Config.Salvage]) takes over what is left. HEAD names it until it
// has ended: everybody else is refused with [ErrRepairing].
//
// What cannot be noticed is what leaves no trace: that the newest segment is gone, within the second (a
// minute, if segments come one at a time) in which nothing was written behind it; that everything since
// some moment is gone, which is what the restore of a backup does.
//
// # What is not promised
//
// A record that was never acknowledged may still be found by a later owner: it is durable if it
// landed before the fence. Two owners may believe at one time that they are the owner; only
// one of them can acknowledge. The bucket must keep the contract of package blob; a bucket that
// ignores conditions loses data.
//
// The protocol descends from the Delta Lake log (commit by create-if-absent), from SlateDB's
// write-ahead log (random id in the segment; fencing by writing into the log) and from Lampson's
// use of epochs; the fence that is a slot of the log and is never deleted is this package's own.
package journal

import (
	"iter"
	"time"

	"github.com/emitd/emitd/daemon/queue/journal/format"
	"github.com/emitd/emitd/storage/blob"
)

// Codec is what compresses the objects of journals.
type Codec = format.Codec

// NewCodec returns a codec that any number of journals may share.
func NewCodec() *Codec { return format.NewCodec() }

// Config says which journal, for whom, and at which pace. Bucket, Prefix, StoreID, Generation and
// Owner must be given; the zero value of everything else is a good default.
type Config struct {
	Bucket blob.Bucket
	// Prefix of all keys, without a slash at the end. It is never used for another journal.
	Prefix string

	// StoreID is the identity of the cluster store that hands out generations. A journal belongs
	// to one store, so that two clusters on one bucket do not fight.
	StoreID string
	// Generation of the run that opens the journal. A journal that saw a higher one refuses.
	Generation int64
	// Owner is the incarnation of the process. The same owner may open again with the same
	// generation; others need a higher one.
	Owner string
	// Adopt takes the journal although it belongs to another store, whatever its generation.
	Adopt bool
	// Name says of what it is the journal, such as the queue and the shard: the HEAD of a journal with
	// another name is refused. Empty: not checked.
	Name string
	// Salvage takes a damaged journal over with what is left of it: segments that are missing or damaged
	// are passed over, and [Log.Lost] lists them. It is for repairs.
	Salvage bool

	// Window is how many slots may be outstanding; default 8, at most 8,192. More keep a slow store
	// busier under load; each holds a segment in memory.
	Window int
	// MinGap is the least time between two segments under load. A longer one costs latency and saves
	// requests: at most one write each MinGap. Default: what keeps the window full, that is a
	// Window-th of what a write takes, but at least 2 ms and at most 5 ms.
	MinGap time.Duration
	// MaxPending bounds the bytes of records that are not acknowledged; default 64 MiB. Beyond,
	// Append returns ErrFull.
	MaxPending int
	// PartSize is about how many bytes of state go into one object of a checkpoint; default 8 MiB.
	PartSize int
	// Readahead is how many slots a takeover reads at a time, as long as they are small; default
	// 256. Large ones are read fewer at a time, so that about 64 MiB wait in memory.
	Readahead int
	// CallTimeout bounds a single request; default 15 s. It is repeated until the context ends,
	// except by Open, which gives up when nothing was read for OpenTimeout; default 1 min.
	CallTimeout, OpenTimeout time.Duration
	// MarkAfter is how long a journal is idle before it says, by a segment without records, that what
	// came before was acknowledged; default 1 s. MarkEvery is the least time between two of those;
	// default 1 min. See Damage above.
	MarkAfter, MarkEvery time.Duration

	// Codec compresses the objects. Journals of one process share one, because its tables are large.
	// Default: one of this journal's own.
	Codec *Codec

	Hooks Hooks
}

// Hooks tell what happens. Nil ones are skipped. They are called on goroutines of the log, one at
// a time; a slow one delays the log.
type Hooks struct {
	// Trouble is told of every request that failed and will be repeated.
	Trouble func(op string, attempt int, err error)
	// Checkpointed is told of every checkpoint that HEAD names now.
	Checkpointed func(upTo uint64, bytes int64)
	// Collected is told how many objects were deleted, and what went wrong, if anything did.
	Collected func(deleted int, err error)
}

// Fold is the state that the records make. Open calls its methods, on its own goroutine and in
// this order: Reset, Restore for each run and then each chunk of the checkpoint, Replay for what followed. Reset may
// come again, when the takeover begins again; everything before it is void. The slices are valid
// during the call only. An error ends Open.
type Fold interface {
	Reset()
	// Restore is handed the runs that the newest checkpoint has, in the order in which they were
	// written, and then its chunks.
	Restore(chunk []byte) error
	// Replay is handed the records of one call of Append, in order; at is their time.
	Replay(slot uint64, at time.Time, records iter.Seq[[]byte]) error
}

// Stats is what a log did and what it has to do.
type Stats struct {
	Epoch   int64
	Head    uint64 // the highest slot that has a record of this log, durable or not
	Durable uint64 // the highest slot that is acknowledged

	PendingBytes int // of records that are not acknowledged
	Outstanding  int // slots that are being written

	// Since the newest checkpoint; replay reads so much. See CheckpointDue.
	Slots int
	Bytes int64

	// Segments and records since Open, and the bytes that were stored of them.
	Segments, Records, SegmentBytes int64
	// Repeated counts requests that were sent again, Recognised those slots that were found to
	// be our own after an unknown outcome.
	Repeated, Recognised int64
}
