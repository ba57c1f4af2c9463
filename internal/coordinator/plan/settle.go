package plan

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// membership is what the rows say about joins and leaves of the last settle window.
type membership struct {
	// burst is set while so many nodes join or leave at once that placing waits for the rest of them.
	burst bool
	// unsettled is the reason why nothing is moved now; empty if the membership is settled.
	unsettled string
	// at is when the joins and leaves so far are a settle window old; zero if they are.
	at time.Time
}

// mixedWindows is for how many settle windows after the newest join or leave nodes with different versions count as a
// rollout that goes on. It covers the pauses between the steps of a rollout, and lets a cluster that stays mixed
// become even all the same.
const mixedWindows = 60

// readMembership finds joins and leaves by the store's stamps. A stamp that lies ahead counts as old: a clock that was
// set back then delays nothing.
func readMembership(in *Input) membership {
	var m membership
	if in.SettleWindow <= 0 {
		return m
	}
	var newest time.Time
	joined, left, live := 0, 0, 0
	version, mixed, known := "", false, false
	var holders map[node.Incarnation]bool
	note := func(stamp time.Time) bool {
		if stamp.After(in.Now) {
			return false
		}
		if stamp.After(newest) {
			newest = stamp
		}
		return in.Now.Sub(stamp) < in.SettleWindow
	}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		if !n.present() {
			if n.Member.EndedAt.IsZero() {
				m.unsettled = "a node was lost" // judged just now: its row says so only after this plan
			} else if note(n.Member.EndedAt) && n.Member.EndReason == string(node.Shutdown) {
				left++
			}
			continue
		}
		if note(n.Member.RegisteredAt) {
			joined++
		}
		switch n.State {
		case node.Live:
			live++
		case node.Draining:
			if holders == nil {
				holders = holdersOf(in.Units)
			}
			if holders[n.Member.Incarnation] { // a node that stays without units is not leaving
				left++
			}
		case node.Late: // soon live or dead. A deaf node may stay so for days; once its units have left, it changes no loads
			m.unsettled = n.Member.Name + " is late"
		}
		mixed = mixed || known && n.Member.Version != version
		version, known = n.Member.Version, true
	}
	m.burst = isBurst(joined, live) || isBurst(left, live+left)
	window, why := in.SettleWindow, "nodes joined or left"
	if mixed {
		window, why = mixedWindows*in.SettleWindow, "nodes run different versions"
	}
	if end := newest.Add(window); !newest.IsZero() && end.After(in.Now) {
		m.at = newest.Add(in.SettleWindow)
		if m.unsettled == "" {
			m.unsettled, m.at = why, end
		}
	}
	return m
}

// holdersOf returns the processes that hold units.
func holdersOf(units []daemon.Record) map[node.Incarnation]bool {
	out := map[node.Incarnation]bool{}
	for i := range units {
		if r := &units[i]; !r.State.IsFree() {
			out[r.Holder.Incarnation] = true
		}
	}
	return out
}

// isBurst reports whether that many joins or leaves are a burst: at least two, and more than half of all nodes. One node
// that restarts, or a rollout that goes on node by node, delays no placement.
func isBurst(changed, nodes int) bool { return changed >= 2 && 2*changed > nodes }

// waits reports whether a free unit waits for the end of a burst. It waits for at most one settle window after it became
// free.
func (p *planner) waits(row *daemon.Record) bool {
	if !p.membership.burst {
		return false
	}
	free := p.in.Now.Sub(row.Since)
	if free < 0 || free >= p.in.SettleWindow {
		return false
	}
	p.dueAt(row.Since.Add(p.in.SettleWindow))
	p.dueAt(p.membership.at)
	return true
}

// dueAt notes that the plan may be another one at the given time, although nothing changes until then.
func (p *planner) dueAt(at time.Time) {
	if at.After(p.in.Now) && (p.due.IsZero() || at.Before(p.due)) {
		p.due = at
	}
}
