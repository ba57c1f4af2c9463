package member_test

import (
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// changesOf returns how many rows a commit changes; 0 for other calls.
func changesOf(call member.Call) int {
	if call.Commit == nil {
		return 0
	}
	return len(call.Commit.Changes)
}

// A store that needs longer than the query timeout for a full batch still gets everything, in smaller batches.
// Once it is fast again, the batches are full again.
func TestCommitsShrinkForASlowStoreAndGrowBack(t *testing.T) {
	t.Parallel()
	const units = 2 * storage.MaxChanges
	c := newCluster(t, 1, advert("acme:work", units))
	p := c.nodes[0]
	p.takes = func(call member.Call) time.Duration { // a full batch takes four seconds, and the timeout is half a second
		return time.Duration(changesOf(call)) * 8 * time.Millisecond
	}
	c.until(time.Minute, "all units are active", func() bool { return active(c) == units })
	if !p.logged("pass failed") {
		t.Fatal("no commit was too long: the test shows nothing")
	}
	if p.logged("passes_failed") {
		t.Error("the leader lost its term over a store that was only slow")
	}

	p.takes = nil
	from := len(p.calls)
	p.step(member.Advertise{Advert: advert("acme:work", 6*storage.MaxChanges)})
	c.until(time.Minute, "a batch is full again", func() bool {
		for _, call := range p.calls[from:] {
			if changesOf(call) == storage.MaxChanges {
				return true
			}
		}
		return false
	})
}

// If the store fails commits of any length, batches do not shrink below a few rows.
func TestCommitsShrinkToAFew(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, advert("acme:work", 200))
	p, fewest := c.nodes[0], storage.MaxChanges
	p.loseOne = func(call member.Call) bool {
		if n := changesOf(call); n > 0 {
			fewest = min(fewest, n)
		}
		return false
	}
	p.takes = func(call member.Call) time.Duration { return time.Duration(changesOf(call)) * time.Hour }
	c.run(20 * time.Second)
	if fewest != 16 {
		t.Errorf("the smallest commit had %d rows, want 16", fewest)
	}
}

// The changes of many units are committed node by node, so that each commit wakes few nodes and each node is woken about once.
func TestCommitsGoNodeByNode(t *testing.T) {
	t.Parallel()
	const nodes, units = 10, 2 * storage.MaxChanges
	c := newCluster(t, nodes, advert("acme:work", units))
	c.until(time.Minute, "all units are active", func() bool { return active(c) == units })
	for _, p := range c.nodes {
		for _, call := range p.calls {
			targets := map[node.Incarnation]bool{}
			for i := range changesOf(call) {
				if to := call.Commit.Changes[i].To.Incarnation; to != "" {
					targets[to] = true
				}
			}
			if n := changesOf(call) / (units / nodes); len(targets) > n+2 {
				t.Errorf("a commit with %d changes concerns %d nodes", changesOf(call), len(targets))
			}
		}
	}
}

// A store that has no room for what nodes declare goes on with what it has: the units of a node that died run elsewhere, and the
// leader stays, because another one would have no more room.
func TestFullStoreGoesOn(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	for _, p := range c.nodes {
		p.full = true
		p.step(member.Advertise{Advert: advert("acme:work", 3*storage.MaxChanges)})
	}
	leader := c.leader()
	c.run(5 * time.Second)
	if !leader.logged(storage.ErrFull.Error()) {
		t.Fatal("the store refused nothing: the test shows nothing")
	}
	for _, p := range c.nodes {
		if p != leader {
			p.kill()
			break
		}
	}
	c.run(4 * lease.Fast().LeaseDuration)
	if c.total() != 6 {
		t.Errorf("%d units run, want 6\n%s", c.total(), c.dump())
	}
	if leader.logged("passes_failed") || c.leader() != leader {
		t.Error("the leader gave up its term")
	}
	for _, p := range c.nodes {
		p.full, p.sealed = false, true // there is no room for a death either
	}
	for _, p := range c.nodes {
		if p != leader && !p.dead {
			p.cut = true
		}
	}
	c.run(4 * lease.Fast().LeaseDuration)
	if leader.logged("passes_failed") || c.leader() != leader {
		t.Error("the leader gave up its term while nothing could be committed")
	}
	for _, p := range c.nodes {
		p.sealed, p.cut = false, false
	}
	c.until(time.Minute, "there is room again", func() bool { return active(c) == 3*storage.MaxChanges })
}

// fullCluster returns a cluster with even loads, whose store has no room for most of what its nodes declare.
func fullCluster(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, 0)
	c.maxMoves = 100
	for _, name := range []string{"n0", "n1", "n2"} {
		c.join(name, two(6, 4))
	}
	c.until(10*time.Second, "ten units run", func() bool { return c.total() == 10 })
	c.run(20 * time.Second)
	c.declare(3*storage.MaxChanges, 4)
	c.run(5 * time.Second)
	if !c.leader().logged(storage.ErrFull.Error()) {
		t.Fatal("the store refused nothing: the test shows nothing")
	}
	return c
}

// two declares two daemons.
func two(work, other int) daemon.Advert {
	a := advert("acme:work", work)
	a.Kinds = append(a.Kinds, "acme:zzz")
	a.Specs = append(a.Specs, daemon.Spec{ID: "acme:zzz", Instances: other})
	return a
}

// declare makes all nodes declare so many units of two daemons, for which the store has no room.
func (c *cluster) declare(work, other int) {
	for _, p := range c.nodes {
		p.full = true
		p.step(member.Advertise{Advert: two(work, other)})
	}
}

// A cluster whose store is full gets smaller by declaring less, also of what is not refused.
func TestFullStoreGetsSmaller(t *testing.T) {
	t.Parallel()
	c := fullCluster(t)
	c.declare(3*storage.MaxChanges, 1)
	c.until(10*time.Second, "three units are retired", func() bool {
		retired := 0
		for _, u := range c.snapshot().Units {
			if u.Retired {
				retired++
			}
		}
		return retired == 3
	})
}

// A full store does not keep units from a node that joins. Once there is room, what was declared meanwhile follows.
func TestFullStoreMakesLoadsEven(t *testing.T) {
	t.Parallel()
	c := fullCluster(t)
	c.join("n3", two(3*storage.MaxChanges, 4)).full = true
	c.until(10*time.Second, "the new node has its share", func() bool { return len(c.nodes[3].running) >= 2 && c.total() == 10 })
	passes := c.snapshot().Lease.PassSeq
	c.run(time.Minute)
	if n := c.snapshot().Lease.PassSeq - passes; n < 30 || n > 300 {
		t.Errorf("%d passes in a minute while nothing happens", n)
	}
	for _, p := range c.nodes {
		p.full = false
	}
	c.until(10*time.Second, "all units are declared", func() bool { return len(c.snapshot().Units) == 3*storage.MaxChanges+4 })
}

// A leader whose store is full follows the command to hand its term over.
func TestFullStoreHandsOver(t *testing.T) {
	t.Parallel()
	c := fullCluster(t)
	leader := c.leader()
	to := c.nodes[0]
	if to == leader {
		to = c.nodes[1]
	}
	command := storage.Command{
		ID: "r", Kind: daemon.CommandResign, Actor: "alice", Term: c.snapshot().Term.Number,
		Args: daemon.CommandArgs{To: to.id.Name}.Encode(),
	}
	if _, err := c.store.Submit(t.Context(), command); err != nil {
		t.Fatal(err)
	}
	c.until(20*time.Second, "the other node leads", func() bool { return c.leader() == to })
}
