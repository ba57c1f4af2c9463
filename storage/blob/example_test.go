package blob_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/dir"
)

// Appending to an object to which others also append. Each content is unique, because it only
// grows. A write with an unknown outcome can therefore be resolved by reading.
func ExampleBucket() {
	ctx := context.Background()
	path, err := os.MkdirTemp("", "emitd-example-*")
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
	if _, err := bucket.Create(ctx, "log", []byte("begin")); err != nil {
		fmt.Println(err)
	}
	add := func(line string) error {
		for {
			o, err := bucket.Read(ctx, "log")
			if err != nil {
				return err
			}
			_, err = bucket.Replace(ctx, "log", append(o.Data, "; "+line...), o.Version)
			if errors.Is(err, blob.ErrChanged) && blob.NotApplied(err) {
				continue // another writer was first
			}
			return err // nil, or an unknown outcome
		}
	}
	fmt.Println(add("one"), add("two"))
	o, err := bucket.Read(ctx, "log")
	fmt.Println(string(o.Data), err)
	// Output:
	// <nil> <nil>
	// begin; one; two <nil>
}
