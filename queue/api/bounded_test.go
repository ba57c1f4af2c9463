package api_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// TestHole05EveryCallEnds: a broker that does not answer keeps no caller for ever; the answer says
// whether the call may have had an effect.
func TestHole05EveryCallEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, err := api.New(hung{}, api.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			method, path, body string
			after              time.Duration
			tag                queue.Tag
		}{
			{"POST", "/v1/jobs", `{"payload":1}`, 30 * time.Second, queue.UnknownOutcome},
			{"POST", "/v1/queues/q/claim", `{"wait_ms":20000}`, 50 * time.Second, queue.UnknownOutcome},
			{"POST", "/v1/queues/q/jobs/a/complete", `{"token":"t"}`, 30 * time.Second, queue.UnknownOutcome},
			{"POST", "/v1/queues/q/pause", ``, 30 * time.Second, queue.UnknownOutcome},
			{"GET", "/v1/stats", ``, 30 * time.Second, queue.Unavailable},
			{"GET", "/v1/queues/q/jobs", ``, 30 * time.Second, queue.Unavailable},
			{"GET", "/v1/queues/q/jobs/a", ``, 30 * time.Second, queue.Unavailable},
		} {
			begin := time.Now()
			want(t, send(h, c.method, c.path, c.body), 503, c.tag)
			if took := time.Since(begin); took != c.after {
				t.Errorf("%s %s took %v", c.method, c.path, took)
			}
		}
	})
}

// hung is a service that never answers.
type hung struct{}

func wait[T any](ctx context.Context) (T, error) {
	<-ctx.Done()
	var none T
	return none, ctx.Err()
}

func (hung) Enqueue(ctx context.Context, _ string, _ []queue.Job) ([]queue.Receipt, error) {
	return wait[[]queue.Receipt](ctx)
}

func (hung) Claim(ctx context.Context, _ string, _ queue.ClaimRequest) ([]queue.Claimed, error) {
	return wait[[]queue.Claimed](ctx)
}

func (hung) Settle(ctx context.Context, _ string, _ []queue.Settlement) ([]queue.Outcome, error) {
	return wait[[]queue.Outcome](ctx)
}

func (hung) Get(ctx context.Context, _, _ string) (*queue.Info, []byte, error) {
	info, err := wait[*queue.Info](ctx)
	return info, nil, err
}

func (hung) List(ctx context.Context, _ string, _ queue.Query) (*queue.Page, error) {
	return wait[*queue.Page](ctx)
}

func (hung) Stats(ctx context.Context, _ string) (*queue.Stats, error) {
	return wait[*queue.Stats](ctx)
}

func (hung) Do(ctx context.Context, _ string, _ queue.Command) (int, error) { return wait[int](ctx) }
