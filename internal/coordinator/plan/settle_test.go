package plan

import (
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

const window = 5 * time.Second

// gone is a node whose process ended.
func (n Node) gone(ago time.Duration, why string) Node {
	n.State, n.Member.State = node.Removed, node.Removed
	n.Member.EndedAt, n.Member.EndReason = epoch.Add(-ago), why
	return n
}

// freed returns the row of a unit that became free some time ago.
func freed(t testing.TB, text string, ago time.Duration) daemon.Record {
	r := row(t, text, daemon.Deleted, "")
	r.Since = epoch.Add(-ago)
	return r
}

// A free unit waits only while at least two nodes, and more than half, joined or left on purpose.
func TestBurst(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a"})
	young := func(i string) Node { return live("y"+i, a).born(time.Second) }
	holds := row(t, "gone/0", daemon.Revoking, "d1")
	holds2 := row(t, "gone/1", daemon.Revoking, "d2")
	for _, c := range []struct {
		name  string
		waits bool
		nodes []Node
	}{
		{"settled", false, []Node{live("n1", a), live("n2", a)}},
		{"one joins an empty cluster", false, []Node{young("1")}},
		{"two join one", true, []Node{live("n1", a), young("1"), young("2")}},
		{"two join two", false, []Node{live("n1", a), live("n2", a), young("1"), young("2")}},
		{"two joined a window ago", false, []Node{live("n1", a).born(window), live("n2", a).born(window)}},
		{"two join by a clock that is ahead", false, []Node{young("1").born(-time.Hour), young("2").born(-time.Hour)}},
		{"two of three stopped", true, []Node{
			live("n1", a), live("n2", a).gone(time.Second, "shutdown"), live("n3", a).gone(time.Second, "shutdown"),
		}},
		{"two of three died", false, []Node{
			live("n1", a), live("n2", a).gone(time.Second, "no heartbeat for 6s"), live("n3", a).gone(time.Second, "no heartbeat for 6s"),
		}},
		{"two of three drain", true, []Node{live("n1", a), live("d1", a).being(node.Draining), live("d2", a).being(node.Draining)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := Input{Now: epoch, SettleWindow: window, Nodes: c.nodes}
			in.Units = []daemon.Record{freed(t, "a/0", time.Second), holds, holds2}
			p := Make(in)
			placed := false
			for _, d := range p.Decisions {
				placed = placed || d.Unit == unit(t, "a/0") && d.Step == daemon.Assign
			}
			if placed == c.waits {
				t.Errorf("placed: %v, decisions %v", placed, reported(p))
			}
			if c.waits && len(p.Unplaced) > 0 {
				t.Errorf("a unit that waits for nodes counts as unplaced: %v", reported(p))
			}
			if c.waits == p.DueAt.IsZero() {
				t.Errorf("look again at %v", p.DueAt)
			}
		})
	}
}

// A unit waits for no more than a settle window, however long the burst lasts. If the store's clock was set back
// since it became free, it does not wait at all.
func TestBurstIsWaitedOutForAWindow(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a"})
	in := Input{Now: epoch, SettleWindow: window, Nodes: []Node{live("y1", a).born(time.Second), live("y2", a).born(time.Second)}}
	for _, c := range []struct {
		free  time.Duration
		waits bool
	}{{0, true}, {window - 1, true}, {window, false}, {-time.Hour, false}} {
		in.Units = []daemon.Record{freed(t, "a/0", c.free)}
		p := Make(in)
		if waits := len(p.Decisions) == 0; waits != c.waits {
			t.Errorf("free for %v: waits %v, want %v", c.free, waits, c.waits)
		}
		if at := epoch.Add(window - c.free); c.waits && p.DueAt.After(at) {
			t.Errorf("free for %v: the plan is looked at again at %v, want %v at the latest", c.free, p.DueAt, at)
		}
	}
}

// A unit that waits explains where it would go.
func TestExplainAUnitThatWaits(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a"})
	in := Input{Now: epoch, SettleWindow: window, Nodes: []Node{live("y1", a).born(time.Second), live("y2", a).born(time.Second)}}
	in.Units = []daemon.Record{freed(t, "a/0", time.Second)}
	x := Explain(in, unit(t, "a/0"))
	if x.Decision != nil || x.Next == (node.Identity{}) || x.Why.Note != "once no more nodes join or leave, at the latest at 2026-05-01T12:00:04Z" {
		t.Errorf("decision %v, next %v, why %q", x.Decision, x.Next, x.Why)
	}
}
