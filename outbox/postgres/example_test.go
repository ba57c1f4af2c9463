package postgres_test

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/postgres"
)

// A message becomes part of the caller's transaction: it is delivered if that commits, and only then.
func Example() {
	ctx := context.Background()
	url := os.Getenv("DATABASE_URL")                                             // postgres://user:password@host/database
	log, err := postgres.Open(ctx, postgres.Config{URL: url, AutoMigrate: true}) // for relays; makes the tables
	if err != nil {
		fmt.Println(err)
		return
	}
	defer log.Close()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	publisher, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close(ctx)

	err = publisher.InTx(ctx, pool, func(tx *postgres.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (customer) VALUES ('alice')"); err != nil {
			return err
		}
		return publisher.Publish(ctx, tx, outbox.Message{Topic: "orders", Key: "alice", Payload: []byte("order 7")})
	})
	fmt.Println(err)
}
