package node_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/emitd/emitd/node"
)

func member(incarnation string, s node.State) node.Member {
	return node.Member{
		Identity: node.Identity{Name: "n-" + incarnation, ID: node.ID("id-" + incarnation), Incarnation: node.Incarnation(incarnation)},
		State:    s,
	}
}

func gone(incarnation, reason string) node.Member {
	m := member(incarnation, node.Removed)
	m.EndReason = reason
	return m
}

func reported(changes []node.Change) string {
	var out []string
	for _, c := range changes {
		text := fmt.Sprintf("%s %s", c.Member.Incarnation, c.Kind)
		if c.Reason != "" {
			text += " (" + c.Reason + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func TestDiff(t *testing.T) {
	t.Parallel()
	type list = []node.Member
	a, b, c := member("a", node.Live), member("b", node.Live), member("c", node.Live)
	for _, tt := range []struct {
		story    string
		old, new list
		want     string
	}{
		{"nothing", nil, nil, ""},
		{"the same", list{a, b}, list{b, a}, ""},
		{"the first list is all news", nil, list{b, a}, "a joined, b joined"},
		{"one joins", list{a}, list{a, b}, "b joined"},
		{"one leaves and says why", list{a, b}, list{a, gone("b", "resigned")}, "b left (resigned)"},
		{"one leaves and its tombstone was swept meanwhile", list{a, b}, list{a}, "b left (row gone)"},
		{"a tombstone is old news", list{a, gone("b", "expired")}, list{a}, ""},
		{"one that came and went in between was never seen", list{a}, list{a, gone("b", "expired")}, ""},
		{"leavers before joiners, each by incarnation", list{c, a}, list{member("d", node.Live), b}, "a left (row gone), c left (row gone), b joined, d joined"},
		{"draining, late and deaf are present", list{a, b, c}, list{member("a", node.Draining), member("b", node.Late), member("c", node.Deaf)}, ""},
		{"back from the dead", list{gone("a", "expired")}, list{a}, "a joined"},
		{"a new process of one member is another", list{a}, list{{Identity: node.Identity{Name: "n-a", ID: "id-a", Incarnation: "a2"}, State: node.Live}}, "a left (row gone), a2 joined"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			if got := reported(node.Diff(tt.old, tt.new)); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestDiffCatchesUp: applying the difference to the old list gives the new list, whatever was
// missed in between.
func TestDiffCatchesUp(t *testing.T) {
	t.Parallel()
	draw := func(t *rapid.T, label string) []node.Member {
		states := rapid.MapOf(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), rapid.SampledFrom([]node.State{node.Live, node.Late, node.Removed})).Draw(t, label)
		var out []node.Member
		for inc, s := range states {
			out = append(out, member(inc, s))
		}
		return out
	}
	present := func(ms []node.Member) map[node.Incarnation]bool {
		out := map[node.Incarnation]bool{}
		for _, m := range ms {
			if m.Present() {
				out[m.Incarnation] = true
			}
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		old, fresh := draw(t, "old"), draw(t, "new")
		have, want := present(old), present(fresh)
		changes := node.Diff(old, fresh)
		for _, c := range changes {
			inc := c.Member.Incarnation
			if have[inc] != (c.Kind == node.Left) {
				t.Fatalf("%s %s, but present was %t", inc, c.Kind, have[inc])
			}
			have[inc] = c.Kind == node.Joined
			if !have[inc] {
				delete(have, inc)
			}
		}
		if fmt.Sprint(have) != fmt.Sprint(want) {
			t.Fatalf("after %s: %v, want %v", reported(changes), have, want)
		}
		slices.Reverse(old)
		slices.Reverse(fresh)
		if again := reported(node.Diff(old, fresh)); again != reported(changes) {
			t.Fatalf("another order of lists gives %s, not %s", again, reported(changes))
		}
	})
}

func TestTermsAreIdentifiedByNumberAndProcess(t *testing.T) {
	t.Parallel()
	who := node.Identity{Name: "n1", ID: "id", Incarnation: "inc"}
	term := node.Term{Number: 42, Ordinal: 3, Leader: who}
	ref := term.Ref()
	if ref != (node.TermRef{Number: 42, Node: "id", Incarnation: "inc"}) {
		t.Errorf("ref %+v", ref)
	}
	renamed := term
	renamed.Leader.Name, renamed.Ordinal = "other", 4
	if renamed.Ref() != ref {
		t.Error("a name or an ordinal identifies")
	}
	restarted := term
	restarted.Leader.Incarnation = "inc2"
	if restarted.Ref() == ref {
		t.Error("another process of the node has the same ref")
	}
}

func TestWhetherATermIsHeld(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		term node.Term
		want bool
	}{
		{node.Term{}, false}, // no node has led yet
		{node.Term{Number: 1}, true},
		{node.Term{Number: 1, Vacant: true}, false},
	} {
		if got := tt.term.Held(); got != tt.want {
			t.Errorf("%+v held: %t", tt.term, got)
		}
	}
}

// TestMemberJSON pins the names that status, events and scripts rely on. Zero values without
// meaning are left out.
func TestMemberJSON(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	m := member("a", node.Live)
	m.RegisteredAt, m.LastHeartbeatAt, m.ConfirmedAt = at, at, at
	got, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	const stamp = `"2026-05-01T12:00:00Z"`
	want := `{"name":"n-a","id":"id-a","incarnation":"a","capacity":0,"state":"live","seq":0,"heard":0,` +
		`"registered_at":` + stamp + `,"last_heartbeat_at":` + stamp + `,"heard_at":` + stamp + `}`
	if string(got) != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	var back node.Member
	if err := json.Unmarshal(got, &back); err != nil || back.Incarnation != m.Incarnation || !back.RegisteredAt.Equal(at) {
		t.Errorf("%+v, %v", back, err)
	}
}
