package client_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/queue/queuetest"
)

// oneState is a store that always returns the same state. In production it is the cluster's store,
// from postgres.Open, sqlite.Open or object.Open.
type oneState struct{ state daemon.Snapshot }

func (c *oneState) Snapshot(context.Context) (*daemon.Snapshot, error) { return &c.state, nil }

// A client that can read the cluster store needs no node's address: it calls the node that serves
// the queue, and the next one after a failover.
func ExampleNewLocator() {
	handler, err := api.New(queuetest.New(), api.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(handler) // in production: the node's own listener
	defer server.Close()
	holder := node.Member{State: node.Live}
	holder.Incarnation, holder.Address = "a", server.Listener.Addr().String()
	store := &oneState{daemon.Snapshot{Nodes: []node.Member{holder}, Units: []daemon.Record{{
		Unit: daemon.Unit{Daemon: "emit:queue/mail"}, State: daemon.Active, Generation: 7, Holder: holder.Identity,
	}}}}

	q, err := client.New(client.Config{Locator: client.NewLocator(client.LocatorConfig{Cluster: store})})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer q.Close()
	receipts, err := q.Enqueue(context.Background(), "mail", []queue.Job{{ID: "order-7"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(receipts[0].ID, receipts[0].State)
	// Output: order-7 waiting
}
