package object_test

import (
	"context"
	"fmt"
	"os"

	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/object"
)

// A cluster without a database: its state is one object in a bucket. Here the bucket is a directory; s3.Open and
// gcs.Open return the same kind of bucket.
func Example() {
	ctx := context.Background()
	path, err := os.MkdirTemp("", "object-example-*")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(path)
	bucket, err := dir.Open(dir.Config{Path: path})
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := object.Open(ctx, bucket, object.Config{}) // give it to coordinator.New
	if err != nil {
		fmt.Println(err)
		return
	}
	state, err := store.Snapshot(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(state.Nodes), "nodes")
	// Output: 0 nodes
}
