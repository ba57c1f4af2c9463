package blob_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/mem"
)

// Appending to an object that others append to as well. Each content is unique, because it only
// grows; so a write whose outcome is unknown is settled by reading.
func ExampleBucket() {
	ctx := context.Background()
	bucket := mem.New(mem.Config{})
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
				continue // somebody else was first
			}
			return err // nil, or an outcome that only a reader can tell
		}
	}
	fmt.Println(add("one"), add("two"))
	o, err := bucket.Read(ctx, "log")
	fmt.Println(string(o.Data), err)
	// Output:
	// <nil> <nil>
	// begin; one; two <nil>
}
