package owner

import (
	"time"

	"github.com/emitd/emitd/daemon/queue/journal/format"
)

// Effect is what the machine wants done: a Call, Reset, Restore, Replay, Own, Ack, Wake,
// Progress or End.
type Effect interface{ effect() }

// Op is what a call does.
type Op int

// The operations.
const (
	ReadHead    Op = iota
	CreateHead     // Data
	ReplaceHead    // Data if the version is Old
	ReadSlot       // the whole object
	ReadHeader     // its first format.HeaderSize bytes
	CreateSlot     // Write
	ReadPart       // the whole object
	CreatePart     // Write
	CopyHead       // Data
	List           // a page of the keys that begin with Key, behind Cursor
	Delete
)

var opNames = [...]string{
	"read HEAD", "create HEAD", "replace HEAD", "read segment", "read header",
	"write segment", "read checkpoint", "write checkpoint", "copy HEAD", "list", "delete",
}

// String names the operation.
func (o Op) String() string { return opNames[o] }

// Reads reports whether the operation reads one object.
func (o Op) Reads() bool { return o == ReadHead || o == ReadSlot || o == ReadHeader || o == ReadPart }

// Writes reports whether the operation changes something.
func (o Op) Writes() bool {
	return o == CreateHead || o == ReplaceHead || o == CreateSlot || o == CreatePart || o == CopyHead || o == Delete
}

// Call asks for a request to the store. The shell waits for After, carries it out and hands the
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

	slot   uint64
	part   int
	write  *Call // whose key was taken: ReadHeader finds out by whom
	broken int   // answers that were not understood
}

// Write is an object that is encoded once, by the shell, and written with the same bytes however
// often it is attempted.
type Write struct {
	Header  format.Header
	Body    format.Body
	encoded []byte
}

// Bytes returns the object. It is called by one goroutine at a time.
func (w *Write) Bytes(codec *format.Codec) []byte {
	if w.encoded == nil {
		w.encoded = codec.Encode(&w.Header, &w.Body)
		w.Body = format.Body{} // the records are in the object
	}
	return w.encoded
}

// Size returns the bytes of the object; 0 before Bytes was called.
func (w *Write) Size() int { return len(w.encoded) }

// Answer is how a call ended.
type Answer int

// The answers.
const (
	Done     Answer = iota
	Refused         // a condition did not hold: the key exists, or has changed
	NotFound        // nothing is there
	Failed          // not done, and never will be; or a read that failed
	Unknown         // a write that may be done, now or later
	Broken          // read, but not understood: Err is of format
)

// Result answers a call.
type Result struct {
	ID      uint64
	Answer  Answer
	Err     error
	Retry   time.Duration // the least pause the store asks for, if Failed
	Version string        // of HEAD
	Data    []byte        // of HEAD
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

// Reset drops the state: what follows is restored and replayed from the beginning.
type Reset struct{}

// Restore adds a part of the checkpoint to the state.
type Restore struct{ Part *format.Segment }

// Replay adds the records of a slot to the state.
type Replay struct{ Segment *format.Segment }

// Lost says that the takeover goes on without the slots from Slot up to, not including, Next, and why:
// see Config.Salvage.
type Lost struct {
	Slot, Next uint64
	Err        error
}

// Own says that the takeover is complete.
type Own struct{}

// Ack says that all slots up to Slot are durable.
type Ack struct{ Slot uint64 }

// Wake asks for Machine.Tick at a time; it replaces the wish before.
type Wake struct{ At time.Duration }

// Progress tells what became of checkpoints and of garbage.
type Progress struct {
	Moved        bool // the backlog of the checkpoint shrank
	Checkpointed bool // HEAD names it
	UpTo         uint64
	Bytes        int64
	Collected    bool // garbage collection ended
	Deleted      int
	Err          error
}

// End says that the machine has ended; Err is nil after a clean close.
type End struct{ Err error }

func (*Call) effect()    {}
func (Reset) effect()    {}
func (Restore) effect()  {}
func (Replay) effect()   {}
func (Lost) effect()     {}
func (Own) effect()      {}
func (Ack) effect()      {}
func (Wake) effect()     {}
func (Progress) effect() {}
func (End) effect()      {}
