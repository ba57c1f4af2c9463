package plan

import (
	"cmp"
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Move is a change of a unit's place that a command would cause.
type Move struct {
	Unit daemon.Unit `json:"unit"`
	From string      `json:"from,omitempty"` // name of the node that holds it; empty if none does
	To   string      `json:"to,omitempty"`   // empty if the unit would run nowhere
	Why  string      `json:"why"`
}

// OfSnapshot returns the plan's input for a snapshot, with the states that the rows have.
func OfSnapshot(s *daemon.Snapshot) Input {
	in := Input{Now: s.Now, Units: s.Units, Term: s.Term, Commands: s.Commands}
	for _, m := range s.Nodes {
		n := Node{Member: m, Advert: s.Advert(m), State: m.State}
		switch {
		case !m.Present():
			n.State = node.Removed
		case m.State == node.Live && m.LeaderState != "":
			n.State = m.LeaderState
		}
		in.Nodes = append(in.Nodes, n)
	}
	return in
}

// Preview returns what the leader would answer to a new command, and what would move. It compares where units end up
// with and without the command, if every hand-over succeeds.
func Preview(in Input, c daemon.Command) (Answer, []Move) {
	with := in
	switch c.Kind {
	case daemon.CommandRelease:
		with = withoutSilent(in)
	case daemon.CommandRebalance:
		with.MaxMoves, with.SettleWindow = len(in.Units), 0
	}
	with.Commands = append(slices.Clone(in.Commands), c)
	answer := Answer{ID: c.ID}
	for _, a := range Make(with).Answers {
		if a.ID == c.ID {
			answer = a
		}
	}
	without, after := finalPlaces(in), finalPlaces(with)
	before := map[daemon.Unit]*daemon.Record{}
	for i := range in.Units {
		before[in.Units[i].Unit] = &in.Units[i]
	}
	var moves []Move
	for u, end := range after {
		if other, ok := without[u]; ok && other.to == end.to && other.generation == end.generation {
			continue
		}
		m := Move{Unit: u, To: end.to, Why: end.why}
		if row := before[u]; row != nil && !row.State.IsFree() {
			m.From = row.Holder.Name
		}
		moves = append(moves, m)
	}
	slices.SortFunc(moves, func(a, b Move) int { return a.Unit.Compare(b.Unit) })
	return answer, moves
}

// withoutSilent returns the input as it is once all nodes that look dead were removed, and their units are free.
func withoutSilent(in Input) Input {
	in.Nodes, in.Units = slices.Clone(in.Nodes), slices.Clone(in.Units)
	gone := map[node.Incarnation]bool{}
	for i := range in.Nodes {
		if n := &in.Nodes[i]; n.State == node.Late || n.State == node.Deaf {
			n.State = node.Removed
			gone[n.Member.Incarnation] = true
		}
	}
	for i := range in.Units {
		if r := &in.Units[i]; gone[r.Holder.Incarnation] && r.State.Known() && !r.State.IsFree() {
			r.State, r.Since, r.Reason = daemon.Deleted, in.Now, "holder is dead"
		}
	}
	return in
}

// place is where a unit ends up.
type place struct {
	to         string
	generation int64
	why        string
}

// previewRounds bounds how many plans finalPlaces makes. A unit is revoked by the first, assigned by the next, and declared
// or declared again by one before.
const previewRounds = 4

// finalPlaces makes plan after plan, as if each were carried out at once.
func finalPlaces(in Input) map[daemon.Unit]place {
	in.Units, in.Commands = slices.Clone(in.Units), slices.Clone(in.Commands)
	why := map[daemon.Unit]string{}
	for range previewRounds {
		p := Make(in)
		for i := range p.Decisions {
			in.Units = afterDecision(in, &p.Decisions[i])
			why[p.Decisions[i].Unit] = p.Decisions[i].Reason.String()
		}
		for i := range p.Unplaced {
			why[p.Unplaced[i].Unit] = p.Unplaced[i].String()
		}
		for _, a := range p.Answers {
			i := slices.IndexFunc(in.Commands, func(c daemon.Command) bool { return c.ID == a.ID })
			if in.Commands[i].Result = a.Result; a.Done {
				in.Commands = slices.Delete(in.Commands, i, i+1)
			}
		}
	}
	out := make(map[daemon.Unit]place, len(in.Units))
	for i := range in.Units {
		r := &in.Units[i]
		if r.Retired && r.State.IsFree() {
			continue
		}
		end := place{generation: r.Generation, why: cmp.Or(why[r.Unit], r.Reason)}
		if !r.State.IsFree() {
			end.to = r.Holder.Name
		}
		out[r.Unit] = end
	}
	return out
}

// afterDecision returns the rows after one decision.
func afterDecision(in Input, d *Decision) []daemon.Record {
	i := slices.IndexFunc(in.Units, func(r daemon.Record) bool { return r.Unit == d.Unit })
	if i < 0 {
		in.Units = append(in.Units, daemon.Record{Unit: d.Unit, State: daemon.Unassigned, Since: in.Now})
		i = len(in.Units) - 1
	}
	r := &in.Units[i]
	switch d.Step {
	case daemon.Assign:
		r.State, r.Holder, r.Generation = daemon.Active, d.To, r.Generation+1
	case daemon.Revoke:
		r.State, r.Since = daemon.Deleted, in.Now
	case "":
		r.Retired = d.Retired
	}
	return in.Units
}

// Standing returns the standing commands that are in force, in the order of their submission.
func (p *Plan) Standing() []daemon.Command { return p.standing }
