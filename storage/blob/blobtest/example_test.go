package blobtest_test

import (
	"testing"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
	"github.com/emitd/emitd/storage/blob/mem"
)

// The test of a bucket of one's own. Open returns a function that opens the same bucket once more, as another process
// would.
func Example() {
	testConformance := func(t *testing.T) {
		blobtest.Run(t, blobtest.Config{Open: func(*testing.T) func() blob.Bucket {
			bucket := mem.New(mem.Config{}) // the bucket under test
			return func() blob.Bucket { return bucket }
		}})
	}
	_ = testConformance // go test runs it as TestConformance
}
