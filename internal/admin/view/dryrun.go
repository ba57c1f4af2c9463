package view

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/plan"
)

// Scenario is a change of the nodes that nobody has made; see plan.Scenario.
type Scenario struct {
	Drain, Lose []string
	Add         int
	Like        string
	// Rebalance says whether the leader moves running units to make loads even.
	Rebalance bool
}

// DryRun is where everything would be in a scenario.
type DryRun struct{ plan.DryRun }

// Try returns what the leader would do in a scenario.
func Try(s *daemon.Snapshot, r Reader, c Scenario) (DryRun, error) {
	v := &viewer{Snapshot: s, Reader: r.withCluster(s)}
	in := v.planInput()
	if c.Rebalance {
		in.MaxMoves = plan.DefaultMaxMoves
	}
	out, err := plan.Try(in, plan.Scenario{Drain: c.Drain, Lose: c.Lose, Add: c.Add, Like: c.Like})
	return DryRun{out}, err
}

// Table writes what would move, what would run nowhere, and what the nodes would hold.
func (d DryRun) Table(w io.Writer, _ bool) error {
	if len(d.Moves) == 0 {
		fmt.Fprintln(w, "no unit would move")
	} else {
		t := &Table{Head: []string{"UNIT", "FROM", "TO", "WHY"}}
		for _, m := range d.Moves {
			t.Add(m.Unit.String(), cmp.Or(m.From, "-"), cmp.Or(m.To, "nowhere"), m.Why)
		}
		if err := t.Write(w); err != nil {
			return err
		}
	}
	if len(d.Unplaced) > 0 {
		var b strings.Builder
		b.WriteString("\n")
		for _, m := range d.Unplaced {
			b.WriteString(Wrap(fmt.Sprintf("! %s would run nowhere: %s", m.Unit, Line(m.Why)), columns(w)) + "\n")
		}
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	t := &Table{Head: []string{"NODE", "CHANGE", "UNITS", "LOAD"}}
	for _, n := range d.Nodes {
		t.Add(n.Node, cmp.Or(n.Change, "-"), change(strconv.Itoa(n.UnitsBefore), strconv.Itoa(n.UnitsAfter)), change(load(n.LoadBefore), load(n.LoadAfter)))
	}
	fmt.Fprintln(w)
	return t.Write(w)
}

// change writes a number before and after, or once if it stays.
func change(before, after string) string {
	if before == after {
		return after
	}
	return before + " -> " + after
}

func load(l float64) string { return strconv.FormatFloat(l, 'f', 1, 64) }
