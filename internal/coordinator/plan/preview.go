package plan

import (
	"cmp"
	"slices"
	"time"

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

// finalPlaces returns where units end up.
func finalPlaces(in Input) map[daemon.Unit]place {
	rows, why := conclude(in, previewRounds)
	out := make(map[daemon.Unit]place, len(rows))
	for i := range rows {
		r := &rows[i]
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

// conclude makes plan after plan, as if each were carried out at once, until nothing changes any more or the rounds are
// over. It returns the rows then, and why each unit is where it is.
func conclude(in Input, rounds int) ([]daemon.Record, map[daemon.Unit]string) {
	rows, why := rowsOf(in.Units), map[daemon.Unit]string{}
	in.Commands = slices.Clone(in.Commands)
	for range rounds {
		in.Units = rows.list
		p := Make(in)
		changed := len(p.Decisions) > 0
		for i := range p.Decisions {
			rows.apply(&p.Decisions[i], in.Now)
			why[p.Decisions[i].Unit] = p.Decisions[i].Reason.String()
		}
		for i := range p.Unplaced {
			why[p.Unplaced[i].Unit] = p.Unplaced[i].String()
		}
		for _, a := range p.Answers {
			i := slices.IndexFunc(in.Commands, func(c daemon.Command) bool { return c.ID == a.ID })
			changed = changed || a.Done || in.Commands[i].Result != a.Result
			if in.Commands[i].Result = a.Result; a.Done {
				in.Commands = slices.Delete(in.Commands, i, i+1)
			}
		}
		if !changed {
			break
		}
	}
	return rows.list, why
}

// rows is a copy of units' rows to which decisions are applied.
type rows struct {
	list []daemon.Record
	at   map[daemon.Unit]int
}

func rowsOf(units []daemon.Record) rows {
	r := rows{slices.Clone(units), make(map[daemon.Unit]int, len(units))}
	for i := range r.list {
		r.at[r.list[i].Unit] = i
	}
	return r
}

// apply changes the row of a decision, as if it were carried out and the node had done its part.
func (r *rows) apply(d *Decision, now time.Time) {
	i, ok := r.at[d.Unit]
	if !ok {
		i = len(r.list)
		r.list, r.at[d.Unit] = append(r.list, daemon.Record{Unit: d.Unit, State: daemon.Unassigned, Since: now}), i
	}
	row := &r.list[i]
	switch d.Step {
	case daemon.Assign:
		row.State, row.Holder, row.Generation = daemon.Active, d.To, row.Generation+1
	case daemon.Revoke:
		row.State, row.Since = daemon.Deleted, now
	case "":
		row.Retired = d.Retired
	}
}

// Standing returns the standing commands that are in force, in the order of their submission.
func (p *Plan) Standing() []daemon.Command { return p.standing }
