package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Scenario is a change of the nodes that nobody has made.
type Scenario struct {
	// Drain and Lose are names of nodes: those that are emptied in order, and those that are dead at once.
	Drain, Lose []string
	// Add is how many nodes are added. They have and advertise what the node named Like does; if none is named, what
	// the first live node by name does.
	Add  int
	Like string
}

// DryRun is where everything would be in a scenario, once every hand-over has succeeded and loads are even.
type DryRun struct {
	Moves    []Move     `json:"moves"`    // sorted by unit
	Unplaced []Move     `json:"unplaced"` // units that would run nowhere, those that do so now included
	Nodes    []NodeLoad `json:"nodes"`    // sorted by name
}

// NodeLoad is a node's part in a dry run. A load is the weight of the units that it holds by its capacity.
type NodeLoad struct {
	Node        string  `json:"node"`
	Change      string  `json:"change,omitempty"` // "drain", "lose" or "add"
	UnitsBefore int     `json:"units_before"`
	UnitsAfter  int     `json:"units_after"`
	LoadBefore  float64 `json:"load_before"`
	LoadAfter   float64 `json:"load_after"`
}

// dryRunRounds bounds the plans of a dry run. Loads are even after far fewer, because one plan may move all units.
const dryRunRounds = 50

// Try returns what the leader would do in a scenario, by the same plans. It waits for no settle window. Hand-overs and
// starts that are under way count as done. MaxMoves bounds the leader's rounds, not the outcome: only 0 makes a difference.
func Try(in Input, s Scenario) (DryRun, error) {
	if err := s.check(in.Nodes); err != nil {
		return DryRun{}, err
	}
	before := in.Units
	in.SettleWindow = 0
	if in.MaxMoves > 0 {
		in.MaxMoves = max(len(in.Units), 1) // all rounds in one
	}
	added, err := s.added(in)
	if err != nil {
		return DryRun{}, err
	}
	lost := map[node.Incarnation]bool{}
	present := slices.Clone(added)
	for _, n := range in.Nodes {
		if slices.Contains(s.Lose, n.Member.Name) {
			lost[n.Member.Incarnation] = true
			continue
		}
		present = append(present, n)
	}
	all := slices.Concat(in.Nodes, added)
	in.Nodes, in.Units, in.Commands = present, slices.Clone(in.Units), slices.Clone(in.Commands)
	for i := range in.Units {
		switch r := &in.Units[i]; {
		case r.State.IsFree():
		case lost[r.Holder.Incarnation] || r.State == daemon.Revoking:
			r.State, r.Since = daemon.Deleted, in.Now
		case r.State == daemon.Assigning:
			r.State = daemon.Active
		}
	}
	for _, name := range s.Drain {
		in.Commands = append(in.Commands, daemon.Command{
			ID: "dry-run-" + name, Kind: daemon.CommandDrain, CreatedAt: in.Now, Args: daemon.CommandArgs{Node: name}.Encode(),
		})
	}
	after, why := conclude(in, dryRunRounds)
	out := moved(before, after, why)
	specs := Make(in).Specs
	out.Nodes = loads(all, before, after, s, specs)
	return out, nil
}

// check refuses names that are not those of present nodes.
func (s Scenario) check(nodes []Node) error {
	if s.Add < 0 {
		return fmt.Errorf("%d nodes cannot be added", s.Add)
	}
	names := slices.Concat(s.Drain, s.Lose)
	if s.Like != "" {
		names = append(names, s.Like)
	}
	for _, name := range names {
		if !slices.ContainsFunc(nodes, func(n Node) bool { return n.Member.Name == name && n.present() }) {
			return &UnknownNodeError{name}
		}
	}
	for i, name := range s.Drain {
		if slices.Contains(s.Lose, name) || slices.Contains(s.Drain[:i], name) {
			return fmt.Errorf("node %q is named twice", name)
		}
	}
	for i, name := range s.Lose {
		if slices.Contains(s.Lose[:i], name) {
			return fmt.Errorf("node %q is named twice", name)
		}
	}
	return nil
}

// UnknownNodeError says that no present node has the name.
type UnknownNodeError struct{ Name string }

// Error names the node.
func (e *UnknownNodeError) Error() string { return fmt.Sprintf("there is no node %q", e.Name) }

// added returns the nodes that are added.
func (s Scenario) added(in Input) ([]Node, error) {
	if s.Add == 0 {
		return nil, nil
	}
	var like *Node
	for i := range in.Nodes {
		n := &in.Nodes[i]
		fits := s.Like == "" && n.State == node.Live || s.Like != "" && n.Member.Name == s.Like && n.present()
		if fits && (like == nil || n.Member.Name < like.Member.Name) {
			like = n
		}
	}
	if like == nil {
		return nil, errors.New("there is no live node that the added ones could be like")
	}
	out := make([]Node, 0, s.Add)
	for i := 1; len(out) < s.Add; i++ {
		name := fmt.Sprintf("new-%d", i)
		if slices.ContainsFunc(in.Nodes, func(n Node) bool { return n.Member.Name == name }) {
			continue
		}
		n := *like
		n.State = node.Live
		n.Member.Identity = node.Identity{Name: name, ID: node.ID(name), Incarnation: node.Incarnation(name)}
		n.Member.State, n.Member.LeaderState = node.Live, ""
		n.Member.RegisteredAt, n.Member.FirstRegisteredAt = in.Now, in.Now
		out = append(out, n)
	}
	return out, nil
}

// moved compares the rows before and after.
func moved(before, after []daemon.Record, why map[daemon.Unit]string) DryRun {
	held := map[daemon.Unit]node.Identity{}
	for i := range before {
		if r := &before[i]; !r.State.IsFree() {
			held[r.Unit] = r.Holder
		}
	}
	out := DryRun{Moves: []Move{}, Unplaced: []Move{}}
	for i := range after {
		r := &after[i]
		from := held[r.Unit]
		m := Move{Unit: r.Unit, From: from.Name, Why: cmp.Or(why[r.Unit], r.Reason)}
		switch {
		case !r.State.IsFree():
			m.To = r.Holder.Name
			if r.Holder.Incarnation != from.Incarnation {
				out.Moves = append(out.Moves, m)
			}
		case from != (node.Identity{}):
			out.Moves = append(out.Moves, m)
			fallthrough
		default:
			if !r.Retired {
				out.Unplaced = append(out.Unplaced, m)
			}
		}
	}
	for _, list := range [][]Move{out.Moves, out.Unplaced} {
		slices.SortFunc(list, func(a, b Move) int { return a.Unit.Compare(b.Unit) })
	}
	return out
}

// loads returns what each node holds before and after.
func loads(nodes []Node, before, after []daemon.Record, s Scenario, specs Specs) []NodeLoad {
	at := map[node.Incarnation]int{}
	var out []NodeLoad
	var capacity []float64
	for i := range nodes {
		n := &nodes[i]
		if !n.present() {
			continue
		}
		load := NodeLoad{Node: n.Member.Name}
		switch {
		case slices.Contains(s.Drain, load.Node):
			load.Change = "drain"
		case slices.Contains(s.Lose, load.Node):
			load.Change = "lose"
		case i >= len(nodes)-s.Add:
			load.Change = "add"
		}
		at[n.Member.Incarnation] = len(out)
		out, capacity = append(out, load), append(capacity, float64(max(n.Member.Capacity, 1)))
	}
	count := func(rows []daemon.Record, add func(l *NodeLoad, load float64)) {
		for i := range rows {
			r := &rows[i]
			if k, ok := at[r.Holder.Incarnation]; ok && !r.State.IsFree() {
				spec, _ := specs.Of(r.Unit.Daemon)
				add(&out[k], float64(max(spec.Weight, 1))/capacity[k])
			}
		}
	}
	count(before, func(l *NodeLoad, load float64) { l.UnitsBefore++; l.LoadBefore += load })
	count(after, func(l *NodeLoad, load float64) { l.UnitsAfter++; l.LoadAfter += load })
	slices.SortStableFunc(out, func(a, b NodeLoad) int { return cmp.Compare(a.Node, b.Node) })
	return out
}
