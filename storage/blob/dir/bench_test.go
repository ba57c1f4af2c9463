package dir

import (
	"fmt"
	"sync"
	"testing"

	"github.com/emitd/emitd/internal/testproc"
)

// benchBucket is a synced bucket with n objects of a segment's size.
func benchBucket(b *testing.B, n int) *Bucket {
	b.Helper()
	bucket, err := Open(Config{Path: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		createSegment(b, bucket, i)
	}
	return bucket
}

func segmentKey(i int) string { return fmt.Sprintf("v1/q/default/0/log/%016x", i) }

func createSegment(b *testing.B, bucket *Bucket, i int) {
	if _, err := bucket.Create(b.Context(), segmentKey(i), make([]byte, 2048)); err != nil {
		b.Fatal(err)
	}
}

// measured reports the processor time of one operation, beside the time.
func measured(b *testing.B, do func()) {
	b.ResetTimer()
	before := testproc.ProcessTime()
	do()
	b.ReportMetric(float64((testproc.ProcessTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	b.StopTimer()
}

// BenchmarkCreate creates objects of a segment's size, one after the other.
func BenchmarkCreate(b *testing.B) {
	bucket := benchBucket(b, 1)
	measured(b, func() {
		for i := range b.N {
			createSegment(b, bucket, i+1)
		}
	})
}

// BenchmarkDelete deletes objects, 16 at a time, as the collector of a journal does.
func BenchmarkDelete(b *testing.B) {
	bucket := benchBucket(b, b.N)
	measured(b, func() {
		var all sync.WaitGroup
		for w := range 16 {
			all.Go(func() {
				for i := w; i < b.N; i += 16 {
					if err := bucket.Delete(b.Context(), segmentKey(i)); err != nil {
						b.Error(err)
					}
				}
			})
		}
		all.Wait()
	})
}

// BenchmarkList lists 1,000 objects.
func BenchmarkList(b *testing.B) {
	bucket := benchBucket(b, 1000)
	measured(b, func() {
		for range b.N {
			if page, err := bucket.List(b.Context(), "v1/q/default/0/log/", "", 0); err != nil || len(page.Entries) != 1000 {
				b.Fatal(len(page.Entries), err)
			}
		}
	})
}
