package member_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/storage"
)

// The commit with the answer to a release of the brake is lost. The release stands, and the command is answered again.
func TestReleaseIsAnsweredAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	c.brake = 50
	for i := range 4 {
		c.join(fmt.Sprintf("n%d", i), advert("acme:work", 8))
	}
	c.until(10*time.Second, "all units run", func() bool { return c.total() == 8 })
	c.run(10 * time.Second)
	var leads *peer
	for _, p := range c.nodes {
		if p.leading {
			leads = p
		}
	}
	for _, p := range c.nodes {
		p.dead = p != leads
	}
	c.until(2*lease.Fast().NodeRegistrationTTL, "the brake holds", func() bool { return leads.logged("brake held") })
	lost := 0
	leads.takes = func(call member.Call) time.Duration {
		if call.Commit != nil && len(call.Commit.Commands) > 0 && lost == 0 {
			lost++
			return call.Timeout + 1
		}
		return 0
	}
	release := storage.Command{ID: "0198f3a2-7c1e-7b60-9a53-0e4f6f0f6a11", Kind: daemon.CommandRelease, Actor: "alice", Reason: "the rack is off"}
	var answer *storage.Command
	c.until(5*time.Second, "the command is answered", func() bool {
		var err error
		if answer, err = c.store.Submit(t.Context(), release); err != nil {
			t.Fatal(err)
		}
		return !answer.DoneAt.IsZero()
	})
	if answer.Result != daemon.ResultDone || lost != 1 {
		t.Errorf("answered %q after %d lost commits", answer.Result, lost)
	}
	if text := strings.Join(leads.log, "\n"); strings.Count(text, "brake released") != 1 || !strings.Contains(text, "released by alice (the rack is off); 3 of 4 nodes look dead") {
		t.Errorf("the log says\n%s", text)
	}
	c.until(2*time.Second, "the leader runs everything", func() bool { return len(leads.running) == 8 })
}
