package view

import (
	"fmt"
	"slices"
	"strings"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// aboutTimings adds a notice while the nodes have different timings: which nodes have which.
func (v *viewer) aboutTimings(add notify) {
	var order []node.Timing
	names := map[node.Timing][]string{}
	for _, m := range v.Nodes {
		if !m.Present() || m.Timing == (node.Timing{}) {
			continue
		}
		if names[m.Timing] == nil {
			order = append(order, m.Timing)
		}
		names[m.Timing] = append(names[m.Timing], m.Name)
	}
	if len(order) < 2 {
		return
	}
	slices.SortStableFunc(order, func(a, b node.Timing) int { return int(b.LeaseDuration - a.LeaseDuration) })
	parts := make([]string, len(order))
	for i, t := range order {
		slices.Sort(names[t])
		parts[i] = timingName(t) + " on " + upTo8(names[t])
	}
	add(warning, "timings", "", "nodes have different timings: %s; until all have the same, the bounds are those of the slowest", strings.Join(parts, "; "))
}

// timingName names the profile that has these timings, or gives the main ones.
func timingName(t node.Timing) string {
	for _, name := range lease.Profiles() {
		if p, _ := lease.OfProfile(name); p.Shared() == t {
			return "profile " + name
		}
	}
	return fmt.Sprintf("heartbeat_interval %s, lease_duration %s, node_registration_ttl %s", t.HeartbeatInterval, t.LeaseDuration, t.NodeRegistrationTTL)
}

// upTo8 lists names, at most eight of them.
func upTo8(names []string) string {
	const most = 8
	if n := len(names) - most; n > 0 {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ")
}
