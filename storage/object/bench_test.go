package object_test

import (
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/object"
	"github.com/emitd/emitd/storage/storagetest"
)

// BenchmarkStore runs the benchmarks that all backends share, on a bucket without latency. What
// remains is the encoding of the cluster object.
func BenchmarkStore(b *testing.B) {
	storagetest.Bench(b, storagetest.Factory{
		Open: func(t testing.TB) storagetest.Backend {
			return backend(t, mem.New(mem.Config{}), object.Config{})
		},
		Lacks: storagetest.Clock | storagetest.FrozenClock | storagetest.Tx | storagetest.Wakes,
	})
}
