package member_test

import (
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/member"
)

// Reports and commits name the store that they were decided from.
func TestWritesNameTheStore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
	reports, commits := 0, 0
	for _, p := range c.nodes {
		for _, call := range p.calls {
			switch {
			case call.Report != nil:
				reports++
				if call.Report.StoreID != "memory" {
					t.Errorf("%s reports to the store %q", p.id.Name, call.Report.StoreID)
				}
			case call.Commit != nil:
				commits++
				if call.Commit.StoreID != "memory" {
					t.Errorf("%s commits to the store %q", p.id.Name, call.Commit.StoreID)
				}
			}
		}
	}
	if reports == 0 || commits == 0 {
		t.Errorf("%d reports and %d commits were made", reports, commits)
	}
}

// A commit that finds another store is not a failed pass. The next heartbeat is sent at once, and
// ends the term.
func TestCommitFindsAnotherStore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
	c.run(10 * time.Second)
	l := c.leader()
	var victim *peer
	for _, p := range c.nodes {
		if p != l {
			victim = p
		}
	}
	l.loseOne = func(call member.Call) bool {
		if call.Commit != nil {
			c.store.SetStoreID("another") // between the snapshot and the commit
			l.loseOne = nil
		}
		return false
	}
	victim.stop()
	seen, log := len(l.calls), len(l.log)
	c.until(time.Second, "a commit", func() bool { return l.loseOne == nil })
	c.until(10*time.Millisecond, "the leader has lost its term", func() bool { return !l.leading })
	for _, line := range l.log[log:] {
		if strings.Contains(line, string(member.PassFailed)) {
			t.Errorf("told: %s", line)
		}
	}
	if v := l.m.View(); v.PassesFailed != 0 || v.StoreID != "another" {
		t.Errorf("%d passes failed, the store is %q", v.PassesFailed, v.StoreID)
	}
	for _, call := range l.calls[seen:] {
		if call.Commit != nil && call.Commit.StoreID == "another" {
			t.Error("a commit was decided from the new store at once")
		}
	}
}
