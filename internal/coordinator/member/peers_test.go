package member

import (
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// row is the row of a live node with the durations of a profile.
func row(name string, t lease.Timing) node.Member {
	return node.Member{
		Identity: node.Identity{Name: name, ID: node.ID(name), Incarnation: node.Incarnation(name)},
		Traits:   node.Traits{Timing: t.Shared(), Version: "v-" + name}, State: node.Live, Seq: 1,
	}
}

// Compared with the list before, a member list shows who left, in which way, and who joined. What hooks get of a member is
// its row. Of rows that are gone, nothing is kept.
func TestListsShowWhoJoinedAndLeft(t *testing.T) {
	t.Parallel()
	m := New(Config{Node: node.Identity{Name: "b", ID: "b", Incarnation: "b"}, Timing: lease.Fast()}, 1)
	notices := func(list ...node.Member) (out []string) {
		m.out = nil
		m.observeMembers(2, time.Unix(1, 0), list)
		for _, e := range m.out {
			n := e.(Notice)
			p := n.Member.Row()
			if p.Version != "v-"+p.Name {
				t.Errorf("%s of version %q", p.Name, p.Version)
			}
			out = append(out, string(n.Kind)+" "+p.Name+" "+n.Reason)
		}
		return out
	}
	a, b, c, d, ended := row("a", m.t), row("b", m.t), row("c", m.t), row("d", m.t), row("c", m.t)
	ended.State, ended.EndReason = node.Removed, "shutdown"
	for _, x := range []struct {
		list []node.Member
		want []string
	}{
		{[]node.Member{a, b, c}, []string{"node joined a ", "node joined b ", "node joined c "}},
		{[]node.Member{a, b, c}, nil},
		{[]node.Member{b, ended, d}, []string{"node left a row gone", "node left c shutdown", "node joined d "}},
		{[]node.Member{b, c, d}, []string{"node joined c "}},
		{[]node.Member{b}, []string{"node left c row gone", "node left d row gone"}},
	} {
		if got := notices(x.list...); !slices.Equal(got, x.want) {
			t.Errorf("the list brings %q, want %q", got, x.want)
		}
		if n := len(m.leader.seqSeen); n != len(x.list) {
			t.Errorf("%d rows are remembered of a list of %d", n, len(x.list))
		}
	}
}

// The durations of a process count for as long as it may hold something after its row has gone, and no longer.
func TestDurationsOfMissingRowsAreForgotten(t *testing.T) {
	t.Parallel()
	fast, slow := lease.Fast(), lease.Default()
	m := New(Config{Node: node.Identity{Name: "b", ID: "b", Incarnation: "b"}, Timing: fast}, 1)
	m.election.seen = node.Term{Number: 1, Leader: node.Identity{Incarnation: "unseen"}}
	longest := func(at time.Duration, rows ...node.Member) time.Duration {
		m.noteTimings(lease.Instant(1).Add(at), rows)
		return m.timings.longest.LeaseDuration
	}
	a, b := row("a", slow), row("b", fast)
	after := 2 * slow.NodeRegistrationTTL
	for _, x := range []struct {
		at   time.Duration
		rows []node.Member
		want time.Duration
	}{
		{0, []node.Member{b}, fast.LeaseDuration},
		{1, []node.Member{a, b}, slow.LeaseDuration},
		{2, []node.Member{b}, slow.LeaseDuration},
		{2 + after - 1, []node.Member{b}, slow.LeaseDuration},
		{2 + after, []node.Member{b}, slow.LeaseDuration}, // it counts once more
		{3 + after, []node.Member{b}, fast.LeaseDuration},
	} {
		if got := longest(x.at, x.rows...); got != x.want {
			t.Errorf("after %v the longest lease is %v, want %v", x.at, got, x.want)
		}
	}
	if m.knowsTimings("a") || !m.knowsTimings("unseen") {
		t.Error("a process whose row is gone is remembered, or the leader for whose row was looked in vain is not")
	}
}
