package member_test

import (
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
)

// The only node is killed and another process starts on its host, which has exit evidence of its predecessor. It
// leads and runs everything within a few round trips.
func TestRestartedNodeTakesOverByProof(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]node.ID{"an id of its own": "id-next", "the same id": "id-n0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := settled(t, 1)
			old := c.nodes[0]
			old.kill()
			next := c.join("next", advert("acme:work", 6))
			next.id.ID = id
			next.m = member.New(member.Config{Node: next.id, Advert: advert("acme:work", 6), Timing: lease.Fast(), Seed: 7}, c.now)
			c.run(5 * time.Millisecond)
			next.step(member.ExitEvidence{Ended: []node.Incarnation{old.id.Incarnation}})
			c.until(100*time.Millisecond, "it runs everything", func() bool { return next.leading && len(next.running) == 6 })
		})
	}
}

// A follower has exit evidence of the leader's process: the term is free for all candidates.
func TestProofFreesTheTerm(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	l := c.leader()
	var peer *peer
	for _, p := range c.nodes {
		if p != l {
			peer = p
		}
	}
	l.kill()
	peer.step(member.ExitEvidence{Ended: []node.Incarnation{l.id.Incarnation}})
	c.until(200*time.Millisecond, "another leads", func() bool { return c.leader() != nil })
	c.until(200*time.Millisecond, "all units run", func() bool { return c.total() == 6 })
}

// Exit evidence of a follower takes no term from any node. In an outage, the node that has it does not call the
// store more often.
func TestProofOfAnother(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	l := c.leader()
	term := c.snapshot().Term.Number
	var victim *peer
	for _, p := range c.nodes {
		if p != l {
			victim = p
		}
	}
	victim.kill()
	l.step(member.ExitEvidence{Ended: []node.Incarnation{victim.id.Incarnation}})
	c.until(200*time.Millisecond, "all units run", func() bool { return c.total() == 6 })
	if got := c.snapshot().Term; got.Number != term || !l.leading {
		t.Errorf("term %d was replaced by %+v", term, got)
	}
	l.cut = true
	c.run(2 * time.Second)
	n := len(l.calls)
	for range 1000 {
		l.step(member.ExitEvidence{Ended: []node.Incarnation{victim.id.Incarnation}})
		c.run(time.Millisecond)
	}
	if beats := len(l.calls) - n; beats > 3 {
		t.Errorf("%d calls in a second of an outage", beats)
	}
}

// A newcomer does not wait for a process with other timings that was killed a moment ago, once it has exit
// evidence.
func TestProofOfAnEndWithOtherTimings(t *testing.T) {
	t.Parallel()
	slow := lease.Fast()
	slow.NodeRegistrationTTL = time.Minute
	c := newCluster(t, 0)
	c.joinTimed("killed", slow)
	c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
	c.nodes[0].kill()
	next := c.joinTimed("next", lease.Fast())
	c.run(5 * time.Millisecond)
	next.step(member.ExitEvidence{Ended: []node.Incarnation{c.nodes[0].id.Incarnation}})
	c.until(200*time.Millisecond, "it runs everything", func() bool { return next.leading && len(next.running) == 6 })
}

// The store is away for two of the five seconds of a lease, and passes fail like heartbeats: the leader stays. If
// only its passes fail for a whole lease, it resigns.
func TestOutageShorterThanALeaseCostsNoTerm(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]func(call member.Call) bool{
		"refused at once": func(member.Call) bool { return true },
		"passes longer":   func(call member.Call) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := settled(t, 3)
			l, term := c.leader(), c.snapshot().Term.Number
			for range 5 {
				for _, p := range c.nodes {
					p.loseOne = lost
				}
				c.run(2 * time.Second)
				if name == "passes longer" {
					for _, p := range c.nodes {
						p.loseOne = func(call member.Call) bool { return call.Snapshot }
					}
					c.run(time.Second)
				}
				for _, p := range c.nodes {
					p.loseOne = nil
				}
				c.run(3 * time.Second)
			}
			if got := c.snapshot().Term.Number; got != term || !l.leading {
				t.Errorf("the leader changed: %s", c.dump())
			}
		})
	}
}
