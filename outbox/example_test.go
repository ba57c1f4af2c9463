package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sqlite"
	"github.com/emitd/emitd/storage/memory"
)

// A message that is published in the transaction of the change it announces, and delivered by a relay.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	dir, err := os.MkdirTemp("", "outbox-example-*")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "shop.db")
	messages, err := sqlite.Open(ctx, sqlite.Config{Path: path}) // the log, for relays
	if err != nil {
		fmt.Println(err)
		return
	}
	defer messages.Close() // after Run has returned
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	publisher, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close(context.Background())

	err = publisher.InTx(ctx, db, func(tx *sqlite.Tx) error {
		if _, err := tx.ExecContext(ctx, "CREATE TABLE orders (id TEXT)"); err != nil { // the change
			return err
		}
		return publisher.Publish(ctx, tx, outbox.Message{Topic: "orders", Key: "alice", Payload: []byte("order 7")})
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	relay, err := outbox.NewRelay(outbox.Config{Name: "shop", Log: messages, Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		for _, row := range d.Rows {
			fmt.Printf("%s of %s: %s\n", row.Topic, row.Key, row.Payload)
		}
		stop() // an example has to end
		return nil
	})})
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{ // in production: a store that nodes share
		Profile: coordinator.ProfileFast, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.RegisterBuiltin(relay.Spec(), relay); err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: orders of alice: order 7
}
