package object_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/object"
)

// overfull is a cluster that is larger than its bound: a leader, another node, and keys with states. They make it so large that
// what deflate makes of the same rows, now more and now less, is no thirty-second of it.
type overfull struct {
	t         *testing.T
	store     *mem.Bucket
	leader, p *process
	keys      []string
}

var sweeper = daemon.Fence{Unit: daemon.Unit{Daemon: "emit:sweeper"}, Generation: 7}

// newOverfull makes such a cluster. Its size is a bound and so many thirty-seconds of it.
func newOverfull(t *testing.T, thirtySeconds int) *overfull {
	t.Helper()
	store := mem.New(mem.Config{})
	f := &overfull{t: t, store: store, leader: start(t, store, 0).lead(), p: start(t, store, 1)}
	for range 64 {
		f.leader.beat() // as many nonces as a content keeps
	}
	for i := range 750 {
		f.keys = append(f.keys, fmt.Sprintf("key-%03d", i))
	}
	f.ok(f.change(f.keys, nil), f.leader.s.StampFence(t.Context(), sweeper))
	f.forEachKey(func(key string) error { return f.leader.s.StampFence(t.Context(), fenceOf(key)) })
	f.forEachKey(func(key string) error { return f.save(key, 1, 225) })
	f.exceed(thirtySeconds)
	return f
}

// exceed gives both nodes a bound that the size exceeds by so many thirty-seconds. The size is the median of some.
func (f *overfull) exceed(thirtySeconds int) {
	f.leader.s = open(f.t, f.store, object.Config{})
	var sizes []int
	for range 7 {
		f.leader.beat()
		sizes = append(sizes, len(copyOf(f.t, f.store)))
	}
	slices.Sort(sizes)
	cfg := object.Config{MaxBytes: sizes[3] * 32 / (32 + thirtySeconds)}
	f.leader.s, f.p.s = open(f.t, f.store, cfg), open(f.t, f.store, cfg)
}

func keyed(key string) daemon.Unit    { return daemon.Unit{Daemon: "acme:reports", Key: key} }
func fenceOf(key string) daemon.Fence { return daemon.Fence{Unit: keyed(key), Generation: 1} }

func assignTo(p *process, key string) storage.Change {
	return storage.Change{Unit: keyed(key), Step: daemon.Assign, State: daemon.Unassigned, To: p.id}
}

func (f *overfull) ok(errs ...error) {
	f.t.Helper()
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
}

// forEachKey makes a call for each key at the same time, so that they share writes.
func (f *overfull) forEachKey(call func(key string) error) {
	f.t.Helper()
	errs := make([]error, len(f.keys))
	var all sync.WaitGroup
	for i, key := range f.keys {
		all.Go(func() { errs[i] = call(key) })
	}
	all.Wait()
	f.ok(errs...)
}

func (f *overfull) change(add, remove []string) error {
	_, err := f.leader.s.ChangeKeys(f.t.Context(), storage.KeyChange{Daemon: "acme:reports", Add: add, Remove: remove})
	return err
}

// save saves random bytes as the state of a key's unit.
func (f *overfull) save(key string, revision int64, length int) error {
	noise := make([]byte, length)
	_, _ = rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%32s", key)))).Read(noise) // never fails
	data := fmt.Appendf(nil, "%q", base64.StdEncoding.EncodeToString(noise))
	return f.leader.s.SaveUnitState(f.t.Context(), fenceOf(key), daemon.UnitState{Revision: revision, Data: data})
}

// TestBoundLeavesRoom: a cluster at its bound takes nothing more, but it goes on: its leader renews the term, a node
// registers, another is declared dead, and somebody else leads. Once keys were removed and swept, there is room again.
func TestBoundLeavesRoom(t *testing.T) {
	t.Parallel()
	f := newOverfull(t, 3)
	_, submitted := f.p.s.Submit(t.Context(), storage.Command{ID: "x", Kind: "other"})
	_, locked := f.p.s.Acquire(t.Context(), "lock", "me", time.Minute, storage.Lock{})
	_, declared := f.leader.commit(storage.Change{Unit: unit})
	_, assigned := f.leader.commit(assignTo(f.p, f.keys[0]))
	for what, err := range map[string]error{
		"a key": f.change([]string{"another"}, nil), "a command": submitted, "a lock": locked, "a declaration": declared,
		"an assignment": assigned, "a fence": f.p.s.StampFence(t.Context(), daemon.Fence{Unit: unit, Generation: 1}),
		"a longer state": f.save(f.keys[0], 2, 228),
	} {
		if !errors.Is(err, storage.ErrFull) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	f.ok(f.save(f.keys[0], 2, 225))
	for range 5 {
		f.leader.beat()
	}
	q := start(t, f.store, 2)
	q.s = f.leader.s
	expire := storage.Commit{Term: f.leader.term.Ref(), Nodes: []storage.NodeChange{
		{Guard: storage.NodeVersion{Incarnation: f.p.id.Incarnation, Seq: f.p.seq}, State: node.Removed, Reason: "silent"},
	}}
	if _, err := f.leader.s.Commit(t.Context(), expire); err != nil || f.leader.row(f.p).State != node.Removed {
		t.Fatalf("the death: %v, %+v", err, f.leader.row(f.p))
	}
	f.leader.seq++
	f.ok(f.leader.s.Leave(t.Context(), storage.Leave{Node: f.leader.id, Seq: f.leader.seq, Resign: f.leader.term.Number}))
	q.lead()
	f.ok(f.change(nil, f.keys[10:]))
	if n, err := q.s.SweepUnits(t.Context(), sweeper, -time.Hour, 1000); err != nil || n != 740 {
		t.Fatalf("swept %d: %v", n, err)
	}
	f.ok(f.change([]string{"another"}, nil))
}

// TestBoundOfWork: at the bound, units are given to nodes until another sixteenth is used. A commit does what it may, and
// skips the rest.
func TestBoundOfWork(t *testing.T) {
	t.Parallel()
	f := newOverfull(t, 1)
	commit := func(changes ...storage.Change) []storage.Outcome {
		t.Helper()
		out, err := f.leader.commit(changes...)
		if err != nil || len(out) != len(changes) {
			t.Fatal(out, err)
		}
		for i, ch := range changes {
			if out[i].Unit != ch.Unit || ch.Unit != unit && out[i].Record.Unit != ch.Unit {
				t.Errorf("outcome %d is %+v", i, out[i])
			}
		}
		return out
	}
	out := commit(storage.Change{Unit: unit}, assignTo(f.p, f.keys[0]), assignTo(f.p, f.keys[1]))
	if out[0].Applied || !out[1].Applied || !out[2].Applied {
		t.Fatalf("the outcomes are %+v", out)
	}
	f.ok(f.save(f.keys[0], 2, 228))
	if _, err := f.p.report(t.Context(), out[1].Record, daemon.Acknowledge); err != nil {
		t.Error(err)
	}
	f.exceed(3)
	r := out[2].Record
	out = commit(
		storage.Change{Unit: unit}, assignTo(f.p, f.keys[2]), assignTo(f.p, f.keys[3]),
		storage.Change{Unit: r.Unit, Step: daemon.Revoke, State: r.State, Generation: r.Generation},
	)
	if out[0].Applied || out[1].Applied || out[2].Applied || !out[3].Applied {
		t.Errorf("the outcomes are %+v", out)
	}
	again := storage.Change{Unit: keyed(f.keys[4]), State: daemon.Unassigned}
	retired := again
	retired.Retired = true
	if out = commit(retired); !out[0].Applied {
		t.Fatalf("the outcomes are %+v", out)
	}
	if out = commit(storage.Change{Unit: unit}, again); out[0].Applied || !out[1].Applied {
		t.Errorf("a unit with a row is declared again: the outcomes are %+v", out)
	}
}
