package dir_test

import (
	"context"
	"fmt"
	"os"

	"github.com/emitd/emitd/storage/blob/dir"
)

// A directory as a bucket. Several processes of one machine may have it open.
func Example() {
	ctx := context.Background()
	path, err := os.MkdirTemp("", "dir-example-*")
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
	if _, err := bucket.Create(ctx, "reports/1", []byte("done")); err != nil {
		fmt.Println(err)
		return
	}
	o, err := bucket.Read(ctx, "reports/1")
	fmt.Println(string(o.Data), err)
	// Output: done <nil>
}
