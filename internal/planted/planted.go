// Package planted holds the switches of bugs that are planted on purpose.
//
// A rule of the protocol is believed only once its test was seen to fail without it. At the place
// where a rule decides, the code asks [Bug] whether the rule is to be broken:
//
//	if row != guard && !planted.Bug(planted.DeathWithoutCheck) {
//		return skipped
//	}
//
// In every ordinary build Bug is the constant false and the compiler removes both the call and
// the branch: the product contains no switch. With the build tag "planted", tests switch one bug
// on by its name with On and demand that the simulator catches it:
//
//	go test -tags planted -run TestPlanted ./coordinator/sim
//
// The rules of the queue and of storage/postgres that no simulator sees are broken one at a time under its ordinary tests:
//
//	go test -tags planted -run TestPlanted ./internal/planted
//
// The names are listed in [Bugs], [QueueBugs] and [StoreBugs], each with the rule it breaks. On panics for a name
// that is not listed, and Asked tells a test that some code has asked for the bug: a switch connected
// to nothing is no proof.
package planted

// Info describes one planted bug.
type Info struct {
	Name string
	// Breaks names the rule of the protocol that is broken, and how.
	Breaks string
}

// The names of the bugs.
const (
	FenceWithoutStop      = "self-fencing without StopTimeout"
	PlainGeneration       = "generation without GREATEST"
	GoOnInChangedStore    = "going on at once under a changed store identity"
	ForceAtDrainDeadline  = "force at the drain deadline"
	TrustUnlisted         = "trust extended by a reply that does not list the unit"
	AckFromRevoking       = "acknowledge accepted from revoking"
	AckAfterBound         = "acknowledge after the local bound"
	SameGeneration        = "same generation for a second run"
	DeathWithoutCheck     = "death commit without re-checking the node row"
	ReadBeforeWrite       = "reads from before the heartbeat's write"
	LateSeqAccepted       = "late sequence number accepted"
	StandOnStoreClock     = "standing on the store's clock alone"
	TermKeptAfterLost     = "term kept after lost"
	DeafUnnoticed         = "deaf node not noticed"
	ResignBeforeLost      = "resign before lost"
	WakeMovesDeadline     = "wake-up moving a deadline"
	WriteWithoutTermGuard = "leader write without term guard"
	FenceWithoutStamp     = "fence without stamp"
	EventsByIdentity      = "event numbers by identity column"
	WriteToAnotherStore   = "report or commit accepted by another store than was read"
	PlanInChangedStore    = "assigning at once under a changed store identity"
	StandInChangedStore   = "standing at once under a changed store identity"
	NewcomerTrustsStore   = "newcomer ignores since when the store is another one"
	TermOfLostHistory     = "term of the lost history kept"
	ResumeInChangedStore  = "resuming at once under a changed store identity"
	HalfForceAfter        = "forced hand-over after half of the margins"
	DrainWithoutMargin    = "drain deadline without a margin"
	TimeAfterInput        = "time is looked at after the input"
	DeafAtFirstSight      = "units taken from a deaf node at first sight"
	ProofFreesAnyTerm     = "proof of a death frees whatever term there is"
)

// Bugs lists every planted bug.
func Bugs() []Info {
	return []Info{
		{FenceWithoutStop, "A7: runs are cancelled StopTimeout too late, so they end after others may start"},
		{PlainGeneration, "A: the next generation is the row's plus one only; after a rollback it repeats"},
		{GoOnInChangedStore, "store identity: leading, assigning and starting go on as if it were the same store"},
		{ForceAtDrainDeadline, "A6: the next owner starts at the drain deadline of a silent holder"},
		{TrustUnlisted, "A6: every answered heartbeat extends the trust of every run"},
		{AckFromRevoking, "A1: a revoked assignment becomes active again by a late acknowledgement"},
		{AckAfterBound, "A4: a run is started or kept although it can no longer be acknowledged in time"},
		{SameGeneration, "A9: a second run of an active unit keeps the generation of the first"},
		{DeathWithoutCheck, "A3: units are taken from a node that beat again before the commit"},
		{ReadBeforeWrite, "E1: the reply shows what stood before the write"},
		{LateSeqAccepted, "node: a delayed or repeated message of a node is taken for a new one"},
		{StandOnStoreClock, "E2: a candidate believes the store's clock alone, whatever it did meanwhile"},
		{TermKeptAfterLost, "E5: a process renews a term for which it published Lost"},
		{DeafUnnoticed, "A8: a node that hears no reply keeps its units for ever"},
		{ResignBeforeLost, "E4, E6: the term is given up first and Lost published afterwards"},
		{WakeMovesDeadline, "E4: a wake-up postpones the trust or renew deadline"},
		{WriteWithoutTermGuard, "A3: a replaced leader's commit is applied"},
		{FenceWithoutStamp, "A10: the fence compares but the claim is not stamped before the run"},
		{EventsByIdentity, "A13: event numbers are drawn when the change begins: gaps and disorder"},
		{WriteToAnotherStore, "store identity: what was decided from a lost history is written into the one that took its place"},
		{PlanInChangedStore, "store identity: units are assigned before NodeRegistrationTTL; others may run what the lost history gave them"},
		{StandInChangedStore, "store identity: a candidate stands before LeaseDuration; the leader of the lost history may trust itself"},
		{NewcomerTrustsStore, "store identity: a process that began after the change takes what the rows say for all there is"},
		{TermOfLostHistory, "store identity: a leader goes on leading when the store has become another one"},
		{ResumeInChangedStore, "store identity: a run is resumed before NodeRegistrationTTL"},
		{HalfForceAfter, "A6: the next owner starts a margin too early: both timers of the holder may be late"},
		{DrainWithoutMargin, "A5: a run is cancelled only when its drain timeout is over for others, not a margin before"},
		{TimeAfterInput, "E4: after a pause, what waited is handled by a leader whose trust is over; Lost comes after other effects"},
		{DeafAtFirstSight, "A8: units are revoked with the judgement, though the node's next heartbeat may be on its way"},
		{ProofFreesAnyTerm, "A8, E2: a term is vacated although the process that is proven to have ended does not hold it"},
	}
}
