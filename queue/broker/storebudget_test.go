package broker

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
)

// limitedBucket refuses writes while its budget is used up.
type limitedBucket struct {
	blob.Bucket
	until atomic.Pointer[time.Time]
	gate  chan struct{} // writes that will be refused wait until it is closed
}

func (b *limitedBucket) admit(op, key string) error {
	if until := b.until.Load(); until != nil && time.Now().Before(*until) {
		<-b.gate
		return &blob.Error{Op: op, Key: key, Kind: blob.ErrBudget, RetryAfter: time.Until(*until)}
	}
	return nil
}

func (b *limitedBucket) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	if err := b.admit("create", key); err != nil {
		return "", err
	}
	return b.Bucket.Create(ctx, key, data)
}

// TestUsedUpBudget checks that calls that would write are answered at once while the store's budget of writes is used up,
// with when to try again, also those that wait already; that reads go on; and that what waited is written afterwards.
func TestUsedUpBudget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := &limitedBucket{Bucket: mem.New(mem.Config{}), gate: make(chan struct{})}
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		n.enqueue(queue.Job{ID: "before"})
		c := n.claimOne("before")
		until := time.Now().Add(7 * time.Hour)
		bucket.until.Store(&until)
		begun := time.Now()
		refused := func(err error, tag queue.Tag) {
			t.Helper()
			wantRefusal(t, err, tag)
			for _, part := range []string{"budget", "7h0m0s"} {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v does not say %q", err, part)
				}
			}
		}
		var waiting sync.WaitGroup
		for _, jobs := range [][]queue.Job{
			{{ID: "late"}},                 // is in line for the write that is refused
			{{ID: "late"}, {ID: "parked"}}, // waits for the outcome of the first
		} {
			waiting.Go(func() {
				_, err := n.Enqueue(w.ctx, queue.DefaultQueue, jobs)
				refused(err, queue.UnknownOutcome)
			})
			synctest.Wait()
		}
		close(bucket.gate)
		waiting.Wait()
		_, err := n.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: "never"}})
		refused(err, queue.Unavailable)
		_, err = n.Settle(w.ctx, queue.DefaultQueue, []queue.Settlement{{ID: c.Job.ID, Token: c.Token, Verb: queue.Complete}})
		refused(err, queue.Unavailable)
		_, err = n.Claim(w.ctx, queue.DefaultQueue, queue.ClaimRequest{Worker: "w", Wait: time.Minute})
		refused(err, queue.Unavailable)
		_, err = n.Do(w.ctx, queue.DefaultQueue, queue.Command{Act: queue.Pause})
		refused(err, queue.Unavailable)
		if got := n.stats().Active; got != 1 {
			t.Errorf("%d active jobs, want 1", got)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the answers took %v", took)
		}
		time.Sleep(8 * time.Hour)
		synctest.Wait()
		if n.get("late") == nil {
			t.Error("the job that waited was not written")
		}
		n.enqueue(queue.Job{ID: "after"})
		if _, _, err := n.Get(w.ctx, queue.DefaultQueue, "parked"); queue.TagOf(err) != queue.JobNotFound {
			t.Errorf("the job of a call that was refused while it was parked: %v", err)
		}
	})
}
