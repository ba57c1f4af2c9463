package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// cluster is a leader and a worker on one stage.
type cluster struct {
	*stage
	cfg            postgres.Config
	store          *postgres.Store
	leader, worker *actor
	term           node.Term
	run            daemon.Record // of unit 0, active on the worker
}

func newCluster(t *testing.T, edits ...func(*postgres.Config)) *cluster {
	t.Helper()
	c := &cluster{stage: newStage(t)}
	c.cfg = c.schema(t, edits...)
	c.store = open(t, c.cfg)
	c.leader, c.worker = join(t, c.store, "leader"), join(t, c.store, "worker")
	c.term = c.leader.lead()
	c.run = c.leader.assign(c.term, unit(0), c.worker)
	return c
}

// in names a table of the cluster.
func (c *cluster) in(sql string) string { return fmt.Sprintf(sql, c.cfg.Schema) }

// An election waits for a commit that is under way, and a renewal does not. The commit's events
// come before the election's in the history.
func TestTakeOverWaitsForCommit(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	// The commit is stopped in the middle: it holds the term's lock and waits for a unit.
	middle := c.begin(t, c.in("select from %s.unit for update"))
	committed := later(func() ([]storage.Outcome, error) {
		return c.store.Commit(context.Background(), storage.Commit{Term: c.term.Ref(), Changes: []storage.Change{
			{Unit: unit(0), Step: daemon.Revoke, Generation: c.run.Generation, State: daemon.Active},
		}})
	})
	c.blocked(t, 1)

	if r := c.leader.beat(renew(c.term)); r.Verdict != storage.Renew {
		t.Fatalf("verdict %v of a renewal during a commit", r.Verdict)
	}
	lease := c.leader.beat().Lease
	taken := later(func() (*storage.Reply, error) { return c.worker.try(depose(c.term, lease)) })
	c.blocked(t, 2)
	if r := c.leader.beat(renew(c.term)); r.Verdict != storage.Renew || r.Term.Number != c.term.Number {
		t.Fatalf("verdict %v, term %d: a renewal waited for a candidate", r.Verdict, r.Term.Number)
	}

	commit(t, middle)
	if out := await(t, "the commit", committed).get(t); !out[0].Applied {
		t.Errorf("the commit was skipped: %+v", out)
	}
	// The candidate saw fewer renewals than there are by now.
	if r := await(t, "the take-over", taken).get(t); r.Verdict != storage.Refuse {
		t.Errorf("verdict %v over a lease that was renewed meanwhile", r.Verdict)
	}
	if r := c.worker.beat(depose(c.term, c.worker.beat().Lease)); r.Verdict != storage.Elect {
		t.Errorf("verdict %v", r.Verdict)
	}
	if !before(kinds(t, c.store), daemon.AssignmentRevoking, daemon.LeaderElected) {
		t.Error("the take-over stands before the commit it waited for")
	}
}

// A candidate that cannot be elected is refused without a lock. It waits for no commit, and no commit waits for it: term,
// lease and counter may even be locked by somebody else. It does not make other nodes read their units anew either.
func TestHopelessCandidatesTakeNoLock(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	lease := c.leader.beat(renew(c.term)).Lease
	older := lease
	older.Renewals--
	revision := c.revision(t)
	middle := c.begin(t, c.in("select from %s.term for update"), c.in("select from %s.lease for update"), c.in("select from %s.counter for update"))
	for what, request := range map[string]func(*storage.Heartbeat){
		"against an older renewal":     depose(c.term, older),
		"against another term":         depose(node.Term{Number: c.term.Number - 1}, lease),
		"that has seen no term":        stand,
		"before the lease has run out": func(b *storage.Heartbeat) { depose(c.term, lease)(b); b.TermRequest.Unchanged = false },
		"that says what has returned": func(b *storage.Heartbeat) {
			stand(b)
			b.ReturnedRuns = []daemon.Fence{c.run.Fence()} // of which no embargo was imposed
		},
	} {
		refused := later(func() (*storage.Reply, error) { return c.worker.try(request) })
		if r := await(t, "a candidate "+what, refused).get(t); r.Verdict != storage.Refuse {
			t.Errorf("verdict %v of a candidate %s", r.Verdict, what)
		}
	}
	commit(t, middle)
	if now := c.revision(t); now != revision {
		t.Error("candidates that were refused renewed the revision")
	}
	if r := c.worker.beat(depose(c.term, lease)); r.Verdict != storage.Elect {
		t.Errorf("verdict %v", r.Verdict)
	}
}

// A registration that does more locks the counter last. While it waits for another row, everybody else can write events.
func TestRegistrationLocksTheCounterLast(t *testing.T) {
	t.Parallel()
	for table, more := range map[string]func(*cluster, *storage.Heartbeat){
		"unit":  func(c *cluster, b *storage.Heartbeat) { b.ReturnedRuns = []daemon.Fence{c.run.Fence()} },
		"lease": func(c *cluster, b *storage.Heartbeat) { b.ExitEvidence = []node.Incarnation{c.leader.id.Incarnation} },
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			middle := c.begin(t, c.in("select from %s."+table+" for update"))
			registered := later(func() (*storage.Reply, error) {
				return newProcess(c).try(func(b *storage.Heartbeat) {
					b.Advert = &daemon.Advert{Traits: node.Traits{Cluster: "shop"}}
					more(c, b)
				})
			})
			c.blocked(t, 1)
			if _, err := c.store.Submit(context.Background(), storage.Command{ID: "c", Kind: "x"}); err != nil {
				t.Errorf("a command: %v", err)
			}
			c.blocked(t, 1)
			commit(t, middle)
			await(t, "the registration", registered).get(t)
			if name := value[string](t, c.stage, c.in("select cluster from %s.counter")); name != "shop" {
				t.Errorf("the cluster is called %q", name)
			}
		})
	}
}

// A sweep of units does not wait for a user's transaction that holds the fence of one of them. It would keep everybody else
// waiting for the counter meanwhile. The next sweep deletes that unit.
func TestSweepOfUnitsWaitsForNoFence(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ctx := context.Background()
	keys := []string{"held", "free", "never-run"}
	for _, change := range []storage.KeyChange{{Daemon: "acme:keyed", Add: keys}, {Daemon: "acme:keyed", Remove: keys}} {
		if _, err := c.store.ChangeKeys(ctx, change); err != nil {
			t.Fatal(err)
		}
	}
	c.exec(t, c.in("update %s.unit set since = since - interval '2 hours'"))
	held, free := daemon.Fence{Unit: daemon.Unit{Daemon: "acme:keyed", Key: "held"}, Generation: 8}, daemon.Fence{Unit: daemon.Unit{Daemon: "acme:keyed", Key: "free"}, Generation: 7}
	sweeper := daemon.Fence{Unit: daemon.Unit{Daemon: "emit:sweeper"}, Generation: 1}
	for _, f := range []daemon.Fence{held, free, sweeper} {
		stamp(t, c.store, f)
	}
	middle := c.begin(t)
	if err := c.store.Fence(ctx, middle, held); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		swept, left int
		floor       int64
	}{{2, 1, 7}, {1, 0, 8}} {
		n := await(t, "a sweep", later(func() (int, error) { return c.store.SweepUnits(ctx, sweeper, time.Hour, 10) })).get(t)
		floor := value[int64](t, c.stage, c.in("select generation_floor from %s.counter"))
		if left := value[int](t, c.stage, c.in("select count(*) from %s.fence where position(' ' in daemon) > 0")); n != want.swept || floor != want.floor || left != want.left {
			t.Errorf("%d units were swept, %d fences are left, and the highest generation was %d, want %+v", n, left, floor, want)
		}
		_ = middle.Rollback(ctx)
	}
}

// A commit that arrives during an election waits for it and finds the term lost.
func TestCommitWaitsForTakeOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	// The election is stopped in the middle: it holds term and lease and waits for its own row.
	middle := c.begin(t, c.in("select from %s.node where name = 'worker' for update"))
	taken := later(func() (*storage.Reply, error) { return c.worker.try(depose(c.term, node.Lease{})) })
	c.blocked(t, 1)
	committed := later(func() ([]storage.Outcome, error) {
		return c.store.Commit(context.Background(), storage.Commit{Term: c.term.Ref(), Changes: []storage.Change{
			{Unit: unit(0), Step: daemon.Revoke, Generation: c.run.Generation, State: daemon.Active},
		}})
	})
	c.blocked(t, 2)
	commit(t, middle)
	if r := await(t, "the take-over", taken).get(t); r.Verdict != storage.Elect {
		t.Fatalf("verdict %v", r.Verdict)
	}
	if r := await(t, "the commit", committed); !errors.Is(r.err, storage.ErrTermLost) {
		t.Errorf("error %v, want %v", r.err, storage.ErrTermLost)
	}
}

// A heartbeat that waited for a commit answers with the state after it. A unit that was taken away
// meanwhile is not reported as the caller's own.
func TestReplyIsFromAfterTheWait(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	taking := c.begin(t, c.in("select from %s.node where name = 'worker' for update"),
		c.in("update %s.unit set state = 'deleted'"))
	beat := later(func() (*storage.Reply, error) { return c.worker.try() })
	c.blocked(t, 1)
	commit(t, taking)
	if r := await(t, "the heartbeat", beat).get(t); len(r.Units) != 0 {
		t.Errorf("the reply lists %d units, want none", len(r.Units))
	}
}

// A node whose heartbeat is under way while it is declared dead is not dead.
func TestDeathWaitsForHeartbeat(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	beating := c.begin(t, c.in("update %s.node set seq = seq + 1 where name = 'worker'"))
	guard := storage.NodeVersion{Incarnation: c.worker.id.Incarnation, Seq: c.worker.seq}
	committed := later(func() ([]storage.Outcome, error) {
		return c.store.Commit(context.Background(), storage.Commit{
			Term:    c.term.Ref(),
			Changes: []storage.Change{{Unit: unit(0), Step: daemon.Expire, Generation: c.run.Generation, State: daemon.Active, Dead: &guard, Forced: true}},
			Nodes:   []storage.NodeChange{{Guard: guard, State: node.Removed, Reason: "silent"}},
		})
	})
	c.blocked(t, 1)
	commit(t, beating)
	if out := await(t, "the commit", committed).get(t); out[0].Applied {
		t.Error("the unit of a node that beats was taken away")
	}
	snap, err := c.store.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range snap.Nodes {
		if !m.Present() {
			t.Errorf("%s was removed although it beats", m.Name)
		}
	}
}

// A unit is not assigned to a node that is leaving; the assignment waits until that is known.
func TestAssignWaitsForLeave(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	leaving := c.begin(t, c.in("select from %s.node where name = 'worker' for update"),
		c.in("update %s.node set state = 'draining' where name = 'worker'"))
	committed := later(func() ([]storage.Outcome, error) {
		return c.store.Commit(context.Background(), storage.Commit{Term: c.term.Ref(), Changes: []storage.Change{
			{Unit: unit(1)}, {Unit: unit(1), Step: daemon.Assign, State: daemon.Unassigned, To: c.worker.id},
		}})
	})
	c.blocked(t, 1)
	commit(t, leaving)
	out := await(t, "the commit", committed).get(t)
	if !out[0].Applied || out[1].Applied {
		t.Errorf("declared %t, assigned %t; want the first only", out[0].Applied, out[1].Applied)
	}
}

// An assignment does not block the heartbeats of the node it is for.
func TestAssignDoesNotBlockHeartbeats(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.begin(t, c.in("select from %s.node where name = 'worker' for key share")) // as a commit holds it
	c.worker.beat()
}

// Nodes that share units do everything at the same time. The server has to end no transaction for
// another, and the history has no gap.
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	var actors []*actor
	for i := range 6 {
		actors = append(actors, join(t, open(t, cfg), fmt.Sprint("n", i)))
	}
	var wg sync.WaitGroup
	for i, a := range actors {
		wg.Go(func() { storm(t, a, actors, rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	wg.Wait()
	s.noDeadlocks(t)
	page, err := actors[0].store.Events(context.Background(), 0, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range page.Events {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d has the number %d", i+1, e.Seq)
		}
	}
}

func among[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// storm does what nodes do, in random order. Refusals are allowed, other errors are not.
func storm(t *testing.T, a *actor, all []*actor, r *rand.Rand) {
	ctx := context.Background()
	fine := func(err error) {
		for _, answer := range []error{nil, storage.ErrTermLost, storage.ErrNotRegistered, storage.ErrStaleSeq, daemon.ErrStale, storage.ErrIDInUse} {
			if errors.Is(err, answer) {
				return
			}
		}
		t.Errorf("%s: %v", a.id.Name, err)
	}
	var last *storage.Reply
	for range 60 {
		a.seq++
		switch r.IntN(6) {
		case 0, 1:
			b := storage.Heartbeat{Node: a.id, Seq: a.seq, TTL: time.Nanosecond, TermRequest: storage.TermRequest{Lease: time.Millisecond, Campaign: r.IntN(2) == 0}}
			if r.IntN(4) == 0 {
				b.Advert = &daemon.Advert{Kinds: []daemon.Kind{daemon.Kind(fmt.Sprint("k", r.IntN(3)))}}
			}
			if r.IntN(4) == 0 {
				b.ExitEvidence = []node.Incarnation{all[r.IntN(len(all))].id.Incarnation, all[r.IntN(len(all))].id.Incarnation}
			}
			if r.IntN(3) == 0 {
				for _, i := range r.Perm(5)[:3] {
					b.ReturnedRuns = append(b.ReturnedRuns, daemon.Fence{Unit: unit(i), Generation: math.MaxInt64})
				}
			}
			if last != nil {
				b.TermRequest.SeenTerm, b.TermRequest.SeenRenewals, b.TermRequest.Renew = last.Term.Number, last.Lease.Renewals, last.Term.Number
			}
			reply, err := a.store.Heartbeat(ctx, b)
			if fine(err); err == nil {
				last = reply
			}
		case 2:
			if last == nil {
				continue
			}
			c := storage.Commit{Term: node.TermRef{Number: last.Term.Number, Node: a.id.ID, Incarnation: a.id.Incarnation}}
			for _, i := range r.Perm(5)[:3] {
				to := all[r.IntN(len(all))]
				c.Changes = append(c.Changes, storage.Change{Unit: unit(i)},
					storage.Change{Unit: unit(i), Step: daemon.Assign, State: daemon.Unassigned, To: to.id})
				c.Nodes = append(c.Nodes, storage.NodeChange{Guard: storage.NodeVersion{Incarnation: to.id.Incarnation}, State: node.Late})
			}
			_, err := a.store.Commit(ctx, c)
			fine(err)
		case 3:
			rep := storage.Report{Node: a.id, Seq: a.seq}
			for _, i := range r.Perm(5)[:3] {
				rep.Units = append(rep.Units, storage.UnitReport{Unit: unit(i), Step: daemon.Release, Error: "no"})
			}
			if last != nil {
				for _, u := range last.Units {
					rep.Units = append(rep.Units, storage.UnitReport{Unit: u.Unit, Generation: u.Generation, Step: among(r, daemon.Acknowledge, daemon.Abandon), Embargo: time.Hour})
				}
			}
			_, err := a.store.Report(ctx, rep)
			fine(err)
		case 4:
			l := storage.Leave{Node: a.id, Seq: a.seq, Drain: r.IntN(4) == 0}
			if last != nil {
				l.Resign = last.Term.Number
			}
			fine(a.store.Leave(ctx, l))
		case 5:
			fine(a.store.StampFence(ctx, daemon.Fence{Unit: unit(0), Generation: int64(a.seq)}))
			_, err := a.store.Snapshot(ctx)
			fine(err)
		}
	}
}

// A leave that has to wait for a unit revokes it as it is after the wait, not as it was when the
// leave began.
func TestLeaveActsOnUnitsAsTheyAre(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	middle := c.begin(t, c.in("update %s.unit set state = 'assigning', generation = generation + 1 where daemon = 'acme:reports'"))
	c.worker.seq++
	left := later(func() (any, error) {
		return nil, c.store.Leave(context.Background(), storage.Leave{
			Node: c.worker.id, Seq: c.worker.seq, Drain: true, DrainTimeout: time.Minute, Reason: node.Shutdown,
		})
	})
	c.blocked(t, 1)
	commit(t, middle)
	await(t, "the leave", left).get(t)
	snap, err := c.store.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range snap.Units {
		if r.Unit == unit(0) && r.State != daemon.Revoking {
			t.Errorf("a node that leaves keeps %s, %s", r.Unit, r.State)
		}
	}
}
