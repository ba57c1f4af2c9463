package journal

import (
	"errors"

	"github.com/emitd/emitd/queue/internal/journal/owner"
)

// The kinds of errors; test for them with errors.Is.
var (
	// ErrFenced means that another owner has taken the journal over. Records that were not
	// acknowledged have an unknown outcome: the new owner may have found them or not.
	ErrFenced = owner.ErrFenced
	// ErrOtherStore means that the journal belongs to another cluster store. Config.Adopt takes it
	// over.
	ErrOtherStore = owner.ErrOtherStore
	// ErrGeneration is the kind of a GenerationError.
	ErrGeneration = owner.ErrGeneration
	// ErrCorrupt means that an object is not what a journal writes. Nothing was changed.
	ErrCorrupt = owner.ErrCorrupt
	// ErrNewer means that an object was written by a newer version.
	ErrNewer = owner.ErrNewer
	// ErrMissing means that an object to which the journal refers does not exist.
	ErrMissing = owner.ErrMissing
	// ErrRepairing means that a repair has begun and has not ended. Until it ends, possibly
	// after an interruption and a second run, only a repair may own the journal.
	ErrRepairing = owner.ErrRepairing
	// ErrFull means that MaxPending is reached: wait for an acknowledgement, or refuse the
	// caller.
	ErrFull = owner.ErrFull
	// ErrTooLarge means that the records of one call exceed MaxCall. Nothing was appended.
	ErrTooLarge = owner.ErrTooLarge
	// ErrClosed means that the log was closed, or that its context ended.
	ErrClosed = owner.ErrClosed
	// ErrBusy means that another checkpoint is being written.
	ErrBusy = owner.ErrBusy
	// ErrAborted is the error of a checkpoint that was aborted.
	ErrAborted = errors.New("the checkpoint was aborted")
)

// GenerationError is an ErrGeneration: the run that opens the journal is not newer than the one
// that owned it. Held is the generation in HEAD, Floor the least one that will be accepted. The
// caller reports Held to the cluster with daemon.Assignment.ReportRefused.
type GenerationError = owner.GenerationError
