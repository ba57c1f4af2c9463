package object_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/object"
)

// TestAmbiguousWrites: whatever happens to the write of a call and to its answer, the call happens
// once, and its caller gets the true result.
func TestAmbiguousWrites(t *testing.T) {
	t.Parallel()
	calls := map[string]func(p, leader *process, r daemon.Record) error{
		"report": func(p, _ *process, r daemon.Record) error {
			out, err := p.report(context.Background(), r, daemon.Resume)
			if err == nil && !out[0].Applied {
				err = fmt.Errorf("refused: %+v", out[0].Record)
			}
			return err
		},
		"commit": func(_, leader *process, r daemon.Record) error {
			out, err := leader.commit(storage.Change{Unit: r.Unit, Step: daemon.Revoke, State: r.State, Generation: r.Generation})
			if err == nil && !out[0].Applied {
				err = fmt.Errorf("skipped: %+v", out[0].Record)
			}
			return err
		},
		"leave": func(p, _ *process, _ daemon.Record) error {
			p.seq++
			return p.s.Leave(context.Background(), storage.Leave{Node: p.id, Seq: p.seq, Drain: true})
		},
		"renewal": func(_, leader *process, _ daemon.Record) error {
			r, err := leader.try(context.Background())
			if err == nil && r.Verdict != storage.Renew {
				err = fmt.Errorf("verdict %v", r.Verdict)
			}
			return err
		},
		"heartbeat": func(p, _ *process, _ daemon.Record) error {
			_, err := p.try(context.Background())
			return err
		},
	}
	// update is what another process does before the writer reads the object back.
	for _, f := range []struct {
		story  string
		fault  mem.Fault
		update bool
	}{
		{"the reply is lost", mem.Fault{Kind: mem.LostReply}, false},
		{"the reply is lost and others have gone on", mem.Fault{Kind: mem.LostReply}, true},
		{"the request is lost", mem.Fault{Kind: mem.LostRequest}, false},
		{"the request is lost and others have gone on", mem.Fault{Kind: mem.LostRequest}, true},
		{"the request arrives late", mem.Fault{Kind: mem.Late}, false},
		{"409", mem.Fault{Kind: mem.Conflict}, false},
		{"412 for no reason", mem.Fault{Kind: mem.Refused}, false},
		{"503", mem.Fault{Kind: mem.Throttled, Delay: time.Millisecond}, false},
	} {
		for name, call := range calls {
			t.Run(name+": "+f.story, func(t *testing.T) {
				t.Parallel()
				x := &failures{}
				store := mem.New(mem.Config{Faults: x.meet})
				bucket := &tap{Bucket: store}
				leader, p, other := start(t, store, 0).lead(), start(t, bucket, 1), start(t, store, 2)
				if name == "commit" || name == "renewal" {
					leader.s = open(t, bucket, object.Config{})
				}
				r := leader.give(unit, p)
				if _, err := p.report(context.Background(), r, daemon.Acknowledge); err != nil {
					t.Fatal(err)
				}
				r.State = daemon.Active
				p.beat()
				p.beat()
				leader.beat()
				before := leader.snapshot()
				key := object.ClusterKey
				if name == "heartbeat" {
					key = "in/n/" + string(p.id.Incarnation)
				}
				x.set(key, f.fault, 1)
				if f.update {
					bucket.on(nil, once(mem.Replace, key, func() {
						for i := range 5 {
							if _, err := other.s.Submit(context.Background(), storage.Command{ID: fmt.Sprint("news-", i), Kind: "other"}); err != nil {
								t.Error(err)
							}
						}
					}))
				}
				if err := call(p, leader, r); err != nil {
					t.Fatal(err)
				}
				if x.left() != 0 {
					t.Fatal("the fault was not met")
				}
				store.DeliverLate() // too late to have an effect
				after := other.snapshot()
				want := map[string]int64{"report": 1, "commit": 1, "leave": 1}[name]
				if f.update {
					want += 5
				}
				if got := after.Head - before.Head; got != want {
					t.Errorf("%d events, want %d", got, want)
				}
				if got, want := after.Lease.Renewals-before.Lease.Renewals, map[string]int64{"renewal": 1}[name]; got != want {
					t.Errorf("%d renewals, want %d", got, want)
				}
				if name != "commit" && name != "renewal" {
					if got := other.row(p).Seq; got != p.seq {
						t.Errorf("sequence number %d, want %d", got, p.seq)
					}
				}
			})
		}
	}
}

// TestLateWrite: a write was still on its way when its call gave up. It happens before the next
// answer to this process, or never.
func TestLateWrite(t *testing.T) {
	t.Parallel()
	x := &failures{}
	store := mem.New(mem.Config{Faults: x.meet})
	leader, p := start(t, store, 0).lead(), start(t, store, 1)
	r := leader.give(unit, p)
	p.beat() // so that its next report starts from the present content
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	x.set(object.ClusterKey, mem.Fault{Kind: mem.Late}, 1000)
	if _, err := p.report(ctx, r, daemon.Acknowledge); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatalf("got %v, want an unknown outcome", err)
	}
	x.set("", mem.Fault{}, 0)
	reported := p.beat().Units[0].State
	store.DeliverLate()
	if got := leader.snapshot().Units[0].State; got != reported {
		t.Errorf("the unit is %s, after its holder was told that it is %s", got, reported)
	}
	if reported != daemon.Assigning {
		t.Errorf("told %s", reported)
	}
}

// TestTwoCandidates: two nodes campaign for the same term at the same time. One is elected, and the
// other learns which.
func TestTwoCandidates(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{Latency: mem.Constant(200 * time.Microsecond)})
	peers := []*process{start(t, store, 0), start(t, store, 1)}
	var last int64
	for round := range 50 {
		replies := make([]*storage.Reply, len(peers))
		var both sync.WaitGroup
		for i, p := range peers {
			both.Go(func() {
				replies[i], _ = p.try(t.Context(), stand)
			})
		}
		both.Wait()
		elected := 0
		for i, r := range replies {
			if r == nil {
				t.Fatal("no reply")
			}
			if r.Term != replies[0].Term {
				t.Fatalf("round %d: told of %+v and %+v", round, r.Term, replies[0].Term)
			}
			if r.Verdict == storage.Elect {
				elected++
				p := peers[i]
				p.seq++
				if err := p.s.Leave(t.Context(), storage.Leave{Node: p.id, Seq: p.seq, Resign: r.Term.Number}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if elected != 1 || replies[0].Term.Number <= last {
			t.Fatalf("round %d: %d were elected, term %d after %d", round, elected, replies[0].Term.Number, last)
		}
		last = replies[0].Term.Number
	}
}

// TestDeath: a node's heartbeat arrives while the leader declares the node dead. Either it is in
// time and the node loses nothing, or its reply shows what the node lost.
func TestDeath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story string
		op    mem.Op
		key   string
		nth   int // the heartbeat comes before the leader's nth call of this kind
		dies  bool
	}{
		{"before the doubt", mem.Replace, object.ClusterKey, 1, false},
		{"after the doubt, before the node's object is read", mem.ReadNewer, "in/n/", 2, false},
		{"after the node's object was read", mem.Replace, object.ClusterKey, 2, false},
	} {
		for _, kind := range []string{"node", "unit"} {
			t.Run(kind+": "+tt.story, func(t *testing.T) {
				t.Parallel()
				store := mem.New(mem.Config{})
				bucket := &tap{Bucket: store}
				leader, p := start(t, store, 0).lead(), start(t, store, 1)
				r := leader.give(unit, p)
				p.beat()
				p.beat()
				leader.s = open(t, bucket, object.Config{})
				leader.snapshot()
				guard := storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: p.seq}
				var reply *storage.Reply
				n := 0
				bucket.on(func(op mem.Op, key string) {
					if op == tt.op && len(key) >= len(tt.key) && key[:len(tt.key)] == tt.key {
						if n++; n == tt.nth {
							reply = p.beat()
						}
					}
				}, nil)
				c := storage.Commit{Term: leader.term.Ref()}
				expire := storage.Change{Unit: unit, Step: daemon.Expire, State: r.State, Generation: r.Generation, Dead: &guard, Forced: true}
				if kind == "node" {
					c.Nodes = []storage.NodeChange{{Guard: guard, State: node.Removed}}
				} else {
					c.Changes = []storage.Change{expire}
				}
				out, err := leader.s.Commit(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				bucket.on(nil, nil)
				if reply == nil {
					t.Fatal("no heartbeat came")
				}
				removed := leader.row(p).State == node.Removed
				taken := len(out) > 0 && out[0].Applied
				if removed || taken || len(reply.Units) != 1 {
					t.Errorf("removed %v, taken %v, and the heartbeat was told of %d units", removed, taken, len(reply.Units))
				}
				p.beat()
			})
		}
	}
}

// TestDeathOfTheSameTwice: one batch removes the doubt of another batch that is not finished.
// Without its doubt the other must take nothing away: a heartbeat that arrives then finds no doubt.
func TestDeathOfTheSameTwice(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	bucket := &tap{Bucket: store}
	leader, p := start(t, store, 0).lead(), start(t, store, 1)
	r := leader.give(unit, p)
	p.beat()
	p.beat()
	other := open(t, store, object.Config{})
	leader.s = open(t, bucket, object.Config{})
	guard := storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: p.seq}
	expire := storage.Change{Unit: unit, Step: daemon.Expire, State: r.State, Generation: r.Generation, Dead: &guard, Forced: true}
	skipped := expire
	skipped.Generation--
	var reply *storage.Reply
	reads, writes := 0, 0
	bucket.on(func(op mem.Op, key string) {
		switch {
		case op == mem.ReadNewer && key != object.ClusterKey:
			if reads++; reads == 1 { // again, after the doubt
				if _, err := other.Commit(t.Context(), storage.Commit{Term: leader.term.Ref(), Changes: []storage.Change{skipped}}); err != nil {
					t.Error(err)
				}
			}
		case op == mem.Replace && key == object.ClusterKey:
			if writes++; writes == 3 { // the doubt, the conflict, the death
				reply = p.beat()
			}
		}
	}, nil)
	out, err := leader.commit(expire)
	if err != nil {
		t.Fatal(err)
	}
	bucket.on(nil, nil)
	if reply == nil {
		t.Fatalf("no heartbeat came: %d reads, %d writes", reads, writes)
	}
	if out[0].Applied && len(reply.Units) == 1 {
		t.Error("the unit was taken from a node that was told that it has it")
	}
}

// TestDeathOfTheSilent: a silent node is declared dead at the first attempt, and learns it from its
// next heartbeat.
func TestDeathOfTheSilent(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	leader, p := start(t, store, 0).lead(), start(t, store, 1)
	r := leader.give(unit, p)
	p.beat()
	guard := storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: p.seq}
	out, err := leader.s.Commit(t.Context(), storage.Commit{
		Term: leader.term.Ref(), Nodes: []storage.NodeChange{{Guard: guard, State: node.Removed}},
		Changes: []storage.Change{{Unit: unit, Step: daemon.Expire, State: r.State, Generation: r.Generation, Dead: &guard, Forced: true}},
	})
	if err != nil || !out[0].Applied || leader.row(p).State != node.Removed {
		t.Fatal(out, err)
	}
	if _, err := p.try(t.Context()); !errors.Is(err, storage.ErrNotRegistered) {
		t.Errorf("got %v", err)
	}
}

// TestContention: ten nodes that report at the same moment over a slow connection all succeed, each
// exactly once.
func TestContention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 10
		store := mem.New(mem.Config{Latency: mem.Constant(100 * time.Millisecond)})
		leader := start(t, store, 0).lead()
		peers, rows := make([]*process, n), make([]daemon.Record, n)
		for i := range peers {
			peers[i] = start(t, store, i+1)
			rows[i] = leader.give(daemon.Unit{Daemon: "acme:reports", Index: i}, peers[i])
		}
		before, began := store.Stats()[mem.Replace].Calls, time.Now()
		var all sync.WaitGroup
		var late atomic.Int64
		for i, p := range peers {
			all.Go(func() {
				out, err := p.report(t.Context(), rows[i], daemon.Acknowledge)
				if err != nil || !out[0].Applied {
					t.Errorf("%s: %+v, %v", p.id.Name, out, err)
				}
				for {
					took := int64(time.Since(began))
					if old := late.Load(); took <= old || late.CompareAndSwap(old, took) {
						return
					}
				}
			})
		}
		all.Wait()
		t.Logf("the last one took %v, with %d writes", time.Duration(late.Load()), store.Stats()[mem.Replace].Calls-before)
		if late.Load() > int64(15*time.Second) {
			t.Errorf("the last one took %v", time.Duration(late.Load()))
		}
		if got := leader.count(daemon.AssignmentActive); got != n {
			t.Errorf("%d acknowledgements, want %d", got, n)
		}
	})
}

// TestBound: a change that would make the cluster exceed the bound fails, and the cluster goes on
// unchanged. TestBoundLeavesRoom has what goes on at the bound.
func TestBound(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	leader := start(t, store, 0).lead()
	leader.s = open(t, store, object.Config{MaxBytes: 4 << 10})
	var changes []storage.Change
	for i := range 400 {
		changes = append(changes, storage.Change{Unit: daemon.Unit{Daemon: daemon.ID(fmt.Sprintf("acme:d-%x", i*2654435761)), Index: i}})
	}
	if _, err := leader.commit(changes...); !errors.Is(err, blob.ErrTooLarge) {
		t.Fatalf("got %v", err)
	}
	leader.beat()
	if got := leader.snapshot().Units; len(got) != 0 {
		t.Errorf("%d units", len(got))
	}
}

// TestTakeOver: whole nodes on a bucket, without a shared clock. The leader, which also runs a
// daemon, is cut off. Another node leads after a lease, and everything runs again after a lease and
// a registration TTL, each as the others have measured them.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := mem.New(mem.Config{Latency: mem.Constant(50 * time.Millisecond)})
		wires := nodes(t, store, "fast", 3)
		<-time.After(time.Minute)
		watcher := open(t, store, object.Config{})
		snapshot := func() (snap *daemon.Snapshot, running int) {
			snap, err := watcher.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range snap.Units {
				if r.State == daemon.Active {
					running++
				}
			}
			return snap, running
		}
		snap, running := snapshot()
		if !snap.Term.Held() || running != 3 {
			t.Fatalf("%d of 3 units run; term %+v", running, snap.Term)
		}
		old, index := snap.Term, 0
		if _, err := fmt.Sscanf(old.Leader.Name, "node-%d", &index); err != nil {
			t.Fatal(err)
		}
		wires[index].cut.Store(true)
		began := time.Now()
		await := func(what string, limit time.Duration, so func() bool) {
			for !so() {
				if time.Since(began) > limit {
					t.Fatalf("%s: not within %v", what, limit)
				}
				<-time.After(100 * time.Millisecond)
			}
			t.Logf("%s after %v", what, time.Since(began))
		}
		await("another leads", 7*time.Second, func() bool {
			snap, _ := snapshot()
			return snap.Term.Held() && snap.Term.Number > old.Number
		})
		await("all units run elsewhere", 16*time.Second, func() bool {
			snap, running := snapshot()
			for _, r := range snap.Units {
				if r.Holder.Incarnation == old.Leader.Incarnation {
					return false
				}
			}
			return running == 3
		})
	})
}

// TestStampsShareAWrite: the stamps of one process that wait at the same time are one write. Each
// gets its own answer.
func TestStampsShareAWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &meter{}
		store := mem.New(mem.Config{Latency: m.see})
		p := start(t, store, 0)
		m.reset()
		var all sync.WaitGroup
		errs := make([]error, 20)
		for i := range errs {
			all.Go(func() {
				f := daemon.Fence{Unit: daemon.Unit{Daemon: "acme:a", Index: i / 2}, Generation: int64(1 + i%2)}
				errs[i] = p.s.StampFence(t.Context(), f)
			})
		}
		all.Wait()
		if n := m.reset()["replace cluster"]; n > 2 {
			t.Errorf("%d writes for 20 stamps, want at most 2", n)
		}
		for i, err := range errs { // a lower generation of the same unit may come first, or be refused
			if i%2 == 1 && err != nil || i%2 == 0 && err != nil && !errors.Is(err, daemon.ErrStale) {
				t.Errorf("stamp %d: %v", i, err)
			}
			f := daemon.Fence{Unit: daemon.Unit{Daemon: "acme:a", Index: i / 2}, Generation: 2}
			if err := p.s.Fence(t.Context(), f); err != nil {
				t.Errorf("fence of unit %d: %v", i/2, err)
			}
		}
	})
}
