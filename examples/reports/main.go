// Reports is the program of the README: an agent with four instances that takes jobs and saves each
// result in one fenced transaction, on Postgres.
//
//	emitd migrate up --store "$DATABASE_URL"
//	psql "$DATABASE_URL" -c 'CREATE TABLE report (job bigint)'
//	DATABASE_URL=postgres://… go run ./examples/reports
//
// If no node of emitd runs in the same cluster, such a program also registers the sweeper, as examples/embed does:
// otherwise the history of the cluster grows for ever.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/postgres"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := connect(ctx)
	cancel()
	if err != nil {
		log.Fatal(err)
	}
}

func connect(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	return run(ctx, pool)
}

// run is the README's program, line by line; a test compares them.
func run(ctx context.Context, pool *pgxpool.Pool) error {
	store, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer store.Close()
	c, err := coordinator.New(store, coordinator.Config{
		Node: node.Identity{Name: os.Getenv("POD_NAME")}, Hooks: coordinator.Hooks{
			OnLeaderElected: func(ctx context.Context, t node.Term) { log.Printf("leading term %d", t.Ordinal) },
			OnLeaderLost:    func(t node.Term, why node.LossReason) { log.Printf("lost term %d: %s", t.Ordinal, why) },
		},
	})
	if err != nil {
		return err
	}
	reports := daemon.Each(func(ctx context.Context, a *daemon.Assignment) error {
		job, err := next(ctx) // ctx ends when ownership does; between jobs a drain ends the loop
		if err != nil {
			return err
		}
		return store.InTx(ctx, pool, a.Fence(), func(tx pgx.Tx) error { return save(ctx, tx, job) }) // daemon.ErrStale if a later run owns the unit
	})
	if err := c.Register(daemon.Spec{ID: "acme:reports", Instances: 4}, reports); err != nil {
		return err
	}
	return c.Run(ctx) // nil after a clean stop because ctx ended
}

// next waits for a job; in this example it only waits a moment.
func next(ctx context.Context) (int64, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case at := <-time.After(100 * time.Millisecond):
		return at.UnixMilli(), nil
	}
}

// save writes the result, in the transaction that checked the fence.
func save(ctx context.Context, tx pgx.Tx, job int64) error {
	_, err := tx.Exec(ctx, `INSERT INTO report (job) VALUES ($1)`, job)
	return err
}
