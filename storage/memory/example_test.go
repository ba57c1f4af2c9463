package memory_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/coordinator/lock"
	"github.com/emitd/emitd/storage/memory"
)

// A store for tests and for programs of one process: two owners compete for one lock.
func Example() {
	store := memory.Open(memory.Config{})
	ctx := context.Background()
	locks, err := lock.New(store, lock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	first, err := locks.Acquire(ctx, "nightly-report")
	if err != nil {
		fmt.Println(err)
		return
	}
	first.Release(ctx)
	second, err := locks.Acquire(ctx, "nightly-report")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer second.Release(ctx)
	fmt.Println("the number grows:", second.Number() > first.Number())
	// Output: the number grows: true
}
