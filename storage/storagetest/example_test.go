package storagetest_test

import (
	"testing"

	"github.com/emitd/emitd/storage/memory"
	"github.com/emitd/emitd/storage/storagetest"
)

// The test of a store of one's own: the suite checks everything that package storage promises.
func Example() {
	testConformance := func(t *testing.T) {
		storagetest.Run(t, storagetest.Factory{Open: func(t testing.TB) storagetest.Backend {
			return storagetest.Backend{Store: memory.Open(memory.Config{})} // the store under test
		}})
	}
	_ = testConformance // go test runs it as TestConformance
}
