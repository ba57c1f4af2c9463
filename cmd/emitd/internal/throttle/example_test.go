package throttle_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/cmd/emitd/internal/throttle"
	"github.com/emitd/emitd/internal/storage/mem"
)

// A bucket with at most 100 writes a second, and bursts of 10, whatever its users want.
func Example() {
	bucket, err := throttle.New(mem.New(mem.Config{}), throttle.Config{Writes: throttle.Rate{PerSecond: 100, Burst: 10}})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = bucket.Create(context.Background(), "reports/1", []byte("done"))
	fmt.Println(err)
	// Output: <nil>
}
