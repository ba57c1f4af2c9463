package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/queue/worker"
)

// twoShards is the shards of a queue: even IDs are here, odd ones on a node that may be lost.
type twoShards struct {
	mu   sync.Mutex
	lost bool
}

func (s *twoShards) Broker(_ context.Context, _ string, shard int) (string, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if shard == 1 && s.lost {
		return "", 0, errors.New("unassigned")
	}
	return "here:1", 1, nil
}

func (s *twoShards) lose(lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = lost
}

func (s *twoShards) Shards(context.Context, string) (int, error) { return 2, nil }

func (s *twoShards) ShardOfJob(j *queue.Job, n int) int { return int(j.ID[len(j.ID)-1]) % n }

func (s *twoShards) ShardOfSettlement(x *queue.Settlement, n int) int {
	return s.ShardOfJob(&queue.Job{ID: x.ID}, n)
}

// both serves two shards, each a queue of its own; a lost one answers nothing.
type both struct {
	*queuetest.Queue // even
	odd              *queuetest.Queue
	where            *twoShards
}

func (b both) lost() bool {
	b.where.mu.Lock()
	defer b.where.mu.Unlock()
	return b.where.lost
}

func (b both) Claim(ctx context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	wait := r.Wait
	r.Wait = 0
	got, err := b.Queue.Claim(ctx, name, r)
	if err != nil || len(got) > 0 {
		return got, err
	}
	if !b.lost() {
		if got, err = b.odd.Claim(ctx, name, r); err != nil || len(got) > 0 {
			return got, err
		}
	}
	r.Wait = wait
	return b.Queue.Claim(ctx, name, r)
}

func (b both) Settle(ctx context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	out := make([]queue.Outcome, len(what))
	for i := range what {
		q := b.Queue
		if b.where.ShardOfSettlement(&what[i], 2) == 1 {
			q = b.odd
		}
		o, err := q.Settle(ctx, name, what[i:i+1])
		if err != nil {
			return nil, err
		}
		out[i] = o[0]
	}
	return out, nil
}

// TestOneShardIsLost: the claims of the other shards hold, however long that one is away, and their jobs are reported.
func TestOneShardIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		where := &twoShards{}
		q := both{queuetest.New(), queuetest.New(), where}
		f, err := api.NewForwarder(api.ForwarderConfig{Locator: where, Sharding: where, Self: "here:1", Local: q})
		if err != nil {
			t.Fatal(err)
		}
		var completed sync.WaitGroup
		completed.Add(5)
		w, err := worker.New(f, worker.Config{Concurrency: 8, Logger: slog.New(slog.DiscardHandler), Hooks: worker.Hooks{
			OnCompleted: func(queue.Info, time.Duration) { completed.Done() },
		}})
		if err != nil {
			t.Fatal(err)
		}
		worker.Handle(w, "t", func(ctx context.Context, j worker.Job[struct{}]) error {
			select {
			case <-time.After(5 * time.Minute):
				return nil
			case <-ctx.Done():
				if j.ID != "j1" {
					t.Errorf("%s was cancelled: %v", j.ID, context.Cause(ctx))
				}
				return ctx.Err()
			}
		})
		for i, p := range []queue.Producer{q, q, q, q, q.odd} {
			id := fmt.Sprint("j", 2*i%8+i/4)
			if _, err := p.Enqueue(t.Context(), queue.DefaultQueue, []queue.Job{{ID: id, Type: "t", Payload: []byte("{}")}}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		time.Sleep(15 * time.Second)
		where.lose(true)
		time.Sleep(90 * time.Second)
		where.lose(false)
		completed.Wait()
		cancel()
		<-done
	})
}
