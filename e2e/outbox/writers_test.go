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

// topic is where all messages go.
const topic = "orders"

// keys of the writers are shared by all of them.
const keys = 100

// backlog is how far the relays may be behind before the writers wait for them.
const backlog = 5000

// errUndo is why a writer's transaction, or a part of it, is rolled back.
var errUndo = errors.New("undone")

// writers publish in transactions of their own until they are stopped: one to five messages each,
// mostly of one key, in savepoints that are kept or rolled back, every sixth transaction rolled back
// as a whole; a thousand transactions a second, so that the processes that are drilled have a part of
// the machine. On Postgres commits come in another order than publications.
type writers struct {
	t      testing.TB
	db     *database
	ledger *ledger
	ctx    context.Context
	stop   context.CancelFunc
	all    sync.WaitGroup

	pace *time.Ticker

	mu   sync.Mutex
	open chan struct{} // closed while writers may go on
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

// end stops them, after the transactions that are open.
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

// pass waits until the relays are not too far behind; false ends the writer.
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

// watch opens and closes the gate.
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

// transact is one transaction. What it publishes is noted while it has the key's lock.
func (w *writers) transact(rng *rand.Rand) error {
	// A transaction that has begun is not cut off: what became of it would be unknown.
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

// publish commits messages beside the writers.
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

// more waits until so many more messages are committed.
func (w *writers) more(n int) {
	w.t.Helper()
	want := w.ledger.committed() + n
	until(w.t, time.Minute, fmt.Sprintf("%d more messages are committed", n), func() bool {
		return w.ledger.committed() >= want
	})
}

// until waits for something to be so. It looks every few milliseconds, because what it waits for
// happens in other processes; the bound is generous.
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
