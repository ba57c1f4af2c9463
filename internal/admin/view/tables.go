package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// Table writes an overview of the cluster. With wide it adds nodes, units and subscriptions of the
// outbox.
func (s Status) Table(w io.Writer, wide bool) error {
	limit := columns(w)
	var b strings.Builder
	line := func(format string, args ...any) { b.WriteString(Wrap(fmt.Sprintf(format, args...), limit) + "\n") }
	line("CLUSTER %s    LEADER %s    STORE %s, event %d", Line(s.Cluster), strings.Join(s.leaderCells(), "    "), Line(s.Store.Kind), s.Store.Head)
	line("NODES   %s       DAEMONS %s%s%s", s.countNodes(), s.countUnits(), s.Outbox.cell(), s.Queues.cell())
	for _, o := range s.Orders {
		line("~ %s %s", Line(o.Subject), Line(o.text(s.At.Time)))
	}
	for _, n := range s.Attention {
		text := "! " + Line(n.Text)
		if n.Action != "" {
			text += "    -> " + Line(n.Action)
		}
		line("%s", text)
	}
	if _, err := io.WriteString(w, b.String()); err != nil || !wide {
		return err
	}
	io.WriteString(w, "\n")
	if err := s.NodeTable(true).Write(w); err != nil {
		return err
	}
	io.WriteString(w, "\n")
	if err := s.UnitTable(true).Write(w); err != nil || s.Outbox == nil || len(s.Outbox.Subscriptions) == 0 {
		return err
	}
	io.WriteString(w, "\n")
	return OutboxTable(s.Outbox.Subscriptions, false).Write(w)
}

// Facts returns the overview of the cluster as short texts, the most important first. The notices are not part of it.
func (s Status) Facts() []string {
	facts := append(s.leaderCells(), "NODES "+s.countNodes(), "DAEMONS "+s.countUnits())
	facts[0] = "LEADER " + facts[0]
	for _, cell := range []string{s.Queues.cell(), s.Outbox.cell()} {
		if cell = strings.TrimSpace(cell); cell != "" {
			facts = append(facts, cell)
		}
	}
	return facts
}

// leaderCells returns who leads, and if somebody does, what is left of the lease.
func (s Status) leaderCells() []string {
	l := s.Leader
	if l == nil {
		return []string{"nobody"}
	}
	left := l.ExpiresAt.Sub(s.At.Time)
	lease := "LEASE " + Exact(left) + " left"
	if l.Expired {
		lease = "LEASE expired " + Exact(-left) + " ago"
	}
	return []string{fmt.Sprintf("%s (term %d, %s)", Line(l.Node), l.TermOrdinal, Short(max(s.At.Sub(l.ElectedAt.Time), 0))), lease}
}

// countNodes writes "2 live, 1 late".
func (s Status) countNodes() string {
	n := map[node.State]int{}
	for _, m := range s.Nodes {
		n[m.State]++
	}
	return counts(n, []node.State{node.Live, node.Late, node.Deaf, node.Draining, node.Removed})
}

func (s Status) countUnits() string {
	n := map[daemon.State]int{}
	for _, u := range s.Daemons {
		n[u.State]++
	}
	return counts(n, []daemon.State{daemon.Active, Crashing, daemon.Assigning, daemon.Revoking, Paused, daemon.Unassigned, daemon.Deleted})
}

func counts[S ~string](n map[S]int, order []S) string {
	var out []string
	for _, s := range order {
		if n[s] > 0 {
			out = append(out, fmt.Sprintf("%d %s", n[s], s))
		}
		delete(n, s)
	}
	rest := 0
	for _, k := range n {
		rest += k
	}
	if rest > 0 {
		out = append(out, fmt.Sprintf("%d in an unknown state", rest))
	}
	return cmp.Or(strings.Join(out, ", "), "none")
}

// NodeTable lists the nodes.
func (s Status) NodeTable(wide bool) *Table {
	t := &Table{Head: []string{"NAME", "STATE", "LEADER", "HEARTBEAT", "LOAD", "CAPACITY", "UNITS", "VERSION", "ZONE", "AGE"}}
	if wide {
		t.Head = append(t.Head, "ADDRESS", "ID", "LABELS")
	}
	const before = 2 // columns before that of groups, which only clusters with some have
	groups := slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.Group != "" })
	if groups {
		t.Head = slices.Insert(t.Head, before, "GROUP")
	}
	for _, n := range s.Nodes {
		leader := ""
		if n.Leader && s.Leader != nil {
			leader = "term " + strconv.FormatInt(s.Leader.TermOrdinal, 10)
		}
		state := string(n.State)
		if n.State == node.Live && n.Reason != "" {
			state += ", sick"
		}
		row := []string{
			n.Name, state + n.ordersCell(s.At.Time, wide), leader, Short(max(s.At.Sub(n.LastHeartbeatAt.Time), 0)),
			n.loadCell(), strconv.Itoa(n.Capacity), strconv.Itoa(n.Units),
			n.Version, n.Labels["zone"], Short(max(s.At.Sub(n.RegisteredAt.Time), 0)),
		}
		if wide {
			row = append(row, n.Address, string(n.ID), labels(n.Labels))
		}
		if groups {
			row = slices.Insert(row, before, n.Group)
		}
		t.Add(row...)
	}
	return t
}

// loadCell writes the load, and the limit if there is one: "7 of 10".
func (n Node) loadCell() string {
	text := strconv.FormatFloat(n.Load, 'f', -1, 64)
	if n.MaxWeight > 0 {
		text += " of " + strconv.Itoa(n.MaxWeight)
	}
	return text
}

// ordersCell writes what operators have ordered, to follow the state: ", cordoned". With wide it says since when, by whom
// and why.
func (n Node) ordersCell(now time.Time, wide bool) string {
	out := ""
	for _, o := range n.Orders {
		text := o.text(now)
		if !wide {
			text, _, _ = strings.Cut(text, " ")
		}
		out += ", " + text
	}
	return out
}

func labels(m map[string]string) string {
	out := make([]string, 0, len(m))
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// UnitTable lists the units.
func (s Status) UnitTable(wide bool) *Table {
	t := &Table{Head: []string{"UNIT", "STATE", "NODE", "SINCE", "REASON"}}
	if wide {
		t.Head = []string{"UNIT", "STATE", "NODE", "SINCE", "GENERATION", "FAILURES", "REASON", "ERROR"}
	}
	const before = 4 // columns before those of periodic daemons, which only clusters with some have
	periodic := slices.ContainsFunc(s.Daemons, func(u Unit) bool { return u.Schedule != nil })
	if periodic {
		t.Head = slices.Insert(t.Head, before, "NEXT CALL", "LAST CALL")
	}
	for _, u := range s.Daemons {
		since := ""
		if !u.Since.IsZero() {
			since = Short(max(s.At.Sub(u.Since.Time), 0))
		}
		reason := u.Reason
		if u.State == Crashing {
			reason = u.crashes()
		}
		row := []string{u.Unit.String(), string(u.State), u.Node, since}
		if periodic {
			row = append(row, u.Schedule.next(s.At.Time), u.Schedule.last(s.At.Time))
		}
		if wide {
			row = append(row, strconv.FormatInt(u.Generation, 10), strconv.Itoa(u.Failures), reason, firstLine(u.Error))
		} else {
			row = append(row, reason)
		}
		t.Add(row...)
	}
	return t
}

// Explained is a unit with the reasons for its place.
type Explained struct {
	Unit Unit             `json:"unit"`
	Plan plan.Explanation `json:"plan"`
}

// Table writes why the unit is on its node and where it would be placed.
func (e Explained) Table(w io.Writer, s Status) error {
	u := e.Unit
	var b strings.Builder
	fmt.Fprintf(&b, "%s  generation %d  %s", u.Unit, u.Generation, strings.ToUpper(string(u.State)))
	if u.Node != "" {
		fmt.Fprintf(&b, " on %s", Line(u.Node))
	}
	if !u.Since.IsZero() {
		fmt.Fprintf(&b, " for %s", Exact(max(s.At.Sub(u.Since.Time), 0)))
	}
	b.WriteString("\n")
	if u.Reason != "" {
		fmt.Fprintf(&b, "because: %s\n", Line(u.Reason))
	}
	if len(u.Orders) > 0 {
		fmt.Fprintf(&b, "ordered: %s\n", Line(texts(u.Orders, s.At.Time)))
	}
	if u.Error != "" {
		fmt.Fprintf(&b, "failed %s, last: %s", times(u.Failures), Line(firstLine(u.Error)))
		if left := u.RetryAt.Sub(s.At.Time); left > 0 {
			fmt.Fprintf(&b, "; started again in %s", Exact(left))
		}
		b.WriteString("\n")
	}
	u.Schedule.explain(&b, s.At.Time)
	b.WriteString(e.next() + "\n")
	e.writeDeclared(&b, s)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	t := &Table{Head: []string{"  NODE", "ELIGIBLE", "LOAD", "SCORE", "UNITS", "VERDICT"}}
	for _, r := range e.Plan.Rows {
		eligible := "no"
		score := ""
		if r.Eligible {
			eligible, score = "yes", strconv.FormatFloat(r.Score, 'f', 1, 64)
		}
		t.Add("  "+r.Node.Name, eligible, strconv.FormatFloat(r.Load, 'f', 1, 64), score, strconv.Itoa(r.Units), r.Verdict)
	}
	return t.Write(w)
}

// mostOthers bounds how many nodes with another declaration of a daemon are named.
const mostOthers = 8

// writeDeclared writes which node's spec of the daemon is used and why, and which nodes declare another.
func (e Explained) writeDeclared(b *strings.Builder, s Status) {
	d := e.Plan.Declared
	rank := func(revision int64, first time.Time) string {
		return fmt.Sprintf("revision %d, registered %s ago", revision, Short(max(s.At.Sub(first), 0)))
	}
	if d.By.Name != "" {
		fmt.Fprintf(b, "declared by %s (%s)", Line(d.By.Name), rank(d.Revision, d.FirstRegisteredAt))
		switch d.Same {
		case 0:
		case 1:
			b.WriteString(", by 1 other node the same")
		default:
			fmt.Fprintf(b, ", by %d other nodes the same", d.Same)
		}
		if d.Why != "" {
			b.WriteString("; it counts: " + d.Why)
		}
		b.WriteString("\n")
	}
	for i, o := range d.Others {
		if i == mostOthers {
			fmt.Fprintf(b, "  and %d more, which are not used\n", len(d.Others)-i)
			break
		}
		fmt.Fprintf(b, "  that of %s (%s) is not used: %s\n", Line(o.Node.Name), rank(o.Revision, o.FirstRegisteredAt), Line(o.What))
	}
}

func (e Explained) next() string {
	switch {
	case e.Plan.Next.Name == "":
		return "no node can run it: " + Line(e.Plan.Why.String())
	case e.Plan.Decision != nil && e.Plan.Decision.Step == daemon.Assign:
		return fmt.Sprintf("goes to %s: %s", Line(e.Plan.Next.Name), Line(e.Plan.Why.String()))
	case e.Unit.Node == "":
		return fmt.Sprintf("would go to %s: %s", Line(e.Plan.Next.Name), Line(e.Plan.Why.String()))
	}
	return fmt.Sprintf("if it were free it would go to %s: %s", Line(e.Plan.Next.Name), Line(e.Plan.Why.String()))
}

// TermTable lists terms.
func TermTable(rs []Term) *Table {
	t := &Table{Head: []string{"TERM", "NODE", "ELECTED", "HELD", "ENDED BY", "GAP TO NEXT"}}
	for _, r := range rs {
		gap := ""
		if r.GapSeconds != nil {
			gap = Exact(seconds(*r.GapSeconds))
		}
		t.Add(strconv.FormatInt(r.TermOrdinal, 10), r.Node, stamp(r.ElectedAt.Time), Short(seconds(r.HeldSeconds)), r.EndedBy, gap)
	}
	return t
}

// EventHead is the head of a table of events.
var EventHead = []string{"SEQ", "AT", "KIND", "NODE", "SUBJECT", "REASON"}

// Row writes the event as a row of a table.
func (e Event) Row() []string {
	subject := ""
	switch {
	case !e.Unit.IsZero():
		subject = daemon.Fence{Unit: e.Unit, Generation: e.Generation}.String()
	case e.TermOrdinal != 0:
		subject = "term " + strconv.FormatInt(e.TermOrdinal, 10)
	}
	return []string{strconv.FormatInt(e.Seq, 10), e.At.UTC().Format("2006-01-02T15:04:05.000Z"), string(e.Kind), e.Node, subject, e.Reason}
}

// Only keeps the rows of one node, given by name or ID.
func (e Explained) Only(name string) Explained {
	e.Plan.Rows = slices.DeleteFunc(slices.Clone(e.Plan.Rows), func(r plan.Row) bool {
		return r.Node.Name != name && string(r.Node.ID) != name
	})
	return e
}

// LeaderTable shows the leader, one fact per line.
func (s Status) LeaderTable() *Table {
	t := &Table{Head: []string{"LEADER", "nobody"}}
	l := s.Leader
	if l == nil {
		return t
	}
	ago := func(at Time) string {
		if at.IsZero() {
			return "never"
		}
		return Exact(max(s.At.Sub(at.Time), 0)) + " ago"
	}
	t.Head[1] = l.Node
	t.Add("term", fmt.Sprintf("%d (number %d)", l.TermOrdinal, l.Term))
	t.Add("elected", stamp(l.ElectedAt.Time)+", "+ago(l.ElectedAt))
	left := l.ExpiresAt.Sub(s.At.Time)
	if l.Expired {
		t.Add("lease", "expired "+Exact(-left)+" ago, no other node has taken over")
	} else {
		t.Add("lease", Exact(left)+" left")
	}
	t.Add("last pass", ago(l.LastPassAt))
	t.Add("node id", string(l.NodeID))
	return t
}
