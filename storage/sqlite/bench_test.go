package sqlite

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/storagetest"
)

// BenchmarkStore runs the benchmarks that all backends share.
func BenchmarkStore(b *testing.B) {
	storagetest.Bench(b, storagetest.Factory{Open: openBackend})
}

// BenchmarkHeartbeat counts the heartbeats that one process can send, for each way to synchronise.
func BenchmarkHeartbeat(b *testing.B) {
	for _, sync := range []Sync{SyncNormal, SyncFull} {
		b.Run(string(sync), func(b *testing.B) {
			s := mustOpen(b, Config{Path: filepath.Join(b.TempDir(), "store.db"), Sync: sync})
			who := someone("a")
			seq := uint64(1)
			beat(b, s, storage.Heartbeat{Node: who, Seq: seq, Advert: plainAdvert, TTL: time.Hour})
			for b.Loop() {
				seq++
				beat(b, s, storage.Heartbeat{Node: who, Seq: seq, ConfirmedSeq: seq - 1, EventsAfter: 1})
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ticks/s")
		})
	}
}

// BenchmarkInTx counts a user's fenced transactions.
func BenchmarkInTx(b *testing.B) {
	s, f := fenced(b)
	db := ledger(b, s, "")
	for b.Loop() {
		ok(b, s.InTx(context.Background(), db, f, add))
	}
}
