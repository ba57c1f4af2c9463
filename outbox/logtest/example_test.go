package logtest_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/logtest"
	"github.com/emitd/emitd/outbox/sqlite"
)

// transaction is a transaction of the log under test, in the form that the suite calls.
type transaction struct {
	tx        *sql.Tx
	publisher *sqlite.Publisher
}

func (t transaction) Publish(ctx context.Context, messages ...outbox.Message) error {
	return t.publisher.PublishTx(ctx, t.tx, messages...)
}

func (t transaction) Commit(context.Context) error { return t.tx.Commit() }

func (t transaction) Rollback(context.Context) error { return t.tx.Rollback() }

// The test of a log of one's own: the suite checks everything that outbox.Log and outbox.Operator promise.
func Example() {
	testConformance := func(t *testing.T) {
		logtest.Run(t, func(t testing.TB) logtest.Backend {
			path := filepath.Join(t.TempDir(), "log.db")
			log, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}) // the log under test
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(log.Close)
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			publisher, err := sqlite.New(db, sqlite.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return logtest.Backend{Log: log, Operator: log, Begin: func(ctx context.Context) (logtest.Tx, error) {
				tx, err := db.BeginTx(ctx, nil)
				return transaction{tx, publisher}, err
			}}
		})
	}
	_ = testConformance // go test runs it as TestConformance
}
