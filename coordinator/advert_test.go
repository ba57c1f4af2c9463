package coordinator

import (
	"context"
	"fmt"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/storage/memory"
)

// TestManyRegistrationsAreOneAdvert: daemons that are registered before the loop comes to it are advertised together. An
// advert for each would have all daemons before it.
func TestManyRegistrationsAreOneAdvert(t *testing.T) {
	t.Parallel()
	c, err := New(memory.Open(memory.Config{}), Config{})
	if err != nil {
		t.Fatal(err)
	}
	c.phase.Store(phaseRunning)
	register := func(from, to int) {
		for n := from; n < to; n++ {
			agent := daemon.AgentFunc(func(context.Context, *daemon.Assignment) error { return nil })
			if err := c.Register(daemon.Spec{ID: daemon.ID(fmt.Sprintf("acme:d%d", n))}, agent); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, total := range []int{100, 150} {
		register(total-50, total)
		if total == 100 {
			register(0, 50)
		}
		inputs := 0
		for in, ok := c.inbox.pop(); ok; in, ok = c.inbox.pop() {
			if _, ok := in.(member.Advertise); ok {
				inputs++
			}
		}
		if a := c.queuedAdvert().Advert; inputs != 1 || len(a.Specs) != total {
			t.Errorf("%d adverts, the newest with %d daemons, want 1 with %d", inputs, len(a.Specs), total)
		}
	}
}
