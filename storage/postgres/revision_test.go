package postgres_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// revision is what the rows say.
func (c *cluster) revision(t *testing.T) string {
	t.Helper()
	return value[string](t, c.stage, c.in("select revision::text from %s.counter"))
}

// A heartbeat that finds nothing changed answers as one that reads everything, through another store. Heartbeats and
// registrations leave the revision alone.
func TestUnchangedRepliesAreWhole(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.worker.beat()
	before := c.revision(t)
	for range 2 {
		known := c.worker.beat()
		c.leader.beat(renew(c.term))
		join(t, c.store, "another")
		fresh := *c.worker
		fresh.store = open(t, c.cfg)
		whole := fresh.beat()
		c.worker.seq = fresh.seq
		if fmt.Sprint(known.Term, known.Units) != fmt.Sprint(whole.Term, whole.Units) || len(known.Units) != 1 {
			t.Errorf("got %+v and %+v", known, whole)
		}
		known.Units[0].Generation++ // belongs to the caller
	}
	if after := c.revision(t); after != before {
		t.Errorf("revision %s became %s without a change", before, after)
	}
}

// Every change of a unit or of the term reaches the next heartbeat, also one that makes no event, one that a statement
// of another program makes, and one after which the rows are as they were before the newest were lost.
func TestEveryChangeIsSeen(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, c *cluster){
		"a revocation": func(t *testing.T, c *cluster) {
			c.mustCommit(t, storage.Change{Unit: unit(0), Step: daemon.Revoke, Generation: c.run.Generation, State: daemon.Active})
		},
		"a retirement, which has no event": func(t *testing.T, c *cluster) {
			c.mustCommit(t, storage.Change{Unit: unit(0), Generation: c.run.Generation, State: daemon.Active, Retired: true})
		},
		"another program": func(t *testing.T, c *cluster) {
			c.exec(t, c.in("update %s.unit set reason = 'other'"))
		},
		"the unit is gone":   func(t *testing.T, c *cluster) { c.exec(t, c.in("delete from %s.unit")) },
		"the table is empty": func(t *testing.T, c *cluster) { c.exec(t, c.in("truncate %s.unit")) },
		"another term":       func(t *testing.T, c *cluster) { c.exec(t, c.in("update %s.term set name = 'x'")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			first := c.worker.beat()
			if again := c.worker.beat(); fmt.Sprint(again.Term, again.Units) != fmt.Sprint(first.Term, first.Units) {
				t.Fatalf("got %+v, then %+v", first, again)
			}
			change(t, c)
			if then := c.worker.beat(); fmt.Sprint(then.Term, then.Units) == fmt.Sprint(first.Term, first.Units) {
				t.Errorf("the change is not in %+v", then)
			}
		})
	}
}

func (c *cluster) mustCommit(t *testing.T, change storage.Change) {
	t.Helper()
	out, err := c.store.Commit(context.Background(), storage.Commit{Term: c.term.Ref(), Changes: []storage.Change{change}})
	if err != nil || !out[0].Applied {
		t.Fatalf("%+v, %v", out, err)
	}
}

// Rows that were restored from a copy are seen, although numbers repeat: a change after the copy has another revision
// than the one that was lost.
func TestLostChangesAreNotTakenForLaterOnes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(t, c.in("create table %[1]s.old_unit as select * from %[1]s.unit; create table %[1]s.old_counter as select * from %[1]s.counter"))
	c.exec(t, c.in("update %s.unit set reason = 'lost'"))
	if r := c.worker.beat(); r.Units[0].Reason != "lost" {
		t.Fatalf("units %+v", r.Units)
	}
	c.exec(t, c.in("update %[1]s.unit u set reason = o.reason from %[1]s.old_unit o; update %[1]s.counter c set revision = o.revision from %[1]s.old_counter o"))
	c.exec(t, c.in("update %s.unit set reason = 'later'"))
	if r := c.worker.beat(); r.Units[0].Reason != "later" {
		t.Errorf("units %+v", r.Units)
	}
}
