package planted

// The names of the bugs of a cluster store that the simulator does not see: its store is another one.
const (
	LeaveWithoutUnitLocks = "leave without locking its units first"
)

// StoreBugs lists the planted bugs of storage/postgres. As those of [QueueBugs], they are planted under the
// ordinary tests of their package.
func StoreBugs() []Info {
	return []Info{
		{LeaveWithoutUnitLocks, "postgres: a leave decides from rows as they were before it waited for them"},
	}
}
