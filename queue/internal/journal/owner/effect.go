package owner

import (
	"time"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// Effect is an instruction of the machine to its driver: a Call, Reset, Restore, Replay, Skipped, Owned,
// Ack, SetTimer, Progress or End.
type Effect interface{ effect() }

// Op is the operation of a call.
type Op int

// The operations.
const (
	ReadHead    Op = iota
	CreateHead     // writes Data
	ReplaceHead    // writes Data if the version is Old
	ReadSlot       // reads the whole object
	ReadHeader     // reads its first format.HeaderSize bytes
	CreateSlot     // writes Write
	ReadPart       // reads the whole object
	CreatePart     // writes Write
	CopyHead       // writes Data
	List           // returns a page of the keys that begin with Key, behind Cursor
	Delete
)

var opNames = [...]string{
	"read HEAD", "create HEAD", "replace HEAD", "read segment", "read header",
	"write segment", "read checkpoint", "write checkpoint", "copy HEAD", "list", "delete",
}

// String returns the operation's name.
func (o Op) String() string { return opNames[o] }

// Reads reports whether the operation reads one object.
func (o Op) Reads() bool { return o == ReadHead || o == ReadSlot || o == ReadHeader || o == ReadPart }

// Writes reports whether the operation changes objects.
func (o Op) Writes() bool {
	return o == CreateHead || o == ReplaceHead || o == CreateSlot || o == CreatePart || o == CopyHead || o == Delete
}

// Call is a request to the store. The driver waits for After, sends the request and passes the
// answer to Machine.Result.
type Call struct {
	ID      uint64
	Op      Op
	Key     string // below the journal's prefix
	After   time.Duration
	Attempt int // 0, 1, …

	Data   []byte
	Old    string
	Write  *Write
	Cursor string

	slot         uint64
	part         int
	refusedWrite *Call // the write whose key was taken; ReadHeader finds out by whom
	undecodable  int   // answers that could not be decoded
}

// Write is an object to write. The driver encodes it once, so that every attempt has the same
// bytes.
type Write struct {
	Header  format.Header
	Body    format.Body
	encoded []byte
}

// Bytes returns the encoded object. It must not be called concurrently.
func (w *Write) Bytes(codec *format.Codec) []byte {
	if w.encoded == nil {
		w.encoded = codec.Encode(&w.Header, &w.Body)
		w.Body = format.Body{} // the records are in the object
	}
	return w.encoded
}

// Size returns the size of the object in bytes; 0 before Bytes was called.
func (w *Write) Size() int { return len(w.encoded) }

// Outcome is the outcome of a call.
type Outcome int

// The answers.
const (
	Done            Outcome = iota
	ConditionFailed         // a condition did not hold: the key exists, or has changed
	NotFound                // the object does not exist
	Failed                  // certainly not done; or a read that failed
	Unknown                 // a write that may be done, now or later
	Undecodable             // read, but could not be decoded: Err is of package format
)

// Result is the answer to a call.
type Result struct {
	ID      uint64
	Answer  Outcome
	Err     error
	Retry   time.Duration // the least pause that the store asks for, if Failed
	Version string        // version of HEAD
	Data    []byte        // content of HEAD
	Segment *format.Segment
	Header  format.Header
	Entries []Entry
	More    bool

	head format.Head
}

// Entry is a key of a listing, below the prefix.
type Entry struct {
	Key  string
	Size int64
}

// Reset discards the state: it is restored and replayed from the beginning.
type Reset struct{}

// Restore adds a part of the checkpoint to the state.
type Restore struct{ Part *format.Segment }

// Replay adds the records of a slot to the state.
type Replay struct{ Segment *format.Segment }

// Skipped means that the takeover continues without the slots from Slot up to, but not including,
// Next, because of Err; see Config.Salvage.
type Skipped struct {
	Slot, Next uint64
	Err        error
}

// Owned means that the takeover is complete.
type Owned struct{}

// Ack means that all slots up to Slot are durable.
type Ack struct{ Slot uint64 }

// SetTimer requests a call of Machine.Tick at a time. It replaces the request before.
type SetTimer struct{ At time.Duration }

// Progress reports on checkpoints and garbage collection.
type Progress struct {
	Moved        bool // the backlog of the checkpoint shrank
	Checkpointed bool // the checkpoint is in force: HEAD names it
	UpTo         uint64
	Bytes        int64
	Collected    bool // a garbage collection ended
	Deleted      int
	Err          error
}

// End means that the machine has ended; Err is nil after a clean close.
type End struct{ Err error }

func (*Call) effect()    {}
func (Reset) effect()    {}
func (Restore) effect()  {}
func (Replay) effect()   {}
func (Skipped) effect()  {}
func (Owned) effect()    {}
func (Ack) effect()      {}
func (SetTimer) effect() {}
func (Progress) effect() {}
func (End) effect()      {}
