package journal_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/storage/blob"
)

// narrow is a bucket behind a network that carries so many bytes a second. All reads under way share it.
type narrow struct {
	blob.Bucket
	bytesPerSecond int

	mu     sync.Mutex
	reads  int
	failed int
}

func (n *narrow) Read(ctx context.Context, key string) (*blob.Object, error) {
	o, err := n.Bucket.Read(ctx, key)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.reads++
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.reads--
		n.mu.Unlock()
	}()
	const step = 100 * time.Millisecond
	for left := float64(len(o.Data)); left > 0; {
		select {
		case <-time.After(step):
		case <-ctx.Done():
			n.mu.Lock()
			n.failed++
			n.mu.Unlock()
			return nil, &blob.Error{Op: "read", Key: key, Kind: blob.ErrUnavailable, Err: ctx.Err()}
		}
		n.mu.Lock()
		left -= float64(n.bytesPerSecond) * step.Seconds() / float64(n.reads)
		n.mu.Unlock()
	}
	return o, nil
}

// TestATakeoverOnASlowNetwork: a journal is opened although the network cannot carry in time all that a takeover reads ahead. Each
// object alone takes three seconds.
func TestATakeoverOnASlowNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 30_000
		source := rand.NewChaCha8([32]byte{})
		random := func() []byte { // it cannot be compressed
			b := make([]byte, size)
			_, _ = source.Read(b)
			return b
		}
		bucket := mem.New(mem.Config{})
		cfg := config(bucket)
		cfg.PartSize = size
		l, _ := open(t, cfg)
		add(t, l, "first")
		c, _, err := l.Checkpoint()
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if err := c.Write(random()); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Commit(nil); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		for range 20 {
			slot, err := l.Append(time.Now(), random())
			if err != nil {
				t.Fatal(err)
			}
			await(t, l, slot)
		}
		cfg = as(cfg, "two", 2)
		slow := &narrow{Bucket: bucket, bytesPerSecond: 10_000}
		cfg.Bucket = slow
		begun, state := time.Now(), &book{}
		next, err := journal.Open(t.Context(), cfg, state)
		if err != nil {
			t.Fatalf("after %v, with %d reads that failed: %v", time.Since(begun), slow.failed, err)
		}
		t.Logf("taken over in %v, with %d reads that failed", time.Since(begun), slow.failed)
		if state.restored != 20 || len(state.slots) != 20 {
			t.Errorf("the state has %d chunks and %d slots, want 20 and 20", state.restored, len(state.slots))
		}
		closeLog(t, next)
		_ = l.Close(t.Context())
	})
}
