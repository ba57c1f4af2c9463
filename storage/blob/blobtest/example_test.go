package blobtest_test

import (
	"testing"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
	"github.com/emitd/emitd/storage/blob/dir"
)

// The test of a bucket of one's own. Open returns a function that opens the same bucket once more, as another process
// would.
func Example() {
	testConformance := func(t *testing.T) {
		blobtest.Run(t, blobtest.Config{Open: func(t *testing.T) func() blob.Bucket {
			path := t.TempDir()
			return func() blob.Bucket {
				bucket, err := dir.Open(dir.Config{Path: path}) // the bucket under test
				if err != nil {
					t.Fatal(err)
				}
				return bucket
			}
		}})
	}
	_ = testConformance // go test runs it as TestConformance
}
