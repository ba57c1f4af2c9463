package drill

import (
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
)

// JudgeRuns returns how the runs of the tickers break a promise: two of one unit at the same time,
// or out of the order of their generations.
func JudgeRuns(runs []Run) (bad []string) {
	byUnit := map[string][]Run{}
	for _, r := range runs {
		byUnit[r.Unit] = append(byUnit[r.Unit], r)
	}
	for unit, rs := range byUnit {
		slices.SortFunc(rs, func(a, b Run) int { return int(a.Start - b.Start) })
		for i := 1; i < len(rs); i++ {
			a, b := rs[i-1], rs[i]
			if b.Start <= a.End {
				bad = append(bad, fmt.Sprintf("%s: generation %d on %s began %v before generation %d on %s had ended",
					unit, b.Generation, b.Node, time.Duration(a.End-b.Start), a.Generation, a.Node))
			}
			if b.Generation < a.Generation || (b.Generation == a.Generation && b.Node != a.Node) {
				bad = append(bad, fmt.Sprintf("%s: generation %d on %s came after %d on %s", unit, b.Generation, b.Node, a.Generation, a.Node))
			}
		}
	}
	slices.Sort(bad)
	return bad
}

// JudgeEvents returns how the history breaks a promise: gaps in its numbers, terms that repeat or
// go back, generations issued twice, steps that the lifecycle does not have.
func JudgeEvents(events []daemon.Event) (bad []string) {
	say := func(e daemon.Event, format string, args ...any) {
		bad = append(bad, fmt.Sprintf("event %d (%s): ", e.Seq, e.Kind)+fmt.Sprintf(format, args...))
	}
	var seq, term int64
	issued := map[daemon.Unit]int64{}
	state := map[daemon.Unit]daemon.State{}
	for _, e := range events {
		if seq != 0 && e.Seq != seq+1 {
			say(e, "follows event %d", seq)
		}
		seq = e.Seq
		switch e.Kind {
		case daemon.LeaderElected:
			if e.Term <= term {
				say(e, "term %d after term %d", e.Term, term)
			}
			term = e.Term
		case daemon.AssignmentAssigned, daemon.AssignmentResumed:
			if e.Generation <= issued[e.Unit] {
				say(e, "%s was given generation %d after %d", e.Unit, e.Generation, issued[e.Unit])
			}
			issued[e.Unit] = e.Generation
		}
		next, from, ok := leadsTo(e.Kind)
		if !ok {
			continue
		}
		if was, known := state[e.Unit]; known && !slices.Contains(from, was) {
			say(e, "%s was %s", e.Unit, was)
		}
		state[e.Unit] = next
	}
	return bad
}

// leadsTo returns the state after an event of an assignment, and those it may come from.
func leadsTo(kind daemon.EventKind) (next daemon.State, from []daemon.State, ok bool) {
	free := []daemon.State{daemon.Unassigned, daemon.Deleted}
	held := []daemon.State{daemon.Assigning, daemon.Active, daemon.Revoking}
	switch kind {
	case daemon.AssignmentAssigned:
		return daemon.Assigning, free, true
	case daemon.AssignmentActive:
		return daemon.Active, held[:1], true
	case daemon.AssignmentResumed:
		return daemon.Active, held[1:2], true
	case daemon.AssignmentRevoking:
		return daemon.Revoking, held[:2], true
	case daemon.AssignmentDeleted, daemon.AssignmentForced, daemon.AssignmentFailed, daemon.AssignmentAbandoned:
		return daemon.Deleted, held, true
	}
	return "", nil, false
}
