package main

import (
	"context"
	"database/sql"

	outboxlite "github.com/emitd/emitd/outbox/sqlite"
	"github.com/emitd/emitd/storage/sqlite"
)

// openSQLite opens one file for everything: the shop's tables, the log of messages, the cluster.
func openSQLite(ctx context.Context, path string) (*shop, error) {
	store, err := sqlite.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	messages, err := outboxlite.Open(ctx, outboxlite.Config{Path: path})
	if err != nil {
		store.Close()
		return nil, err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		messages.Close()
		store.Close()
		return nil, err
	}
	pub, err := outboxlite.New(db, outboxlite.Config{})
	if err == nil {
		_, err = db.ExecContext(ctx, `
			CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY, orders INTEGER NOT NULL);
			CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, customer TEXT NOT NULL, number INTEGER NOT NULL, item TEXT NOT NULL);
			CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, pieces INTEGER NOT NULL);
			INSERT OR IGNORE INTO stock VALUES ('book', 1000000), ('pen', 1000000), ('lamp', 4)`)
	}
	s := &shop{store: store, log: messages, sweep: messages.Tasks()}
	s.place = func(ctx context.Context, o order) error { return placeSQLite(ctx, db, pub, o) }
	s.close = func() {
		if pub != nil {
			_ = pub.Close(context.Background())
		}
		db.Close()
		messages.Close()
		store.Close()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func placeSQLite(ctx context.Context, db *sql.DB, pub *outboxlite.Publisher, o order) error {
	return pub.InTx(ctx, db, func(tx *outboxlite.Tx) error {
		err := tx.QueryRowContext(ctx, `INSERT INTO customers (name, orders) VALUES (?, 1)
			ON CONFLICT (name) DO UPDATE SET orders = orders + 1 RETURNING orders`, o.Customer).Scan(&o.Number)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?, ?, ?)`, o.ID.String(), o.Customer, o.Number, o.Item); err != nil {
			return err
		}
		// Delivered if this transaction commits, and only then.
		if err := pub.Publish(ctx, tx, o.placed()); err != nil {
			return err
		}
		taken, err := tx.ExecContext(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE item = ? AND pieces > 0`, o.Item)
		if err != nil {
			return err
		}
		if n, err := taken.RowsAffected(); err != nil || n == 0 {
			return errSoldOut // the transaction is rolled back: the number, the order, the message
		}
		return nil
	})
}
