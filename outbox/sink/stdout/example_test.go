package stdout_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/stdout"
)

// A sink that writes each message as a line of JSON. Give it to outbox.NewRelay.
func Example() {
	s, err := stdout.New(context.Background(), stdout.Config{Writer: os.Stdout})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	row := outbox.Row{Seq: 1, Attempt: 1, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	row.Message = outbox.Message{ID: uuid.Nil, Topic: "orders", Key: "alice", Payload: []byte(`{"number":7}`)}
	if errs := s.Deliver(context.Background(), outbox.Delivery{Subscription: "shop", Rows: []outbox.Row{row}}); errs != nil {
		fmt.Println(errs)
	}
	// Output: {"id":"00000000-0000-0000-0000-000000000000","topic":"orders","key":"alice","subscription":"shop","shard":0,"generation":0,"created_at":"2026-01-02T03:04:05Z","payload":{"number":7}}
}
