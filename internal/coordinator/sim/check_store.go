package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// broken is a rule and what broke it.
type broken struct{ rule, what string }

func breaks(rule, format string, args ...any) *broken {
	return &broken{rule, fmt.Sprintf(format, args...)}
}

// model is the state of the store according to its events. By rule I8, the state follows from the events alone.
// The lifecycle is written out here again on purpose: a mistake in the product's table must not hide itself.
type model struct {
	seq    int64
	term   int64
	leader node.Incarnation
	vacant bool
	units  []unitModel // by index
}

type unitModel struct {
	state      daemon.State
	generation int64
	holder     node.Incarnation
}

func (m *model) clone() model {
	c := *m
	c.units = slices.Clone(m.units)
	return c
}

// event applies the next event. unit is the index of the unit it is about, or -1.
func (m *model) event(e *daemon.Event, unit int) *broken {
	if e.Seq != m.seq+1 {
		return breaks("I8", "event %d follows event %d", e.Seq, m.seq)
	}
	m.seq = e.Seq
	switch e.Kind {
	case daemon.LeaderElected:
		if m.term != 0 && !m.vacant {
			return breaks("I8", "term %d was elected while %d is held and nobody said it was lost", e.Term, m.term)
		}
		m.term, m.leader, m.vacant = e.Term, e.Incarnation, false
	case daemon.LeaderLost:
		if m.vacant || m.term != e.Term {
			return breaks("I8", "term %d was lost, but %d is the newest (vacant: %v)", e.Term, m.term, m.vacant)
		}
		m.vacant = true
	}
	if unit >= 0 {
		return m.unitEvent(&m.units[unit], e)
	}
	return nil
}

// unitEvent applies an event about a unit.
func (m *model) unitEvent(u *unitModel, e *daemon.Event) *broken {
	was := *u
	free := was.state == daemon.Unassigned || was.state == daemon.Deleted
	var ok bool
	switch e.Kind {
	case daemon.AssignmentAssigned:
		ok = free
		*u = unitModel{daemon.Assigning, e.Generation, e.Incarnation}
		if ok && (m.vacant || e.Term != m.term) {
			return breaks("I2", "%s was assigned by term %d while %d is the newest (vacant: %v)", e.Unit, e.Term, m.term, m.vacant)
		}
	case daemon.AssignmentActive:
		ok = was.state == daemon.Assigning
		u.state = daemon.Active
	case daemon.AssignmentRevoking:
		ok = was.state == daemon.Assigning || was.state == daemon.Active
		u.state = daemon.Revoking
	case daemon.AssignmentDeleted, daemon.AssignmentForced, daemon.AssignmentFailed, daemon.AssignmentAbandoned:
		ok = !free
		u.state = daemon.Deleted
	case daemon.AssignmentResumed:
		ok = was.state == daemon.Active && e.Generation != was.generation
		u.generation = e.Generation
	case daemon.AssignmentPostponed:
		ok = was.state == daemon.Assigning && e.Generation != was.generation
		u.generation = e.Generation
	default:
		return nil
	}
	same := e.Kind == daemon.AssignmentAssigned || e.Incarnation == was.holder &&
		(e.Generation == was.generation || e.Kind == daemon.AssignmentResumed || e.Kind == daemon.AssignmentPostponed)
	if !ok || !same {
		return breaks("A1", "%s of %s at generation %d (%s) from %s at %d (%s)", e.Kind, e.Unit, e.Generation, e.Incarnation, was.state, was.generation, was.holder)
	}
	return nil
}

// checkRow compares a row of the store with the model.
func (m *model) checkRow(r *daemon.Record, at map[daemon.Unit]int) *broken {
	i, ok := at[r.Unit]
	if !ok {
		return breaks("I8", "a row of %s, which nobody declared", r.Unit)
	}
	u := m.units[i]
	if u.state != r.State || u.generation != r.Generation || !r.State.IsFree() && u.holder != r.Holder.Incarnation {
		return breaks("I8", "the row of %s says %s at %d (%s), the events %s at %d (%s)",
			r.Unit, r.State, r.Generation, r.Holder.Incarnation, u.state, u.generation, u.holder)
	}
	return nil
}

// checkUnits compares all units that the store lists for a process with the model.
func (m *model) checkUnits(records []daemon.Record, inc node.Incarnation, at map[daemon.Unit]int) *broken {
	held := 0
	for i := range m.units {
		if u := &m.units[i]; u.holder == inc && u.state != daemon.Deleted && u.state != daemon.Unassigned {
			held++
		}
	}
	for i := range records {
		if err := m.checkRow(&records[i], at); err != nil {
			return err
		}
	}
	if held != len(records) {
		return breaks("I8", "a reply lists %d units for %s, the events gave it %d", len(records), inc, held)
	}
	return nil
}

// commit checks an accepted commit of a term. m is the state just before.
func (m *model) commit(term node.TermRef) *broken {
	if term.Number != m.term || m.vacant || term.Incarnation != m.leader {
		return breaks("I2", "a commit of term %d (%s) was accepted while %d (%s) is the newest (vacant: %v)",
			term.Number, term.Incarnation, m.term, m.leader, m.vacant)
	}
	return nil
}

// terms are the numbers of all terms, across failovers.
type terms struct {
	highest int64
	// lost is set while the store does not know the highest number: a failover lost that term, and
	// no heartbeat has reported the number since.
	lost bool
}

// failedOver handles a failover to a copy whose newest term is given.
func (t *terms) failedOver(newest int64) { t.lost = t.lost || newest < t.highest }

// reported handles the highest number that a heartbeat reported to the store.
func (t *terms) reported(number int64) { t.lost = t.lost && number < t.highest }

// forgotten reports whether the store cannot know the highest number at now, by its own clock: the
// term was lost, nobody reported it, and the clock is before the number. Only a live process that
// saw the term could know it, and has not reported it yet.
func (t *terms) forgotten(now time.Time) bool { return t.lost && now.UnixMilli() <= t.highest }

func (t *terms) elected(number int64) *broken {
	if number <= t.highest {
		return breaks("I1", "term %d was elected after %d", number, t.highest)
	}
	t.highest, t.lost = number, false
	return nil
}

// checkIssued checks an event that gives a unit a new generation. highest is the unit's highest so far.
func checkIssued(highest *int64, e *daemon.Event) *broken {
	if e.Generation <= *highest {
		return breaks("I3", "%s was given generation %d after %d", e.Unit, e.Generation, *highest)
	}
	*highest = e.Generation
	return nil
}
