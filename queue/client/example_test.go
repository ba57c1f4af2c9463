package client_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/queue/queuetest"
)

func Example() {
	handler, err := api.New(queuetest.New(), api.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(handler) // in production: any node of emitd
	defer server.Close()

	ctx := context.Background()
	q, err := client.New(client.Config{Addresses: []string{server.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer q.Close()
	for range 2 { // the second time is a repetition
		receipts, err := q.Enqueue(ctx, "mail", []queue.Job{{Key: "order-7", Payload: []byte(`{"to":"a@example.org"}`)}})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(receipts[0].State, receipts[0].Duplicate)
	}
	_, err = q.Settle(ctx, "mail", []queue.Settlement{{Verb: queue.Complete, ID: "x"}})
	fmt.Println(queue.TagOf(err))
	// Output:
	// waiting false
	// waiting true
	// BadRequest
}
