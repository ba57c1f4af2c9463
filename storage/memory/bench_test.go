package memory_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

func BenchmarkSmall(b *testing.B) {
	ctx := context.Background()
	s := memory.Open(memory.Config{})
	adv := &daemon.Advert{Traits: node.Traits{Capacity: 1}}
	var ids []node.Identity
	var seq uint64
	var term node.Term
	for i := range 5 {
		id := node.Identity{Name: fmt.Sprint("n", i), ID: node.ID(fmt.Sprint("id", i)), Incarnation: node.Incarnation(fmt.Sprint("0198c5a2-aaaa-7aaa-8aaa-00000000000", i))}
		ids = append(ids, id)
		seq++
		r, err := s.Heartbeat(ctx, storage.Heartbeat{Node: id, Seq: seq, Advert: adv, TTL: time.Minute, Claim: storage.Claim{Lease: time.Minute, Stand: i == 0}})
		if err != nil {
			b.Fatal(err)
		}
		term = r.Term
	}
	var ch []storage.Change
	for i := range 100 {
		ch = append(ch, storage.Change{Unit: daemon.Unit{Daemon: "acme:reports", Index: i}})
	}
	for i := range 100 {
		ch = append(ch, storage.Change{Unit: daemon.Unit{Daemon: "acme:reports", Index: i}, Step: daemon.Assign, State: daemon.Unassigned, To: ids[i%5]})
	}
	if _, err := s.Commit(ctx, storage.Commit{Term: term.Ref(), Changes: ch}); err != nil {
		b.Fatal(err)
	}
	b.Run("heartbeat", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			seq++
			r, err := s.Heartbeat(ctx, storage.Heartbeat{Node: ids[i%5], Seq: seq, Heard: seq - 5, EventsAfter: 5, Claim: storage.Claim{Lease: time.Minute, Holds: term.Number}})
			if err != nil || len(r.Units) != 20 {
				b.Fatal(err)
			}
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			r, err := s.Snapshot(ctx)
			if err != nil || len(r.Units) != 100 {
				b.Fatal(err)
			}
		}
	})
	b.Run("clone", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			s.Clone()
		}
	})
}
