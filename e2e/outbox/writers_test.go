package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
)

// topic is the topic of all messages.
const topic = "orders"

// keys is the number of keys, which all writers share.
const keys = 100

// backlog is how far the relays may lag before the writers wait for them.
const backlog = 5000

// errUndo makes a writer's transaction, or a savepoint of it, roll back.
var errUndo = errors.New("undone")

// writers publish in their own transactions until they are stopped. Each transaction has one to five
// messages, mostly of one key, in savepoints that are kept or rolled back. Every sixth transaction is
// rolled back as a whole. There are a thousand transactions a second, so that the processes under test
// get some of the machine. On Postgres commits happen in another order than publications.
type writers struct {
	t      testing.TB
	db     *database
	ledger *writtenRecord
	ctx    context.Context
	stop   context.CancelFunc
	all    sync.WaitGroup

	pace *time.Ticker

	mu   sync.Mutex
	open chan struct{} // closed while writers may continue
}

// write starts writers. They end with the test at the latest.
func write(t testing.TB, db *database, n int) *writers {
	w := &writers{t: t, db: db, ledger: newLedger(), open: make(chan struct{}), pace: time.NewTicker(time.Millisecond)}
	close(w.open)
	w.ctx, w.stop = context.WithCancel(context.Background())
	t.Cleanup(w.end)
	for i := range n {
		w.all.Go(func() { w.run(uint64(i)) })
	}
	w.all.Go(w.watch)
	return w
}

// end stops the writers after their open transactions.
func (w *writers) end() {
	w.stop()
	w.all.Wait()
	w.pace.Stop()
}

func (w *writers) run(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4))
	for w.pass() {
		if err := w.transact(rng); err != nil && !errors.Is(err, errUndo) {
			w.t.Errorf("writer %d: %v", seed, err)
			return
		}
	}
}

// pass waits until the relays do not lag too far. It returns false if the writer must end.
func (w *writers) pass() bool {
	w.mu.Lock()
	open := w.open
	w.mu.Unlock()
	select {
	case <-open:
	case <-w.ctx.Done():
		return false
	}
	select {
	case <-w.pace.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// watch makes the writers wait or continue, depending on the backlog.
func (w *writers) watch() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	shut := false
	for {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			return
		}
		pending, ok := w.db.pending(w.ctx)
		if behind := ok && pending > backlog; behind != shut {
			shut = behind
			w.mu.Lock()
			if shut {
				w.open = make(chan struct{})
			} else {
				close(w.open)
			}
			w.mu.Unlock()
		}
	}
}

// transact runs one transaction. Its messages are recorded while it holds the key's lock.
func (w *writers) transact(rng *rand.Rand) error {
	// A transaction that has begun is not interrupted, because its outcome would be unknown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), time.Minute)
	defer cancel()
	return w.db.inTx(ctx, func(tx transaction) error {
		key := fmt.Sprintf("key-%d", rng.IntN(keys))
		var kept, gone []outbox.Message
		publish := func(to *[]outbox.Message, n int) error {
			batch := make([]outbox.Message, n)
			for i := range batch {
				batch[i] = message(key)
				if rng.IntN(10) == 0 {
					batch[i].Key = ""
				}
			}
			*to = append(*to, batch...)
			return tx.publish(ctx, batch...)
		}
		if err := publish(&kept, 1+rng.IntN(3)); err != nil {
			return err
		}
		switch rng.IntN(4) {
		case 0:
			if err := tx.savepoint(ctx, func() error { return publish(&kept, 1) }); err != nil {
				return err
			}
		case 1:
			err := tx.savepoint(ctx, func() error {
				if err := publish(&gone, 1); err != nil {
					return err
				}
				return errUndo
			})
			if !errors.Is(err, errUndo) {
				return fmt.Errorf("roll back to a savepoint: %w", err)
			}
			if err := publish(&kept, 1); err != nil {
				return err
			}
		}
		if err := tx.linger(ctx); err != nil {
			return err
		}
		if rng.IntN(6) == 0 {
			w.ledger.note(nil, append(gone, kept...))
			return errUndo
		}
		w.ledger.note(kept, gone)
		return nil
	})
}

// publish commits messages in addition to those of the writers.
func (w *writers) publish(messages ...outbox.Message) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := w.db.inTx(ctx, func(tx transaction) error {
		if err := tx.publish(ctx, messages...); err != nil {
			return err
		}
		w.ledger.note(messages, nil)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func message(key string) outbox.Message {
	return outbox.Message{ID: uuid.New(), Key: key, Topic: topic, Type: "drill", Payload: []byte(`{"drill":true}`)}
}

// more waits until n more messages are committed.
func (w *writers) more(n int) {
	w.t.Helper()
	want := w.ledger.committed() + n
	until(w.t, time.Minute, fmt.Sprintf("%d more messages are committed", n), func() bool {
		return w.ledger.committed() >= want
	})
}

// until waits for a condition. It polls every few milliseconds, because the condition depends on other
// processes. The bound is generous.
func until(t testing.TB, bound time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(bound)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not within %v", what, bound)
		}
	}
	return time.Since(began)
}
