package outbox

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
	outboxpg "github.com/emitd/emitd/outbox/postgres"
	"github.com/emitd/emitd/storage/postgres"
)

func onPostgres(t *testing.T) *database {
	t.Helper()
	return onServer(t, startServer(t))
}

func startServer(t *testing.T) *pgtest.Server {
	t.Helper()
	server, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, server) })
	return server
}

func closed(t *testing.T, s *pgtest.Server) {
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// onServer creates the tables of a cluster and an outbox on a server.
func onServer(t *testing.T, server *pgtest.Server) *database {
	t.Helper()
	if _, err := postgres.Migrate(t.Context(), postgres.Config{URL: server.URL("postgres")}, postgres.Version); err != nil {
		t.Fatal(err)
	}
	if _, err := outboxpg.Migrate(t.Context(), outboxpg.Config{URL: server.URL("postgres")}, outboxpg.Version); err != nil {
		t.Fatal(err)
	}
	return reach(t, server)
}

// reach opens the tables on a server.
func reach(t *testing.T, server *pgtest.Server) *database {
	t.Helper()
	ctx := context.Background()
	url := server.URL("postgres")
	store, err := postgres.Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	messages, err := outboxpg.Open(ctx, outboxpg.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(messages.Close)
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 40
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	pub, err := outboxpg.New(pool, outboxpg.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pub.Close(context.Background()) })
	return &database{
		name: "postgres", url: url, store: store, log: messages,
		inTx: func(ctx context.Context, fn func(transaction) error) error {
			return pub.InTx(ctx, pool, func(tx *outboxpg.Tx) error { return fn(&postgresTx{tx, pub}) })
		},
		openTransaction: func(ctx context.Context, m outbox.Message, enough <-chan struct{}, note func()) error {
			return pub.InTx(ctx, pool, func(tx *outboxpg.Tx) error {
				if err := pub.Publish(ctx, tx, m); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `SELECT pg_sleep(4)`)
				select {
				case <-enough:
				case <-ctx.Done():
					return ctx.Err()
				}
				note()
				return err
			})
		},
	}
}

type postgresTx struct {
	tx  pgx.Tx
	pub *outboxpg.Publisher
}

func (x *postgresTx) publish(ctx context.Context, messages ...outbox.Message) error {
	return x.pub.Publish(ctx, x.tx, messages...)
}

func (x *postgresTx) savepoint(ctx context.Context, fn func() error) error {
	outer := x.tx
	defer func() { x.tx = outer }()
	return pgx.BeginFunc(ctx, outer, func(point pgx.Tx) error {
		x.tx = point
		return fn()
	})
}

func (x *postgresTx) linger(ctx context.Context) error {
	_, err := x.tx.Exec(ctx, `SELECT pg_sleep(random() * 0.02)`)
	return err
}
