package worker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/queue/worker"
)

func Example() {
	type Email struct {
		To string `json:"to"`
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()

	q := queuetest.New() // in production: client.New, or the broker in this process
	w, err := worker.New(q, worker.Config{Concurrency: 1, Hooks: worker.Hooks{
		OnFailed: func(j queue.Info, err error, state queue.State) {
			fmt.Println(j.ID, "is", state, "because", err)
			stop() // an example has to end
		},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	worker.Handle(w, "email:send", func(_ context.Context, j worker.Job[Email]) error {
		if j.Args.To == "" {
			return worker.Permanent(errors.New("nobody to send to"))
		}
		fmt.Println("sending", j.ID, "to", j.Args.To)
		return nil
	})

	_, err = q.Enqueue(ctx, "default", []queue.Job{
		{ID: "hello", Type: "email:send", Payload: []byte(`{"to":"a@example.org"}`)},
		{ID: "empty", Type: "email:send", Payload: []byte(`{}`)},
	})
	if err != nil {
		fmt.Println(err)
	}
	if err := w.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// sending hello to a@example.org
	// empty is dead because nobody to send to
}
