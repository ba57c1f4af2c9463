package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
)

// attention lists what a person should look at, the worst first.
func (v *viewer) attention(s Status) []Notice {
	out := []Notice{}
	add := func(sev severity, subject, do, format string, args ...any) {
		out = append(out, Notice{Severity: sev, Subject: subject, Text: fmt.Sprintf(format, args...), Action: do})
	}
	v.aboutLeader(s, add)
	v.aboutStore(add)
	v.aboutNodes(s, add)
	v.aboutTimings(add)
	v.aboutUnits(s, add)
	v.aboutQueues(s, add)
	for _, verdict := range v.plan.Verdicts {
		if verdict.Node != "" {
			add(warning, verdict.Node, "emitd events --kind ledger.sick", "%s is sick: %s; it gets units only if no other node can take them", verdict.Node, verdict.Reason)
			continue
		}
		add(warning, string(verdict.Daemon), "emitd daemon explain "+string(verdict.Daemon), "%s is quarantined: it %s; one unit is tried again at %s", verdict.Daemon, verdict.Reason, verdict.Until.UTC().Format(time.RFC3339))
	}
	for _, d := range v.plan.Disagreements {
		if d.Winner.Name == "" {
			add(warning, string(d.Daemon), "", "%s declares %s in a way that cannot be planned: %s", d.Loser.Name, d.Daemon, d.What)
			continue
		}
		add(warning, string(d.Daemon), "emitd daemon explain "+string(d.Daemon), "%s and %s declare %s differently (%s); %s wins: %s", d.Winner.Name, d.Loser.Name, d.Daemon, d.What, d.Winner.Name, d.Why)
	}
	sortNotices(out)
	return out
}

// addNotices adds the notices about a part of the status that was read later.
func (s *Status) addNotices(addAll func(add notify)) {
	addAll(func(sev severity, subject, do, format string, args ...any) {
		s.Attention = append(s.Attention, Notice{Severity: sev, Subject: subject, Text: fmt.Sprintf(format, args...), Action: do})
	})
	sortNotices(s.Attention)
}

// sortNotices puts the worst first.
func sortNotices(all []Notice) {
	slices.SortStableFunc(all, func(a, b Notice) int { return cmp.Compare(a.Severity, b.Severity) })
}

type notify func(sev severity, subject, do, format string, args ...any)

// passesMissed is how many heartbeat intervals a leader may go without a pass before there is a notice.
// After three failed passes a leader resigns by itself.
const passesMissed = 4

func (v *viewer) aboutLeader(s Status, add notify) {
	l := s.Leader
	switch {
	case len(s.Nodes) == 0:
		add(failing, "cluster", "emitd serve --store …", "no node is registered in this store")
	case l == nil && v.Term.Number == 0:
		add(failing, "leader", "emitd node ls", "there has been no leader yet%s", v.candidates(s))
	case l == nil:
		add(failing, "leader", "emitd leader history", "there is no leader since %s resigned term %d%s", v.Term.Leader.Name, v.Term.Ordinal, v.candidates(s))
	case l.Expired:
		add(failing, "leader", "emitd leader history", "the lease of %s expired %s ago and no other node has taken over%s",
			l.Node, Exact(v.age(l.ExpiresAt.Time)), v.candidates(s))
	default:
		since := v.age(maxTime(l.LastPassAt.Time, l.ElectedAt.Time))
		if limit := passesMissed*v.Timing.HeartbeatInterval + v.Timing.SettleWindow; since > limit {
			add(failing, "leader", "emitd leader resign", "%s leads but has not finished a pass for %s: nothing is assigned", l.Node, Exact(since))
		}
	}
}

// aboutStore adds a notice if the store makes one change at a time and is too slow for the timings and
// the number of nodes. It shows the figures of the node for which the store is slowest. Dead nodes do not
// count: they change nothing, and their rows only wait to be removed.
func (v *viewer) aboutStore(add notify) {
	nodes, slowest := 0, node.Member{}
	for _, m := range v.Nodes {
		if !m.Present() || m.ExitProven || v.age(m.LastHeartbeatAt) >= v.Timing.NodeRegistrationTTL {
			continue
		}
		if nodes++; m.ChangeTime > slowest.ChangeTime {
			slowest = m
		}
	}
	if slow := member.CheckStoreSpeed(v.Timing, nodes, slowest.ChangeTime); slow != nil {
		add(warning, "store", "emitd doctor", "the store is too slow for the timings, measured by %s: %s", slowest.Name, slow)
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// candidates returns a text if no node campaigns for leadership.
func (v *viewer) candidates(s Status) string {
	for _, n := range s.Nodes {
		if n.State == node.Live && !n.NeverLead {
			return ""
		}
	}
	return ": no live node campaigns (never_lead, late or draining)"
}

func (v *viewer) aboutNodes(s Status, add notify) {
	if dead, of, mass := plan.MassDeath(v.planned, plan.DefaultBrakePercent); mass {
		add(failing, "nodes", "emitd events --kind brake.held", "%d of %d nodes look dead at once: the leader takes nothing from them for another %s, unless their end is proven; emitd leader release ends the wait", dead, of, v.Timing.NodeRegistrationTTL)
	}
	names := map[string]int{}
	for _, n := range s.Nodes {
		if n.State == node.Removed {
			continue
		}
		age := v.age(n.LastHeartbeatAt.Time)
		switch n.State {
		case node.Late:
			add(warning, n.Name, "emitd events --kind node.late", "%s late: last heartbeat %s ago (interval %s); %s", n.Name, Exact(age), v.Timing.HeartbeatInterval, v.removal(age))
		case node.Deaf:
			add(warning, n.Name, "emitd doctor", "%s deaf: its heartbeats arrive but it hears no reply; its units are revoked", n.Name)
		}
		if names[n.Name]++; names[n.Name] == 2 {
			add(warning, n.Name, "emitd node ls -o wide", "two nodes are called %s: give each its own node.name", n.Name)
		}
	}
}

// aboutQueues adds a notice if no node could open the object store. Without it no node advertises queues,
// so no unit is late.
func (v *viewer) aboutQueues(s Status, add notify) {
	if !v.Queues {
		return
	}
	live := slices.DeleteFunc(slices.Clone(s.Nodes), func(n Node) bool { return n.State == node.Removed })
	serves := func(n Node) bool { return slices.Contains(n.Kinds, queue.Kind) }
	if len(live) > 0 && !slices.ContainsFunc(live, serves) {
		add(failing, "queues", "emitd doctor", "no node serves queues: none has opened the object store yet; the log of each node says why")
	}
}

func (v *viewer) removal(age time.Duration) string {
	if left := v.Timing.NodeRegistrationTTL - age; left > 0 {
		return "removed in " + Exact(left) + " unless it returns"
	}
	return "due to be removed"
}

// aboutUnits adds at most one notice of each kind for each daemon.
func (v *viewer) aboutUnits(s Status, add notify) {
	for rest := s.Daemons; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Daemon == rest[0].Daemon {
			n++
		}
		group := rest[:n]
		rest = rest[n:]
		v.addUnassigned(group, add)
		v.crashing(group, add)
		for i := range group {
			v.overdue(&group[i], add)
		}
	}
}

// addUnassigned adds a notice about unassigned units. For those that no node can take, it gives the reason
// of the one that has waited longest.
func (v *viewer) addUnassigned(group []Unit, add notify) {
	var free []Unit
	for i := range group {
		if group[i].State == daemon.Unassigned {
			free = append(free, group[i])
		}
	}
	if len(free) == 0 {
		return
	}
	worst := slices.MinFunc(free, func(a, b Unit) int {
		if a.nowhere != b.nowhere {
			return map[bool]int{true: -1, false: 1}[a.nowhere]
		}
		return a.Since.Compare(b.Since.Time)
	})
	id, which := string(worst.Daemon), "unassigned"
	if len(group) > 1 {
		which = fmt.Sprintf("%d of %d unassigned", len(free), len(group))
	}
	since := ""
	if !worst.Since.IsZero() {
		since = " " + Short(v.age(worst.Since.Time))
	}
	sev := warning
	if worst.nowhere {
		sev = failing
	}
	add(sev, id, explain(&worst), "%s %s%s: %s", id, which, since, worst.Reason)
}

// overdue adds a notice about a unit that has been in a state for too long, or whose state is unknown.
func (v *viewer) overdue(u *Unit, add notify) {
	age := v.age(u.Since.Time)
	switch {
	case !u.record.State.Known():
		add(warning, string(u.Daemon), "emitd version", "%s is in state %q, which this version does not know and does not change", u.Unit, u.record.State)
	case u.State == daemon.Assigning && age > cmp.Or(u.record.AcknowledgeTimeout, v.Timing.AcknowledgeTimeout):
		add(failing, string(u.Daemon), explain(u), "%s was assigned to %s %s ago and is not acknowledged", u.Unit, u.Node, Exact(age))
	case u.State == daemon.Revoking:
		drain := cmp.Or(u.record.DrainTimeout, v.Timing.DrainTimeout)
		if age > drain {
			add(warning, string(u.Daemon), explain(u), "%s drains on %s for %s, longer than its %s; %s", u.Unit, u.Node, Exact(age), drain, v.force(drain, age))
		}
	}
}

// explain returns the command that explains where a unit is.
func explain(u *Unit) string { return "emitd daemon explain " + u.Unit.String() }

// crashes describes how a unit fails: "14 restarts, last: exit status 1".
func (u Unit) crashes() string {
	return fmt.Sprintf("%d restarts, last: %s", u.Failures, firstLine(u.Error))
}

// crashing adds a notice about the units of a daemon whose runs fail again and again, with the worst of
// them.
func (v *viewer) crashing(group []Unit, add notify) {
	var loops []Unit
	for i := range group {
		if group[i].State == Crashing {
			loops = append(loops, group[i])
		}
	}
	if len(loops) == 0 {
		return
	}
	worst := slices.MaxFunc(loops, func(a, b Unit) int { return cmp.Compare(a.Failures, b.Failures) })
	which := worst.Unit.String() + " is"
	if len(loops) > 1 {
		which = fmt.Sprintf("%d of %d units of %s are", len(loops), len(group), worst.Daemon)
	}
	since, where := "", ", on no node: "+worst.Reason
	if !worst.FailingSince.IsZero() {
		since = " for " + Short(v.age(worst.FailingSince.Time))
	}
	if worst.Node != "" {
		where = " on " + worst.Node
		if left := worst.RetryAt.Sub(v.Now); left > 0 {
			where += ", started again in " + Exact(left)
		}
	}
	add(failing, string(worst.Daemon), explain(&worst), "%s crashing%s (%s)%s", which, since, worst.crashes(), where)
}

func (v *viewer) force(drain, age time.Duration) string {
	if left := v.Timing.ForceAfter(drain) - age; left > 0 {
		return "forced in " + Exact(left)
	}
	return "due to be forced"
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
