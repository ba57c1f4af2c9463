package storagetest

import (
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// Bench runs the benchmarks that all backends share: one heartbeat of a follower (20 units held)
// and of a leader, a commit of 100 assignments (and, in the same time, of the 100 that free the
// units again), and a snapshot of 100 nodes and 1000 units.
func Bench(b *testing.B, f Factory) {
	b.Run("heartbeat/follower", func(b *testing.B) { benchFollower(b, f) })
	b.Run("heartbeat/leader", func(b *testing.B) { benchLeader(b, f) })
	b.Run("commit/100", func(b *testing.B) { benchCommit(b, f) })
	b.Run("snapshot/100x1000", func(b *testing.B) { benchSnapshot(b, f) })
}

// fill makes a cluster of that many nodes, each holding that many units.
func fill(b *testing.B, f Factory, nodes, each int) (*world, leader, []*peer) {
	b.Helper()
	w := open(b, f)
	l, peers := w.cluster(nodes - 1)
	peers = append(peers, l.peer)
	var changes []storage.Change
	flush := func() {
		for _, o := range l.commit(changes...) {
			w.holds(o.Applied, "%+v was skipped", o)
		}
		changes = nil
	}
	for i := range nodes * each {
		u := daemon.Unit{Daemon: "acme:bench", Index: i}
		changes = append(changes, storage.Change{Unit: u},
			storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: peers[i%nodes].id, AcknowledgeTimeout: 30 * time.Second})
		if len(changes) >= storage.MaxChanges {
			flush()
		}
	}
	flush()
	return w, l, peers
}

func benchFollower(b *testing.B, f Factory) {
	_, _, peers := fill(b, f, 5, 20)
	p := peers[0]
	head := p.w.snapshot().Head
	b.ReportAllocs()
	for b.Loop() {
		if r := p.beat(after(head), heard(p.seq)); len(r.Units) != 20 {
			b.Fatalf("%d units, want 20", len(r.Units))
		}
	}
}

func benchLeader(b *testing.B, f Factory) {
	_, l, _ := fill(b, f, 5, 20)
	head := l.w.snapshot().Head
	b.ReportAllocs()
	for b.Loop() {
		if r := l.beat(after(head), heard(l.seq), renew(l.term.Number, long), passes(l.seq)); r.Verdict != storage.Renew {
			b.Fatalf("verdict %v, want a renewal", r.Verdict)
		}
	}
}

func benchCommit(b *testing.B, f Factory) {
	w := open(b, f)
	l, peers := w.cluster(4)
	var changes []storage.Change
	for i := range 100 {
		changes = append(changes, storage.Change{Unit: daemon.Unit{Daemon: "acme:bench", Index: i}})
	}
	commit := func() []daemon.Record {
		var out []daemon.Record
		for _, o := range l.commit(changes...) {
			w.holds(o.Applied, "%+v was skipped", o)
			out = append(out, o.Record)
		}
		return out
	}
	rows := commit()
	b.ReportAllocs()
	for b.Loop() {
		for _, step := range []daemon.Step{daemon.Assign, daemon.Expire} {
			for i, r := range rows {
				changes[i] = on(r, step, func(c *storage.Change) { c.To = peers[i%len(peers)].id })
			}
			rows = commit()
		}
	}
}

func benchSnapshot(b *testing.B, f Factory) {
	w, _, _ := fill(b, f, 100, 10)
	b.ReportAllocs()
	for b.Loop() {
		if s := w.snapshot(); len(s.Nodes) != 100 || len(s.Units) != 1000 {
			b.Fatalf("%d nodes and %d units, want 100 and 1000", len(s.Nodes), len(s.Units))
		}
	}
}
