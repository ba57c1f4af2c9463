package drill

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// CheckRuns returns how the tickers' runs break a promise: two runs of one unit at the same time, or runs
// out of the order of their generations.
func CheckRuns(runs []Run) (bad []string) {
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

// CheckEvents returns how a complete history breaks a promise: gaps in its numbers, terms that repeat or
// go back, assignments by a term other than the newest, generations issued twice, transitions that the
// lifecycle does not have, nodes that were declared dead too soon, and actions of dead nodes.
func CheckEvents(events []daemon.Event, t lease.Timing) (bad []string) {
	j := eventChecker{
		timing: t, issued: map[daemon.Unit]int64{}, state: map[daemon.Unit]daemon.State{},
		beats: map[node.Incarnation]time.Time{}, gone: map[node.Incarnation]string{},
	}
	for _, e := range events {
		for _, err := range []error{j.number(e), j.lead(e), j.live(e), j.assign(e)} {
			if err != nil {
				bad = append(bad, fmt.Sprintf("event %d (%s): %v", e.Seq, e.Kind, err))
			}
		}
	}
	return bad
}

// eventChecker is the state after the events so far.
type eventChecker struct {
	timing lease.Timing
	seq    int64
	term   int64
	vacant bool
	issued map[daemon.Unit]int64
	state  map[daemon.Unit]daemon.State
	beats  map[node.Incarnation]time.Time // times of events that only a heartbeat causes
	gone   map[node.Incarnation]string    // dead nodes, with the reason
}

func (j *eventChecker) number(e daemon.Event) (err error) {
	if e.Seq != j.seq+1 {
		err = fmt.Errorf("follows event %d", j.seq)
	}
	j.seq = e.Seq
	return err
}

// lead checks what events say about terms, including the terms of assignments.
func (j *eventChecker) lead(e daemon.Event) error {
	switch e.Kind {
	case daemon.LeaderElected:
		was := j.term
		j.term, j.vacant = e.Term, false
		if e.Term <= was {
			return fmt.Errorf("term %d after term %d", e.Term, was)
		}
	case daemon.LeaderLost:
		j.vacant = true
	case daemon.AssignmentAssigned:
		if e.Term != j.term || j.vacant {
			return fmt.Errorf("%s was assigned by term %d while %d is the newest (vacant: %v)", e.Unit, e.Term, j.term, j.vacant)
		}
	}
	return nil
}

// live checks what events say about the lives of nodes. A node that was declared dead because of silence
// may come back. A node that has left, or whose process has ended, may not. Timestamps of a clock that
// was stepped back are not checked.
func (j *eventChecker) live(e daemon.Event) error {
	reason, gone := j.gone[e.Incarnation]
	switch e.Kind {
	case daemon.NodeRemoved:
		j.gone[e.Incarnation] = e.Reason
		beat, known := j.beats[e.Incarnation]
		if quiet := e.At.Sub(beat); known && silent(e.Reason) && quiet >= 0 && quiet < j.timing.NodeRegistrationTTL-j.timing.Late() {
			return fmt.Errorf("%s was declared dead %v after a heartbeat", e.Node, quiet)
		}
		return nil
	case daemon.NodeRegistered:
		if silent(reason) {
			delete(j.gone, e.Incarnation)
			gone = false
		}
		j.beats[e.Incarnation] = e.At
	case daemon.LeaderElected:
		j.beats[e.Incarnation] = e.At
	case daemon.AssignmentActive, daemon.AssignmentResumed:
	default:
		return nil
	}
	if gone {
		return fmt.Errorf("%s had been removed: %s", e.Node, reason)
	}
	return nil
}

// silent reports whether a node was declared dead because of silence.
func silent(reason string) bool { return strings.HasPrefix(reason, "no heartbeat") }

// assign checks a transition of an assignment.
func (j *eventChecker) assign(e daemon.Event) error {
	next, from, ok := leadsTo(e.Kind)
	if !ok {
		return nil
	}
	was, known := j.state[e.Unit]
	j.state[e.Unit] = next
	if known && !slices.Contains(from, was) {
		return fmt.Errorf("%s was %s", e.Unit, was)
	}
	return issue(j.issued, e)
}

// issue checks an event that may give a unit a new generation.
func issue(issued map[daemon.Unit]int64, e daemon.Event) error {
	if e.Kind != daemon.AssignmentAssigned && e.Kind != daemon.AssignmentResumed && e.Kind != daemon.AssignmentPostponed {
		return nil
	}
	was := issued[e.Unit]
	issued[e.Unit] = max(was, e.Generation)
	if e.Generation <= was {
		return fmt.Errorf("%s was given generation %d after %d", e.Unit, e.Generation, was)
	}
	return nil
}

// leadsTo returns the state after an event of an assignment, and the states that may precede it.
func leadsTo(kind daemon.EventKind) (next daemon.State, from []daemon.State, ok bool) {
	free := []daemon.State{daemon.Unassigned, daemon.Deleted}
	held := []daemon.State{daemon.Assigning, daemon.Active, daemon.Revoking}
	switch kind {
	case daemon.AssignmentAssigned:
		return daemon.Assigning, free, true
	case daemon.AssignmentActive:
		return daemon.Active, held[:1], true
	case daemon.AssignmentPostponed:
		return daemon.Assigning, held[:1], true
	case daemon.AssignmentResumed:
		return daemon.Active, held[1:2], true
	case daemon.AssignmentRevoking:
		return daemon.Revoking, held[:2], true
	case daemon.AssignmentDeleted, daemon.AssignmentForced, daemon.AssignmentFailed, daemon.AssignmentAbandoned:
		return daemon.Deleted, held, true
	}
	return "", nil, false
}

// CheckDeaths returns the processes that were removed although the drill did not harm them.
func CheckDeaths(events []daemon.Event, unharmed func(removed daemon.Event) bool) (bad []string) {
	for _, e := range events {
		if e.Kind == daemon.NodeRemoved && unharmed(e) {
			bad = append(bad, fmt.Sprintf("event %d (%s): %s lives, and nobody did it any harm: %s", e.Seq, e.Kind, e.Node, e.Reason))
		}
	}
	return bad
}

// blur is the uncertainty of an event's time on the host's boot clock.
const blur = 50 * time.Millisecond

// CheckValidity returns the tickers' runs that continued after the store had recorded their end: their unit
// was unassigned, or another run had it. boot converts timestamps of events to the boot clock.
func CheckValidity(runs []Run, events []daemon.Event, boot func(time.Time) int64) (bad []string) {
	byUnit := map[string][]daemon.Event{}
	for _, e := range events {
		byUnit[e.Unit.String()] = append(byUnit[e.Unit.String()], e)
	}
	for _, r := range runs {
		history := byUnit[r.Unit]
		i := slices.IndexFunc(history, func(e daemon.Event) bool { return ends(e, r.Generation) })
		if i < 0 {
			continue
		}
		if late := time.Duration(r.End - boot(history[i].At)); late > blur {
			bad = append(bad, fmt.Sprintf("%s: generation %d on %s went on for %v after event %d (%s)",
				r.Unit, r.Generation, r.Node, late, history[i].Seq, history[i].Kind))
		}
	}
	return bad
}

// ends reports whether an event of a unit ends the run of a generation. An abandoned run may continue; it
// counts as ended when another one begins.
func ends(e daemon.Event, generation int64) bool {
	switch e.Kind {
	case daemon.AssignmentDeleted, daemon.AssignmentForced, daemon.AssignmentFailed:
		return e.Generation >= generation
	case daemon.AssignmentAssigned, daemon.AssignmentResumed, daemon.AssignmentPostponed:
		return e.Generation > generation
	}
	return false
}

// CheckFailover compares the history of a store with that of a copy that replaced it and lost the newest
// events. It returns the numbers of terms and generations that the copy issued again.
func CheckFailover(before, after []daemon.Event) (bad []string) {
	same := func(a, b daemon.Event) bool {
		return a.Seq == b.Seq && a.Kind == b.Kind && a.At.Equal(b.At) && a.Unit == b.Unit && a.Term == b.Term && a.Generation == b.Generation
	}
	kept := 0
	for kept < min(len(before), len(after)) && same(before[kept], after[kept]) {
		kept++
	}
	term, issued := int64(0), map[daemon.Unit]int64{}
	for _, e := range before {
		_ = issue(issued, e)
		term = max(term, e.Term)
	}
	for _, e := range after[kept:] {
		if e.Kind == daemon.LeaderElected {
			if e.Term <= term {
				bad = append(bad, fmt.Sprintf("event %d (%s): term %d after term %d", e.Seq, e.Kind, e.Term, term))
			}
			term = max(term, e.Term)
		}
		if err := issue(issued, e); err != nil {
			bad = append(bad, fmt.Sprintf("event %d (%s): %v", e.Seq, e.Kind, err))
		}
	}
	return bad
}
