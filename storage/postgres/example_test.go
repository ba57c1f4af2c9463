package postgres_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/postgres"
)

// A node whose agent writes only while it has its unit: a run that was replaced is refused by the database.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url := os.Getenv("DATABASE_URL") // postgres://user:password@host/database
	store, err := postgres.OpenConfig(ctx, postgres.Config{URL: url, AutoMigrate: true})
	if err != nil {
		log.Print(err)
		return
	}
	defer store.Close()                // after Run has returned
	pool, err := pgxpool.New(ctx, url) // for the program's own tables, in the same database
	if err != nil {
		log.Print(err)
		return
	}
	defer pool.Close()

	c, err := coordinator.New(store, coordinator.Config{})
	if err != nil {
		log.Print(err)
		return
	}
	err = c.Register(daemon.Spec{ID: "acme:reports"}, daemon.Each(func(ctx context.Context, a *daemon.Assignment) error {
		return store.InTx(ctx, pool, a.Fence(), func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO reports DEFAULT VALUES")
			return err
		})
	}))
	if err != nil {
		log.Print(err)
		return
	}
	if err := c.Run(ctx); err != nil {
		log.Print(err)
	}
}
