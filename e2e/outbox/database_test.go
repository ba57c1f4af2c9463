package outbox

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	outboxlite "github.com/emitd/emitd/outbox/sqlite"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/sqlite"
)

// database holds the outbox and the cluster. The drill has its own handles to it.
type database struct {
	name  string
	url   string
	store storage.Store
	log   outbox.Operator
	// inTx runs fn in a transaction of a caller. It commits if fn returns nil.
	inTx func(ctx context.Context, fn func(transaction) error) error
	// openTransaction opens a transaction that writes and publishes, holds it for 4 s and until enough is closed,
	// and commits it. No relay may wait for it. It is nil if the database allows only one write transaction
	// at a time.
	openTransaction func(ctx context.Context, m outbox.Message, enough <-chan struct{}, note func()) error
}

// transaction is a transaction of a writer.
type transaction interface {
	publish(ctx context.Context, messages ...outbox.Message) error
	// savepoint undoes what fn did if fn returns an error.
	savepoint(ctx context.Context, fn func() error) error
	// linger pauses for a random time, so that transactions end in another order than they began.
	linger(ctx context.Context) error
}

// pending returns how many messages the drill's subscription has not delivered; false if that is unknown.
func (d *database) pending(ctx context.Context) (int64, bool) {
	s, ok := d.stats(ctx)
	return s.Pending, ok
}

func (d *database) stats(ctx context.Context) (outbox.Stats, bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	all, err := d.log.Stats(ctx, subscription)
	if err != nil || len(all) != 1 {
		return outbox.Stats{}, false // not claimed yet
	}
	return all[0], true
}

// databases opens fresh databases, by name.
var databases = map[string]func(t *testing.T) *database{"sqlite": onSQLite, "postgres": onPostgres}

func onSQLite(t *testing.T) *database {
	t.Helper()
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "shop.db")
	store, err := sqlite.Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	messages, err := outboxlite.Open(ctx, outboxlite.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(messages.Close)
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=synchronous(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	pub, err := outboxlite.New(db, outboxlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pub.Close(context.Background()) })
	return &database{
		name: "sqlite", url: "sqlite://" + path, store: store, log: messages,
		inTx: func(ctx context.Context, fn func(transaction) error) error {
			return pub.InTx(ctx, db, func(tx *outboxlite.Tx) error { return fn(sqliteTx{tx, pub}) })
		},
	}
}

type sqliteTx struct {
	tx  *outboxlite.Tx
	pub *outboxlite.Publisher
}

func (x sqliteTx) publish(ctx context.Context, messages ...outbox.Message) error {
	return x.pub.Publish(ctx, x.tx, messages...)
}

func (x sqliteTx) savepoint(ctx context.Context, fn func() error) error {
	return x.tx.Savepoint(ctx, fn)
}

// linger does nothing: writers wait for the write lock, and end in the order in which they get it.
func (x sqliteTx) linger(context.Context) error { return nil }
