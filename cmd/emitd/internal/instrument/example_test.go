package instrument_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/cmd/emitd/internal/instrument"
	"github.com/emitd/emitd/internal/storage/mem"
)

// A bucket whose requests appear in the program's metrics and traces. Without providers of its own it uses
// OpenTelemetry's global ones.
func Example() {
	bucket, err := instrument.New(mem.New(mem.Config{}), instrument.Config{System: "mem"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = bucket.Create(context.Background(), "reports/1", []byte("done"))
	fmt.Println(err)
	// Output: <nil>
}
