package operator_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/emitd/emitd/coordinator/operator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/memory"
)

// A drain of a node that does not exist is refused, and nothing is stored.
func Example() {
	ops := operator.Client{Store: memory.Open(memory.Config{}), Actor: "alice"}
	args := daemon.CommandArgs{Node: "node-1"}
	_, err := ops.Do(context.Background(), daemon.Command{
		Kind: daemon.CommandDrain, Reason: "new kernel", Args: args.Encode(),
	})
	var refused *operator.RefusedError
	fmt.Println(errors.As(err, &refused), err)
	// Output: true command node.drain: refused: no node is named "node-1"
}
