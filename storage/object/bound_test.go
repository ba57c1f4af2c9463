package object_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/object"
)

const bound = 64 << 10 // a sixteenth of it is more than what deflate makes of the same rows, now more and now less

var sweeper = daemon.Fence{Unit: daemon.Unit{Daemon: "emit:sweeper"}, Generation: 7}

// filled makes a cluster of a leader and another node. It adds keys until the bound leaves no room for another one, and
// returns the keys.
func filled(t *testing.T) (store *mem.Bucket, leader, p *process, keys []string) {
	t.Helper()
	store = mem.New(mem.Config{})
	leader, p = start(t, store, 0).lead(), start(t, store, 1)
	leader.s, p.s = open(t, store, object.Config{MaxBytes: bound}), open(t, store, object.Config{MaxBytes: bound})
	if err := leader.s.StampFence(t.Context(), sweeper); err != nil {
		t.Fatal(err)
	}
	for range 64 {
		leader.beat() // as many nonces as a content keeps
	}
	for n, i := 512, 0; n > 0; i++ {
		var add []string
		for j := range n {
			add = append(add, fmt.Sprintf("%08x", uint32(i*1000+j+1)*0x9e3779b1))
		}
		if err := change(leader, add, nil); err == nil {
			keys = append(keys, add...)
		} else if n /= 2; !errors.Is(err, storage.ErrFull) {
			t.Fatal(err)
		}
	}
	return store, leader, p, keys
}

func change(p *process, add, remove []string) error {
	_, err := p.s.ChangeKeys(p.t.Context(), storage.KeyChange{Daemon: "acme:reports", Add: add, Remove: remove})
	return err
}

// TestBoundLeavesRoom: a cluster at its bound takes nothing more, but it goes on: its leader renews the term, a node
// registers, another is declared dead, and somebody else leads. Once keys were removed and swept, there is room again.
func TestBoundLeavesRoom(t *testing.T) {
	t.Parallel()
	store, leader, p, keys := filled(t)
	for what, add := range map[string]func(i int) error{
		"commands": func(i int) error {
			_, err := p.s.Submit(t.Context(), storage.Command{ID: fmt.Sprint("x-", i), Kind: "other"})
			return err
		},
		"locks": func(i int) error {
			_, err := p.s.Acquire(t.Context(), fmt.Sprint("lock-", i), "me", time.Minute, storage.Lock{})
			return err
		},
		"declarations": func(i int) error {
			_, err := leader.commit(storage.Change{Unit: daemon.Unit{Daemon: "acme:other", Index: i}})
			return err
		},
	} {
		var err error
		for i := 0; err == nil && i < 30; i++ { // the first ones may still fit
			err = add(i)
		}
		if !errors.Is(err, storage.ErrFull) {
			t.Errorf("30 %s: got %v", what, err)
		}
	}
	for range 20 {
		leader.beat()
	}
	q := start(t, store, 2)
	q.s = open(t, store, object.Config{MaxBytes: bound})
	expire := storage.Commit{Term: leader.term.Ref(), Nodes: []storage.NodeChange{
		{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: p.seq}, State: node.Removed, Reason: "silent"},
	}}
	if _, err := leader.s.Commit(t.Context(), expire); err != nil || leader.row(p).State != node.Removed {
		t.Fatalf("the death: %v, %+v", err, leader.row(p))
	}
	leader.seq++
	if err := leader.s.Leave(t.Context(), storage.Leave{Node: leader.id, Seq: leader.seq, Resign: leader.term.Number}); err != nil {
		t.Fatal(err)
	}
	q.lead()
	if err := change(q, nil, keys[:500]); err != nil {
		t.Fatal(err)
	}
	if n, err := q.s.SweepUnits(t.Context(), sweeper, -time.Hour, 1000); err != nil || n != 500 {
		t.Fatalf("swept %d: %v", n, err)
	}
	if err := change(q, []string{"another"}, nil); err != nil {
		t.Error(err)
	}
}

// TestBoundOfWork: at the bound, a commit does what it may and skips the rest: it declares nothing, but gives units to
// nodes until another sixteenth is used, and still frees them afterwards.
func TestBoundOfWork(t *testing.T) {
	t.Parallel()
	store, leader, p, keys := filled(t)
	var held []daemon.Record
	n := 64
	for n > 0 {
		changes := []storage.Change{{Unit: daemon.Unit{Daemon: "acme:other"}}}
		for _, key := range keys[len(held):][:n] {
			u := daemon.Unit{Daemon: "acme:reports", Key: key}
			changes = append(changes, storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: p.id, Reason: "least loaded"})
		}
		out, err := leader.commit(changes...)
		switch {
		case errors.Is(err, storage.ErrFull):
			n /= 2
			continue
		case err != nil:
			t.Fatal(err)
		case out[0].Applied || !out[1].Applied || out[1].Record.Holder != p.id || !out[n].Applied:
			t.Fatalf("the outcomes %+v, %+v", out[:2], out[n])
		}
		for _, o := range out[1:] {
			held = append(held, o.Record)
		}
	}
	if size := len(copyOf(t, store)); len(held) < 3 || size > bound+bound/16 {
		t.Fatalf("%d bytes with %d assignments, the bound is %d", size, len(held), bound)
	}
	if _, err := p.report(t.Context(), held[0], daemon.Acknowledge); err != nil {
		t.Error(err)
	}
	if size := len(copyOf(t, store)); size > bound+bound/8 {
		t.Errorf("%d bytes, the bound is %d", size, bound)
	}
	changes := []storage.Change{
		{Unit: daemon.Unit{Daemon: "acme:other"}},
		{Unit: held[1].Unit, Step: daemon.Expire, State: held[1].State, Generation: held[1].Generation, Forced: true},
		{Unit: held[2].Unit, Step: daemon.Revoke, State: held[2].State, Generation: held[2].Generation},
	}
	for _, key := range keys[len(held):][:100] {
		changes = append(changes, storage.Change{Unit: daemon.Unit{Daemon: "acme:reports", Key: key}, Step: daemon.Assign, State: daemon.Unassigned, To: p.id})
	}
	out, err := leader.commit(changes...)
	if err != nil || len(out) != len(changes) {
		t.Fatal(len(out), err)
	}
	for i, o := range out {
		if freed := i == 1 || i == 2; o.Applied != freed || o.Unit != changes[i].Unit || i > 0 && o.Record.Unit != o.Unit {
			t.Errorf("outcome %d is %+v", i, o)
		}
	}
	for range 20 {
		leader.beat()
	}
}
