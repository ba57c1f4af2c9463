package broker

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// TestShardsOfAllQueuesAreBounded: however many nodes declare queues at once, all queues together
// stay within the limit of shards. A declaration beyond it is refused with the figures and a hint.
func TestShardsOfAllQueuesAreBounded(t *testing.T) {
	t.Parallel()
	const limit, each, queues = 100, 7, 40
	w := newWorld(t, nil)
	var all sync.WaitGroup
	for n := range queues {
		r := NewRegistry(w.bucket, "")
		r.SetMaxShards(limit)
		all.Go(func() {
			for { // others may be faster any number of times
				_, err := r.Declare(w.ctx, queue.Settings{Name: fmt.Sprint("q", n), Shards: each})
				if queue.TagOf(err) == queue.Unavailable {
					continue
				}
				if err != nil {
					wantRefusal(t, err, queue.TooManyShards)
				}
				return
			}
		})
	}
	all.Wait()
	r := NewRegistry(w.bucket, "")
	r.SetMaxShards(limit)
	if got := shardsOf(t, w, r); got != limit/each*each {
		t.Errorf("%d queues of %d shards were declared at once: there are %d shards, want %d", queues, each, got, limit/each*each)
	}
	_, err := r.Declare(w.ctx, queue.Settings{Name: "more", Shards: 3})
	wantRefusal(t, err, queue.TooManyShards)
	for _, part := range []string{`"more"`, "3 shards", "100", "98"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %s", err, part)
		}
	}
	if hint := hintOf(err); !strings.Contains(hint, "queue.max_shards") {
		t.Errorf("the hint is %q", hint)
	}
	if _, err := r.Declare(w.ctx, queue.Settings{Name: "more", Shards: 2}); err != nil {
		t.Errorf("what fills the limit exactly: %v", err)
	}
}

// hintOf returns the hint of a refusal.
func hintOf(err error) string {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e.Hint
	}
	return ""
}

func shardsOf(t *testing.T, w *world, r *Registry) (n int) {
	t.Helper()
	list, err := r.List(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range list {
		n += set.Shards
	}
	return n
}

// TestLoweredLimitKeepsQueues: with a limit below what is declared, queues can be changed and
// removed as before, and only new ones are refused.
func TestLoweredLimitKeepsQueues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.declare(queue.Settings{Name: "large", Shards: 8})
	r := NewRegistry(w.bucket, "")
	r.SetMaxShards(4)
	if _, err := r.Declare(w.ctx, queue.Settings{Name: "large", Shards: 8, TTL: time.Hour}); err != nil {
		t.Errorf("a queue that exists cannot be changed: %v", err)
	}
	_, err := r.Declare(w.ctx, queue.Settings{Name: "small"})
	wantRefusal(t, err, queue.TooManyShards)
	if _, err := New(Config{Bucket: w.bucket, StoreID: "s", Owner: "o", Now: time.Now, MaxShards: -1}); err == nil {
		t.Error("a broker was made with MaxShards -1")
	}
}

// TestRemovedQueuesCountUntilDeleted: a client that declares and removes queues in a loop reaches
// the limit. It may continue when the removed queues are deleted, even if no queue is left whose
// broker deletes them.
func TestRemovedQueuesCountUntilDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, mem.New(mem.Config{}))
		b, err := New(Config{Bucket: w.bucket, StoreID: "s", Owner: "o", Now: time.Now, MaxShards: 10})
		if err != nil {
			t.Fatal(err)
		}
		r := b.Registry()
		for n := range 2 {
			if _, err := r.Declare(w.ctx, queue.Settings{Name: fmt.Sprint("q", n), Shards: 5}); err != nil {
				t.Fatal(err)
			}
			if err := r.Remove(w.ctx, fmt.Sprint("q", n)); err != nil {
				t.Fatal(err)
			}
		}
		_, err = r.Declare(w.ctx, queue.Settings{Name: "q2", Shards: 5})
		wantRefusal(t, err, queue.TooManyShards)
		if !strings.Contains(err.Error(), "10 more belong to removed queues") || !strings.Contains(hintOf(err), "try again in a few minutes") {
			t.Errorf("%v; %s", err, hintOf(err))
		}
		begun := time.Now()
		for err != nil && time.Since(begun) < 10*time.Minute {
			b.DeleteRemoved(w.ctx)
			time.Sleep(time.Second)
			_, err = r.Declare(w.ctx, queue.Settings{Name: "q2", Shards: 5})
		}
		if took := time.Since(begun); err != nil || took > 2*time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
