package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/logtest"
)

// ok ends the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mustOpen opens a log that is closed with the test; without a path, in a new file.
func mustOpen(t testing.TB, cfg Config) *Log {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "app.db")
	}
	l, err := Open(context.Background(), cfg)
	ok(t, err)
	t.Cleanup(l.Close)
	return l
}

// openApp opens a file as a caller would.
func openApp(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
}

// appDB returns a caller's handle of a file.
func appDB(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := openApp(path)
	ok(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// mustPublisher makes a publisher that is closed with the test.
func mustPublisher(t testing.TB, db *sql.DB, cfg Config) *Publisher {
	t.Helper()
	p, err := New(db, cfg)
	ok(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		ok(t, p.Close(ctx))
	})
	return p
}

// world is a log with a caller beside it.
type world struct {
	*Log
	db  *sql.DB
	pub *Publisher
}

func newWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	l := mustOpen(t, cfg)
	db := appDB(t, l.cfg.Path)
	return &world{l, db, mustPublisher(t, db, cfg)}
}

// publish commits messages.
func (w *world) publish(t testing.TB, messages ...outbox.Message) {
	t.Helper()
	ok(t, w.pub.InTx(context.Background(), w.db, func(tx *Tx) error {
		return w.pub.Publish(context.Background(), tx, messages...)
	}))
}

// claim claims unit 0 of 1 of a subscription.
func (w *world) claim(t testing.TB, subscription string, epoch int64) outbox.Cursor {
	t.Helper()
	c, err := w.Claim(context.Background(), outbox.ClaimRequest{Subscription: subscription, Instances: 1, Epoch: epoch})
	ok(t, err)
	return c
}

// drain reads and advances until nothing is left.
func drain(t testing.TB, c outbox.Cursor) (texts []string) {
	t.Helper()
	for {
		p, err := c.Next(context.Background(), outbox.Limit{})
		ok(t, err)
		if p.Mark != nil {
			ok(t, c.Advance(context.Background(), p.Mark, nil))
		}
		for _, r := range p.Rows {
			texts = append(texts, string(r.Payload))
		}
		if len(p.Rows) == 0 && !p.More {
			return texts
		}
	}
}

// text returns a message.
func text(key, payload string) outbox.Message {
	return outbox.Message{Topic: "t", Key: key, Payload: []byte(payload)}
}

// tx is a transaction of the conformance suite.
type tx struct {
	*Tx
	p *Publisher
}

func (x tx) Publish(ctx context.Context, messages ...outbox.Message) error {
	return x.p.Publish(ctx, x.Tx, messages...)
}
func (x tx) Commit(context.Context) error   { return x.Tx.Commit() }
func (x tx) Rollback(context.Context) error { return x.Tx.Rollback() }

// backend returns the log for the conformance suite.
func backend(t testing.TB) logtest.Backend {
	w := newWorld(t, Config{})
	return logtest.Backend{
		Log: w.Log, Operator: w.Log, Wakes: true,
		Begin: func(ctx context.Context) (logtest.Tx, error) {
			plain, err := w.pub.begin(ctx, w.db)
			if err != nil {
				return nil, err
			}
			return tx{w.pub.Wrap(plain), w.pub}, nil
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	logtest.Run(t, backend)
}
