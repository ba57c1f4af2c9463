package planted

// The names of the bugs of the queue broker, of its buckets and of named locks.
const (
	AnswerBeforeDurable   = "answer before it is durable"
	AnswerOvertakes       = "answer that writes nothing overtakes what makes it true"
	AnswerWithoutTrust    = "answer outside the trust window"
	FloorNotReported      = "generation floor not reported"
	StaleClaimHonoured    = "claim that is over is honoured"
	SoftDurableClaim      = "durable claim answered before its commit"
	ClaimNotWritten       = "claim record waits for another record"
	NewClaimsForRepeat    = "repeated claim call gets other jobs"
	DeliveriesUnbounded   = "deliveries without a bound"
	AttemptAtClaim        = "attempt counted at the claim"
	UndeliveredCounts     = "claim that reached no worker is an attempt"
	DeadBeforeDurable     = "job dead before the record is durable"
	NoFreshTimeout        = "claims keep their old end at a takeover"
	LostClaimRefused      = "claim of an earlier owner refused"
	ReclaimedJobAdopted   = "claim adopted although the job was handed out again"
	TokenUnproven         = "token without a valid MAC accepted"
	OwnClockOnly          = "queue time by the node's clock alone"
	DedupForEver          = "ids remembered for ever"
	CheckThenReplace      = "object created by a look and a replacement"
	ReplaceWithoutVersion = "object replaced whatever its version"
	LockOnStoreClock      = "lock taken by the store's clock alone"
)

// QueueBugs lists the planted bugs of the queue's rules that the simulator of its journal cannot see:
// they are the broker's, the bucket's or the named locks'. The bugs of the journal are in daemon/queue/journal/owner.
func QueueBugs() []Info {
	return []Info{
		{AnswerBeforeDurable, "Q3: replies see what is not acknowledged"},
		{AnswerOvertakes, "Q3: a duplicate or a repeated complete does not wait for what was decided before"},
		{AnswerWithoutTrust, "Q3: a no of a broker that may be deposed"},
		{FloorNotReported, "Q4: the cluster does not learn which generation is needed"},
		{StaleClaimHonoured, "Q5: two holders of one job"},
		{SoftDurableClaim, "Q5: two holders of one attempt after a crash"},
		{ClaimNotWritten, "Q6: a job that kills worker and broker is handed out for ever"},
		{NewClaimsForRepeat, "Q6: a lost answer costs a claim"},
		{DeliveriesUnbounded, "Q6: a job that is never begun is handed out for ever"},
		{AttemptAtClaim, "Q6: a claim whose answer was lost is an attempt"},
		{UndeliveredCounts, "Q6: jobs that never ran are dead"},
		{DeadBeforeDurable, "Q6: a dead job may be found alive by the next broker"},
		{NoFreshTimeout, "Q7: claims end during a takeover"},
		{LostClaimRefused, "Q7: work is lost whose claim was not yet written"},
		{ReclaimedJobAdopted, "Q7: an older claim wins over a newer one"},
		{TokenUnproven, "Q7: whoever makes a token up holds a claim"},
		{OwnClockOnly, "Q8: queue time goes back at a takeover"},
		{DedupForEver, "Q9: memory without a bound"},
		{CheckThenReplace, "Q11: two writers create one object"},
		{ReplaceWithoutVersion, "Q11: a writer replaces what it has not read"},
		{LockOnStoreClock, "E2: a step of the store's clock gives a named lock two holders, or keeps a dead one's"},
	}
}
