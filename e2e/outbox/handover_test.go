package outbox

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/outbox"
)

// TestDrillTwoRelays lets relays on two nodes share the shards, and kills one after the other. Another
// node must deliver the messages of the killed node's shards within the bound of the profile.
func TestDrillTwoRelays(t *testing.T) {
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			c := relays(t, open(t), newHook(t).receiver(), 2)
			if units := c.relaying(); units[0].node == units[1].node {
				t.Errorf("both units are on %s while two other nodes have none", units[0].node.Name)
			}
			kills := c.handOvers(killed)
			drill.Measure(t, name+": kill -9 of one of two relays, until messages of all its shards arrive", drill.Bound{Max: c.Timing().NodeRegistrationTTL + 1500*time.Millisecond}, kills.took)
			kills.report(t, name+" to webhook, relays killed", byHandOver)
			stops := c.handOvers(stopped)
			drill.Measure(t, name+": clean stop of one of two relays, until messages of all its shards arrive", drill.Bound{Max: time.Second}, stops.took)
			stops.report(t, name+" to webhook, relays stopped cleanly", never)
		})
	}
}

// handOvers holds how long shards waited, and the verdict.
type handOvers struct {
	verdict
	took []time.Duration
}

// handOvers ends one node after another.
func (c *cluster) handOvers(end func(*drill.Node) func()) (h handOvers) {
	before := len(c.to.arrivals(c))
	w := write(c.t, c.db, 0)
	for i := range drill.Times(10) {
		h.took = append(h.took, c.handOver(w, i%2, end))
	}
	c.drained()
	h.verdict = w.ledger.check(c.to.arrivals(c)[before:])
	return h
}

// killed and stopped end a node, and return a function that waits until it has ended.
func killed(n *drill.Node) func() {
	n.Kill()
	return func() {}
}

func stopped(n *drill.Node) func() {
	ended := make(chan struct{})
	go func() { defer close(ended); n.Stop() }()
	return func() { <-ended }
}

// handOver ends the node of a unit and returns how long its shards wait, while the shards of another node
// are still served.
func (c *cluster) handOver(w *writers, index int, end func(*drill.Node) func()) time.Duration {
	c.t.Helper()
	c.known()
	units := c.relaying()
	victim := units[index].node
	arrived := func(messages []outbox.Message) func() bool {
		return func() bool {
			return !slices.ContainsFunc(messages, func(m outbox.Message) bool { return !c.to.arrived(m.ID) })
		}
	}
	began := time.Now()
	ended := end(victim)
	var waiting, flowing []outbox.Message
	for _, u := range units {
		if u.node == victim {
			waiting = append(waiting, oneEach(u.shards)...)
		} else {
			flowing = append(flowing, oneEach(u.shards)...)
		}
	}
	w.publish(waiting...)
	if len(flowing) > 0 {
		w.publish(flowing...)
		until(c.t, 5*time.Second, "messages of the other unit arrive meanwhile", arrived(flowing))
	}
	until(c.t, time.Minute, "messages of the unit arrive", arrived(waiting))
	took := time.Since(began)
	ended()
	c.join()
	return took
}

// TestDrillZombie stops a relay with SIGSTOP beyond its registration, while it publishes, and continues
// it after another relay has its shards; what it had sent arrives only then. It must advance nothing. If
// the receiver fences, readers must see nothing of it. The webhook has no fence, so there the drill must
// see its messages.
func TestDrillZombie(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	for _, s := range []struct{ database, receiver string }{
		{"sqlite", "webhook"}, {"sqlite", "nats, forgetful"}, {"postgres", "postgres"}, {"postgres", "kafka"},
	} {
		t.Run(s.database+" to "+s.receiver, func(t *testing.T) {
			drill.ParallelUnlessMeasured(t)
			zombie(t, databases[s.database](t), receivers[s.receiver](t), s.receiver)
		})
	}
}

func zombie(t *testing.T, db *database, to receiver, name string) {
	c := relays(t, db, to, 1)
	c.relaying()
	w := write(t, db, 8)
	rounds := drill.Times(5)
	for range rounds {
		w.more(300)
		old := c.relaying()[0]
		late := c.valves[old.node]
		late.hold() // what it sends just before the stop arrives when it continues
		until(t, time.Minute, "something is on its way", func() bool { return late.held.Load() > 0 })
		old.node.Freeze()
		now := c.moved(old)
		c.delivered(time.Now())
		old.node.Signal(syscall.SIGCONT)
		late.release()
		until(t, time.Minute, old.node.Name+" is a member again", func() bool {
			m, ok := old.node.Member()
			return ok && m.Present()
		})
		w.more(300)
		if units, ok := c.claimed(); ok && units[0].generation < now.generation {
			t.Errorf("the shards went back from generation %d to %d", now.generation, units[0].generation)
		}
	}
	w.end()
	c.drained()
	v := w.ledger.check(to.arrivals(c))
	what := fmt.Sprintf("%s to %s, relay stopped beyond its registration %d times and continued", db.name, name, rounds)
	v.report(t, what, to.again)
	what += ", seen after its successor's"
	if to.fenced {
		drill.Never(t, what, v.backwards)
		return
	}
	drill.Count(t, what, v.backwards, "no fence: what was under way")
	if v.backwards == 0 {
		t.Error("a receiver without a fence shows nothing out of turn: the drill drilled nothing")
	}
}
