package journal

import (
	"errors"

	"github.com/emitd/emitd/daemon/queue/journal/owner"
)

// The kinds of errors; ask with errors.Is.
var (
	// ErrFenced says that another owner has taken the journal over. What was not acknowledged has
	// an unknown outcome: it may be found by the new owner, or not.
	ErrFenced = owner.ErrFenced
	// ErrForeign says that the journal belongs to another cluster store. Config.Adopt takes it.
	ErrForeign = owner.ErrForeign
	// ErrGeneration is the kind of a GenerationError.
	ErrGeneration = owner.ErrGeneration
	// ErrCorrupt says that an object is not what a journal writes. Nothing was changed.
	ErrCorrupt = owner.ErrCorrupt
	// ErrNewer says that an object was written by a newer program.
	ErrNewer = owner.ErrNewer
	// ErrMissing says that an object is gone that the journal refers to.
	ErrMissing = owner.ErrMissing
	// ErrRepairing says that a repair has begun: until it has ended, possibly after an interruption, only
	// a repair may own the journal.
	ErrRepairing = owner.ErrRepairing
	// ErrFull says that MaxPending is reached: wait for an acknowledgement, or refuse the caller.
	ErrFull = owner.ErrFull
	// ErrTooLarge says that the records of one call exceed MaxCall. Nothing was appended.
	ErrTooLarge = owner.ErrTooLarge
	// ErrClosed says that the log was closed, or that its context ended.
	ErrClosed = owner.ErrClosed
	// ErrBusy says that a checkpoint is being written already.
	ErrBusy = owner.ErrBusy
	// ErrAborted is how a checkpoint ends that was given up.
	ErrAborted = errors.New("the checkpoint was given up")
)

// GenerationError is an ErrGeneration: the run that opens the journal is not newer than the one
// that owned it. Held is in HEAD, Floor is the least generation that will be accepted.
// daemon.Assignment.Refused reports Held to whoever hands generations out.
type GenerationError = owner.GenerationError
