package coordinator_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// TestCommandThatWaitsAtAnElection: a command to resign is waiting when a node is elected. The term
// is published before it is given up, and no two nodes ever lead.
func TestCommandThatWaitsAtAnElection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		c.Elect()
		c.Kill(0)
		if _, err := c.Store().Submit(context.Background(), storage.Command{ID: "x", Kind: daemon.CommandResign}); err != nil {
			t.Fatal(err)
		}
		c.Add()
		c.Add()
		for i := range 120 {
			if i == 40 {
				c.Partition(2)
				c.Partition(0)
			}
			c.Advance(500 * time.Millisecond)
			one, _, ok1 := c.Node(1).Leadership()
			two, _, ok2 := c.Node(2).Leadership()
			if ok1 && ok2 {
				t.Fatalf("two lead: terms %d and %d", one.Ordinal, two.Ordinal)
			}
		}
	})
}

func TestCommandForAnotherTermIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		c.Elect()
		term, _, _ := c.Node(0).Leadership()
		c.Kill(0)
		command := storage.Command{ID: "x", Kind: daemon.CommandResign, Term: term.Number}
		if _, err := c.Store().Submit(context.Background(), command); err != nil {
			t.Fatal(err)
		}
		c.Add()
		c.Elect()
		c.Advance(time.Minute)
		got, err := c.Store().Submit(context.Background(), command)
		if err != nil || got.DoneAt.IsZero() || !strings.HasPrefix(got.Result, "conflict") {
			t.Errorf("a minute into the next term: %+v, %v", got, err)
		}
	})
}

// A command moves leadership to another node once, however often it is submitted, and is answered.
func TestCommandMovesLeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
		before := c.Elect()
		seen := follow(t, c.Node(before))
		command := storage.Command{ID: "x", Kind: daemon.CommandResign, Actor: "alice"}
		for range 5 {
			if _, err := c.Store().Submit(t.Context(), command); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		c.WaitUntil("another leads", func() bool { l := c.Leader(); return l >= 0 && l != before })
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("another leads after %v", took)
		}
		advance(10 * time.Second)
		got, err := c.Store().Submit(t.Context(), command)
		if err != nil || got.Result != "done" {
			t.Errorf("the command is %+v, %v", got, err)
		}
		if tr := seen.all(); len(tr) != 2 || tr[1].Reason != node.Resigned {
			t.Errorf("transitions: %+v", tr)
		}
		if snap, _ := c.Store().Snapshot(t.Context()); snap.Term.Ordinal != 2 {
			t.Errorf("the term is number %d, want one change", snap.Term.Ordinal)
		}
	})
}

// A command of a kind that this version does not know is left for a version that does. It does not
// keep others from being carried out.
func TestUnknownCommandIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{Nodes: 2})
		i := c.Elect()
		var leaves record[string]
		for _, tp := range taps {
			tp.set(func(_ context.Context, op string, req any, _ error) error {
				if l, ok := req.(storage.Leave); ok {
					leaves.add(l.Command)
				}
				return nil
			}, nil)
		}
		unknown := storage.Command{ID: "later", Kind: "cluster.hibernate"}
		if _, err := c.Store().Submit(t.Context(), unknown); err != nil {
			t.Fatal(err)
		}
		advance(time.Minute)
		if c.Leader() != i {
			t.Error("a command of an unknown kind moved leadership")
		}
		leaves.want(t, "answered")
		if _, err := c.Store().Submit(t.Context(), storage.Command{ID: "now", Kind: daemon.CommandResign}); err != nil {
			t.Fatal(err)
		}
		c.WaitUntil("the other leads", func() bool { return c.Leader() == 1-i })
		advance(10 * time.Second)
		leaves.want(t, "answered", "now")
		if got, err := c.Store().Submit(t.Context(), unknown); err != nil || !got.DoneAt.IsZero() {
			t.Errorf("the command of an unknown kind is %+v, %v", got, err)
		}
	})
}
