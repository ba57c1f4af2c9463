package journal_test

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
)

// counter is a state: the number of records.
type counter struct{ n int }

func (c *counter) Reset() { c.n = 0 }

func (c *counter) Restore(chunk []byte) error {
	_, err := fmt.Sscan(string(chunk), &c.n)
	return err
}

func (c *counter) Replay(_ uint64, _ time.Time, records iter.Seq[[]byte]) error {
	for range records {
		c.n++
	}
	return nil
}

// One owner appends, writes a checkpoint and hands the journal over to the next one.
func Example() {
	ctx := context.Background()
	cfg := journal.Config{
		Bucket: mem.New(mem.Config{}), Prefix: "root/v1/7f/orders/1/0",
		StoreID: "8d1f", Generation: 41, Owner: "node-a",
	}
	state := &counter{}
	log, err := journal.Open(ctx, cfg, state)
	if err != nil {
		fmt.Println(err)
		return
	}
	slot, err := log.Append(log.Now(time.Now()), []byte("a job"), []byte("another"))
	if err != nil { // full, or no longer the owner
		fmt.Println(err)
		return
	}
	state.n += 2
	for log.Durable() < slot {
		select {
		case <-log.Acks():
		case <-log.Done(): // what is above log.Durable() has an unknown outcome
			fmt.Println(log.Err())
			return
		}
	}
	fmt.Println("durable:", state.n)

	checkpoint, _, err := log.Checkpoint()
	if err == nil {
		_ = checkpoint.Write(fmt.Append(nil, state.n))
		err = checkpoint.Commit(nil)
	}
	fmt.Println("checkpoint:", err)
	fmt.Println("closed:", log.Close(ctx))

	cfg.Generation, cfg.Owner = 42, "node-b"
	next := &counter{}
	log, err = journal.Open(ctx, cfg, next)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("epoch", log.Epoch(), "finds", next.n)
	fmt.Println("closed:", log.Close(ctx))
	// Output:
	// durable: 2
	// checkpoint: <nil>
	// closed: <nil>
	// epoch 2 finds 2
	// closed: <nil>
}
