package queuetest_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
)

// A test of code that submits jobs: it gets a queue in memory, and the test looks what is in it.
func Example() {
	ctx := context.Background()
	welcome := func(q queue.Producer, user string) error { // the code under test
		_, err := q.Enqueue(ctx, "mail", []queue.Job{{ID: "welcome-" + user}})
		return err
	}
	q := queuetest.New()
	fmt.Println(welcome(q, "7"))
	info, _, err := q.Get(ctx, "mail", "welcome-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.State)
	// Output:
	// <nil>
	// waiting
}
