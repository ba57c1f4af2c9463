package owner

// Bug names a rule that can be taken out on purpose, so that the simulator is seen to need it. In
// an ordinary build there is no switch: bug is the constant false, and the branch is not compiled.
// With the build tag "planted", Plant switches one on:
//
//	go test -tags planted -run TestPlanted ./daemon/queue/journal/sim
type Bug string

// The rules that can be taken out.
const (
	fenceDeleted      Bug = "fences are garbage"
	unboundedWindow   Bug = "the window counts writes under way, not from the lowest unacknowledged slot"
	noEpochCAS        Bug = "a refused replacement of HEAD is taken for done"
	noRecheck         Bug = "R4: HEAD is not compared again"
	reappliedBatch    Bug = "a batch of unknown outcome is written into another slot too"
	newPutIDOnRetry   Bug = "a repeated write has a new put id"
	fenceAsData       Bug = "Q1: a fence found in R3 counts as one slot"
	jumpOfOwnWindow   Bug = "Q2: the fence jumps by the new owner's window"
	windowNarrowed    Bug = "R1 narrows the window before a fence stands"
	barrierTooFar     Bug = "a barrier stands beyond what the next fence voids"
	staleEmpty        Bug = "what is found in a slot that was read as empty is taken for void"
	collectReferenced Bug = "slots to which a checkpoint refers are garbage"
	namedEarly        Bug = "HEAD names a checkpoint before all of it is stored"
	missingRunEmpty   Bug = "a run that is gone is taken for empty"
	collectNamed      Bug = "runs that a checkpoint names are garbage"
	collectPrevious   Bug = "runs that only the checkpoint before names are garbage"
	ackOutOfOrder     Bug = "a slot is acknowledged before lower ones"
	equalGenerations  Bug = "Q4: two owners of one generation"
	closedKept        Bug = "R1 leaves the mark of the last clean close in HEAD"
	gapIsEnd          Bug = "an empty slot is the end of the log, whatever stands behind it"
	unmarked          Bug = "an idle journal does not say that its last segment was acknowledged"
	earlyClose        Bug = "HEAD says closed while slots are outstanding"
)

// Bugs lists them all.
func Bugs() []Bug {
	return []Bug{
		fenceDeleted, unboundedWindow, noEpochCAS, noRecheck, reappliedBatch, newPutIDOnRetry, fenceAsData,
		jumpOfOwnWindow, windowNarrowed, barrierTooFar, staleEmpty, collectReferenced, namedEarly, missingRunEmpty, collectNamed, collectPrevious, ackOutOfOrder, equalGenerations,
		closedKept, earlyClose, gapIsEnd, unmarked,
	}
}
