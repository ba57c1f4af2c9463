package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sqlite"
)

// A message becomes part of the caller's transaction. If that is rolled back, there is no message.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "outbox-example-*")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "shop.db")
	log, err := sqlite.Open(ctx, sqlite.Config{Path: path}) // makes the tables
	if err != nil {
		fmt.Println(err)
		return
	}
	defer log.Close()
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
	defer publisher.Close(ctx)

	soldOut := errors.New("sold out")
	err = publisher.InTx(ctx, db, func(tx *sqlite.Tx) error {
		if err := publisher.Publish(ctx, tx, outbox.Message{Topic: "orders", Key: "alice", Payload: []byte("order 7")}); err != nil {
			return err
		}
		return soldOut // the transaction is rolled back, and nothing is delivered
	})
	fmt.Println(err)
	// Output: sold out
}
