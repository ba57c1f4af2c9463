package throttle_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/storage/blob/mem"
	"github.com/emitd/emitd/storage/blob/throttle"
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
