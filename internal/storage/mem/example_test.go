package mem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/blob"
)

// A bucket for tests. A second writer who has read an older version changes nothing.
func Example() {
	ctx := context.Background()
	bucket := mem.New(mem.Config{})
	old, err := bucket.Create(ctx, "state", []byte("1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := bucket.Replace(ctx, "state", []byte("2"), old); err != nil {
		fmt.Println(err)
		return
	}
	_, err = bucket.Replace(ctx, "state", []byte("3"), old)
	fmt.Println("refused:", errors.Is(err, blob.ErrChanged))
	// Output: refused: true
}
