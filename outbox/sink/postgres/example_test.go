package postgres_test

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/postgres"
)

// A relay that writes messages into a table of another database, each exactly once.
func Example() {
	s, err := postgres.New(context.Background(), postgres.Config{URL: "postgres://receiver@localhost/warehouse", Table: "inbox", Create: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()         // after the coordinator's Run has returned
	var messages outbox.Log // from Open of outbox/postgres or outbox/sqlite
	relay, err := outbox.NewRelay(outbox.Config{Name: "shop", Log: messages, Sink: s})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(relay.Spec().ID) // register it with Coordinator.RegisterBuiltin
}
