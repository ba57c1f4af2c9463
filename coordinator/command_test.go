package coordinator_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/storage"
)

// TestCommandThatWaitsAtAnElection: a command to resign lies there when a node is elected. The
// term is published before it is given up, and never do two lead.
func TestCommandThatWaitsAtAnElection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		c.Elect()
		c.Kill(0)
		if _, err := c.Store().Submit(context.Background(), storage.Command{ID: "x", Kind: storage.CommandResign}); err != nil {
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
		command := storage.Command{ID: "x", Kind: storage.CommandResign, Term: term.Number}
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
