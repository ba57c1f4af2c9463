package daemon_test

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

var (
	states = []daemon.State{daemon.Unassigned, daemon.Assigning, daemon.Active, daemon.Revoking, daemon.Deleted}
	steps  = []daemon.Step{
		daemon.Assign, daemon.Acknowledge, daemon.Revoke, daemon.Confirm, daemon.Abandon, daemon.Release, daemon.Resume, daemon.Postpone, daemon.Expire,
	}
)

// TestLifecycle reads testdata/lifecycle.txt: stories of units, one step a line, and at the end the
// whole table. Every pair of state and step must be in it, so that none is allowed by accident.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	file, err := os.Open("testdata/lifecycle.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reported := map[string]bool{}
	var at daemon.State
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		switch {
		case len(words) == 0:
		case words[0] == "unit" && len(words) == 2: // a story begins
			at = daemon.State(words[1])
		case len(words) == 3: // step -> state, or step -> refused
			at = check(t, n, at, daemon.Step(words[0]), words[2])
		case len(words) == 4: // state step -> …
			check(t, n, daemon.State(words[0]), daemon.Step(words[1]), words[3])
			reported[words[0]+" "+words[1]] = true
		default:
			t.Fatalf("line %d is not understood: %s", n, text)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for _, s := range states {
		for _, step := range steps {
			if !reported[string(s)+" "+string(step)] {
				t.Errorf("the table does not tell of %s %s", s, step)
			}
		}
	}
}

// check compares one step with the table and returns the state after it.
func check(t *testing.T, line int, s daemon.State, step daemon.Step, want string) daemon.State {
	t.Helper()
	next, ok := daemon.Next(s, step)
	got := string(next)
	if !ok {
		got = "refused"
	}
	if got != want {
		t.Errorf("line %d: %s in %s leads to %s, want %s", line, step, s, got, want)
	}
	if !ok {
		return s
	}
	return next
}

func TestUnknownStatesAndStepsGoNowhere(t *testing.T) {
	t.Parallel()
	for _, s := range append([]daemon.State{"", "paused"}, states...) {
		for _, step := range append([]daemon.Step{"", "pause"}, steps...) {
			next, ok := daemon.Next(s, step)
			if known := s.Known() && step != "" && step != "pause"; ok && !known {
				t.Errorf("%q in %q leads to %q", step, s, next)
			}
			if ok && !next.Known() || !ok && next != "" {
				t.Errorf("%q in %q leads to %q, %t", step, s, next, ok)
			}
		}
	}
}

func TestFreeAndKnown(t *testing.T) {
	t.Parallel()
	free := map[daemon.State]bool{daemon.Unassigned: true, daemon.Deleted: true}
	for _, s := range states {
		if !s.Known() || s.IsFree() != free[s] {
			t.Errorf("%s: known %t, free %t", s, s.Known(), s.IsFree())
		}
		// Exactly the free states can be assigned.
		if _, ok := daemon.Next(s, daemon.Assign); ok != s.IsFree() {
			t.Errorf("%s: free %t, can be assigned %t", s, s.IsFree(), ok)
		}
	}
	for _, s := range []daemon.State{"", "paused", "ACTIVE"} {
		if s.Known() || s.IsFree() {
			t.Errorf("%q: known %t, free %t", s, s.Known(), s.IsFree())
		}
	}
}

// TestEveryHeldStateEnds: the leader can always take a unit back. Otherwise nothing might ever free
// it.
func TestEveryHeldStateEnds(t *testing.T) {
	t.Parallel()
	for _, s := range states {
		next, ok := daemon.Next(s, daemon.Expire)
		if ok == s.IsFree() || ok && next != daemon.Deleted {
			t.Errorf("expire in %s leads to %q", s, next)
		}
	}
}

func TestWhoHoldsAUnit(t *testing.T) {
	t.Parallel()
	r := daemon.Record{Unit: daemon.Unit{Daemon: "a"}, Holder: node.Identity{ID: "id", Incarnation: "inc"}, Generation: 9}
	for _, s := range append([]daemon.State{"paused"}, states...) {
		r.State = s
		// A state of a newer version is not free: the process named in the row holds the unit.
		if got := r.HeldBy("inc"); got == s.IsFree() {
			t.Errorf("%s: held %t", s, got)
		}
		if r.HeldBy("inc2") {
			t.Errorf("%s: held by another process of the node", s)
		}
	}
	if f := r.Fence(); f != (daemon.Fence{Unit: r.Unit, Generation: 9}) {
		t.Errorf("fence %v", f)
	}
}

func TestSnapshotAlwaysHasAnAdvert(t *testing.T) {
	t.Parallel()
	known := &daemon.Advert{Kinds: []daemon.Kind{"k"}}
	s := &daemon.Snapshot{Adverts: map[string]*daemon.Advert{"h": known, "nil": nil}}
	if s.Advert(node.Member{Advert: "h"}) != known {
		t.Error("the shared advert was copied")
	}
	for _, hash := range []string{"", "lost", "nil"} {
		if a := s.Advert(node.Member{Advert: hash}); a == nil || len(a.Kinds) != 0 {
			t.Errorf("%q: %v", hash, a)
		}
	}
	if a := new(daemon.Snapshot).Advert(node.Member{}); a == nil {
		t.Error("no advert from an empty snapshot")
	}
}
