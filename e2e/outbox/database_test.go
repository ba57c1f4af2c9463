package outbox

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sqlitelog"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/sqlite"
)

// database has the outbox and the cluster in it. The drill reaches it by handles of its own.
type database struct {
	name  string
	url   string
	store storage.Store
	log   outbox.Operator
	// inTx runs fn in a transaction of a caller: committed when fn returns nil.
	inTx func(ctx context.Context, fn func(transaction) error) error
	// stranger holds a transaction open that has written and published, and that no relay waits for,
	// for 4 s and until enough is closed, and commits it. Nil where one transaction writes at a time.
	stranger func(ctx context.Context, m outbox.Message, enough <-chan struct{}, note func()) error
}

// transaction is a writer's.
type transaction interface {
	publish(ctx context.Context, messages ...outbox.Message) error
	// savepoint undoes what fn did if it returns an error.
	savepoint(ctx context.Context, fn func() error) error
	// linger lets a while pass, different each time, so that transactions end in another order than
	// they began.
	linger(ctx context.Context) error
}

// pending is how many messages wait for the drill's subscription; false when it cannot be said.
func (d *database) pending(ctx context.Context) (int64, bool) {
	s, ok := d.stats(ctx)
	return s.Pending, ok
}

func (d *database) stats(ctx context.Context) (outbox.Stats, bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	all, err := d.log.Stats(ctx, subscription)
	if err != nil || len(all) != 1 {
		return outbox.Stats{}, false // nobody has claimed it yet
	}
	return all[0], true
}

// databases are fresh ones by name.
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
	messages, err := sqlitelog.Open(ctx, sqlitelog.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(messages.Close)
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=synchronous(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	pub, err := sqlitelog.New(db, sqlitelog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pub.Close(context.Background()) })
	return &database{
		name: "sqlite", url: "sqlite://" + path, store: store, log: messages,
		inTx: func(ctx context.Context, fn func(transaction) error) error {
			return pub.InTx(ctx, db, func(tx *sqlitelog.Tx) error { return fn(sqliteTx{tx, pub}) })
		},
	}
}

type sqliteTx struct {
	tx  *sqlitelog.Tx
	pub *sqlitelog.Publisher
}

func (x sqliteTx) publish(ctx context.Context, messages ...outbox.Message) error {
	return x.pub.Publish(ctx, x.tx, messages...)
}

func (x sqliteTx) savepoint(ctx context.Context, fn func() error) error {
	return x.tx.Savepoint(ctx, fn)
}

// linger does nothing: the others wait for the lock, and end in the order in which they get it.
func (x sqliteTx) linger(context.Context) error { return nil }
