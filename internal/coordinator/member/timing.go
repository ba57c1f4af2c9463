package member

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// The nodes of a cluster may have different timings: a rolling restart changes them one node at a time. The holder
// of a term, a row or a unit believes in its own durations, so nobody may apply shorter ones to it. Each row
// carries its process's durations, and a process never changes them: a restart with others is another incarnation.
//
// An observer waits for the longer of its own duration and the holder's. The holder's is what safety needs. The
// observer's own is for peace: a node with a heartbeat of 15 s hears of a lease of 5 s too rarely to judge it. So
// while timings are mixed, the bounds are those of the slower.
//
// Example: a rolling restart goes from a lease of 60 s to one of 5 s. A still has 60 s and leads; B and C have 5 s. A
// is cut off from the store, and believes in its term for most of a minute. If B waited for its own 5 s, both would
// lead. It waits for 60 s, because A's row says so.
//
// If the holder's durations are not known, because its row was deleted, the longest ones known count.

// timings are the durations of the cluster's processes, this one excepted.
type timings struct {
	of map[node.Incarnation]knownTiming
	// longest has the longest of each duration of all known processes, this one included.
	longest lease.Timing
}

// knownTiming is the durations of one process.
type knownTiming struct {
	node.Timing               // zero if the row of the process is missing and was never seen
	missing     lease.Instant // since when no list has shown its row; 0 = the newest one did
}

// noteTimings notes the durations in a list of all rows. A process whose row is missing is remembered for as long
// as it may hold something. The holder of the term that was known before the list was asked for may be missing too.
func (m *Member) noteTimings(now lease.Instant, rows []node.Member) {
	if len(m.timings.of) == 0 {
		m.timings.of = make(map[node.Incarnation]knownTiming, len(rows))
	}
	known := m.timings.of
	for i := range rows {
		known[rows[i].Incarnation] = knownTiming{Timing: rows[i].Timing}
	}
	if leader := m.election.seen.Leader.Incarnation; leader != "" && !m.knowsTimings(leader) {
		known[leader] = knownTiming{}
	}
	mixed := false
	m.timings.longest = m.t
	own := m.t.Shared()
	for _, k := range known {
		if k.Timing != own {
			m.timings.longest = m.timings.longest.AtLeast(k.Timing)
			mixed = mixed || k.Timing != (node.Timing{})
		}
	}
	m.noteMissing(now, rows)
	if mixed {
		m.clock.ExtendWindow(clockWindow(m.timings.longest) + m.t.ClockStep)
	}
}

// noteMissing notes which of the processes with known durations have no row, and forgets those that can hold nothing any more.
func (m *Member) noteMissing(now lease.Instant, rows []node.Member) {
	known := m.timings.of
	if len(known) == len(rows) { // every row is known, so every known process has a row
		return
	}
	listed := make(map[node.Incarnation]bool, len(rows))
	for i := range rows {
		listed[rows[i].Incarnation] = true
	}
	for inc, k := range known {
		switch {
		case listed[inc]:
		case k.missing == 0:
			k.missing = now
			known[inc] = k
		case now.Sub(k.missing) >= 2*max(k.NodeRegistrationTTL, m.t.NodeRegistrationTTL) && inc != m.election.seen.Leader.Incarnation:
			delete(known, inc)
		}
	}
}

// clockWindow returns the longest time that a node with these timings measures by the store's clock.
func clockWindow(t lease.Timing) time.Duration {
	return max(t.NodeRegistrationTTL, t.ForceAfter(t.DrainTimeout), t.AcknowledgeTimeout)
}

// knowsTimings reports whether this node knows the durations of a process, or has looked for them in vain.
func (m *Member) knowsTimings(inc node.Incarnation) bool {
	_, ok := m.timings.of[inc]
	return ok || inc == m.cfg.Node.Incarnation
}

// holderTiming returns the durations in which a process believes; the longest ones known if its own are unknown.
func (m *Member) holderTiming(inc node.Incarnation) node.Timing {
	if inc == m.cfg.Node.Incarnation {
		return m.t.Shared()
	}
	if t := m.timings.of[inc].Timing; t != (node.Timing{}) {
		return t
	}
	return m.timings.longest.Shared()
}

// timingsFor returns the timings by which this node judges a process: the longer of its own and the holder's.
func (m *Member) timingsFor(inc node.Incarnation) lease.Timing {
	t, more := m.holderTiming(inc), m.excess(inc)
	t.LeaseDuration += more
	t.NodeRegistrationTTL += more
	return m.t.AtLeast(t)
}

// excess returns how much longer than the holder's own durations this node must wait for it by the store's clock: a
// step may go undetected here that the holder's margin does not cover.
func (m *Member) excess(inc node.Incarnation) time.Duration {
	return max(m.t.ClockStep-m.holderTiming(inc).ClockStep, 0)
}

// assignTimeouts returns the acknowledge and drain timeouts for a unit that the process gets. A process with other
// timings than this node gets at least the time that its heartbeats need.
func (m *Member) assignTimeouts(inc node.Incarnation, acknowledge, drain time.Duration) (time.Duration, time.Duration) {
	theirs := m.holderTiming(inc)
	if theirs == m.t.Shared() {
		return acknowledge, drain
	}
	t := m.t.AtLeast(theirs)
	work := max(t.MinWorkTime, t.Wakeup)
	least := func(d time.Duration) time.Duration { return d + t.Margin(2*d) }
	return max(acknowledge, least(t.Late()+t.StopTimeout+work)), max(drain, least(t.Late()+work))
}

// startsPerTimeout is how many units one node, and startsOfAll how many the whole cluster, is expected to start within one
// acknowledge timeout. The store, which writes each start, is the same for all nodes.
const (
	startsPerTimeout = 125
	startsOfAll      = 1000
)

// backlog is how many units the nodes have to start.
type backlog struct {
	of  map[node.Incarnation]int
	sum int
}

// countBacklog counts the units that the snapshot shows as assigned and not acknowledged, and those that the plan assigns.
func (m *Member) countBacklog(decisions []plan.Decision) {
	b := backlog{of: map[node.Incarnation]int{}}
	for i := range m.leader.snap.Units {
		if r := &m.leader.snap.Units[i]; r.State == daemon.Assigning {
			b.of[r.Holder.Incarnation]++
			b.sum++
		}
	}
	for i := range decisions {
		if d := &decisions[i]; d.Step == daemon.Assign {
			b.of[d.To.Incarnation]++
			b.sum++
		}
	}
	m.leader.backlog = b
}

// acknowledgeWithin returns the acknowledge timeout for a unit that the process gets. It grows with what is to be started:
// otherwise the process would postpone what waits, with an event and a commit for each unit and try. It grows no further
// than a process itself may postpone.
func (m *Member) acknowledgeWithin(inc node.Incarnation, timeout time.Duration) time.Duration {
	b := &m.leader.backlog
	times := 1 + max((b.of[inc]-1)/startsPerTimeout, (b.sum-1)/startsOfAll)
	return timeout * time.Duration(min(times, mostPostponed))
}
