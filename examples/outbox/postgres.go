package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	outboxpg "github.com/emitd/emitd/outbox/postgres"
	"github.com/emitd/emitd/storage/postgres"
)

// openPostgres opens one database for everything: the shop's tables, the log of messages, the cluster.
func openPostgres(ctx context.Context, url string) (*shop, error) {
	store, err := postgres.OpenConfig(ctx, postgres.Config{URL: url, AutoMigrate: true})
	if err != nil {
		return nil, err
	}
	messages, err := outboxpg.Open(ctx, outboxpg.Config{URL: url, AutoMigrate: true})
	if err != nil {
		store.Close()
		return nil, err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		messages.Close()
		store.Close()
		return nil, err
	}
	pub, err := outboxpg.New(pool, outboxpg.Config{})
	if err == nil {
		_, err = pool.Exec(ctx, `
			SELECT pg_advisory_xact_lock(20); -- two processes may begin at once
			CREATE TABLE IF NOT EXISTS customers (name text PRIMARY KEY, orders int NOT NULL);
			CREATE TABLE IF NOT EXISTS orders (id uuid PRIMARY KEY, customer text NOT NULL, number int NOT NULL, item text NOT NULL);
			CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, pieces int NOT NULL);
			INSERT INTO stock VALUES ('book', 1000000), ('pen', 1000000), ('lamp', 4) ON CONFLICT DO NOTHING`)
	}
	s := &shop{store: store, log: messages, sweep: messages.Tasks()}
	s.place = func(ctx context.Context, o order) error { return placePostgres(ctx, pool, pub, o) }
	s.close = func() {
		if pub != nil {
			_ = pub.Close(context.Background())
		}
		pool.Close()
		messages.Close()
		store.Close()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func placePostgres(ctx context.Context, pool *pgxpool.Pool, pub *outboxpg.Publisher, o order) error {
	return pub.InTx(ctx, pool, func(tx *outboxpg.Tx) error {
		// This locks the customer until the transaction ends. So the messages that are published after it have
		// the order of the numbers.
		err := tx.QueryRow(ctx, `INSERT INTO customers (name, orders) VALUES ($1, 1)
			ON CONFLICT (name) DO UPDATE SET orders = customers.orders + 1 RETURNING orders`, o.Customer).Scan(&o.Number)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1, $2, $3, $4)`, o.ID, o.Customer, o.Number, o.Item); err != nil {
			return err
		}
		// Delivered if this transaction commits, and only then.
		if err := pub.Publish(ctx, tx, o.placed()); err != nil {
			return err
		}
		taken, err := tx.Exec(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE item = $1 AND pieces > 0`, o.Item)
		if err == nil && taken.RowsAffected() == 0 {
			return errSoldOut // the transaction is rolled back: the number, the order, the message
		}
		return err
	})
}
