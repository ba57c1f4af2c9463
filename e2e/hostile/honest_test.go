package hostile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// honest are the clients that work normally.
type honest struct {
	n *server

	mu        sync.Mutex
	took      map[string][]time.Duration // of calls that succeeded, including their retries
	errors    map[string]int             // of attempts
	failed    map[string]int             // of calls, after their retries
	submitted map[string]bool            // acknowledged, and not completed yet
	done      int
}

func newHonest(n *server) *honest {
	return &honest{n: n, took: map[string][]time.Duration{}, errors: map[string]int{}, submitted: map[string]bool{}}
}

// call makes one call and records its kind, duration and result.
func (h *honest) call(ctx context.Context, kind string, do func() error) bool {
	began := time.Now()
	err := do()
	took := time.Since(began)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.took[kind] = append(h.took[kind], took)
	case ctx.Err() == nil:
		if h.failed == nil {
			h.failed = map[string]int{}
		}
		h.failed[kind+" "+string(queue.TagOf(err))]++
		h.n.t.Logf("honest %s failed after %v: %v", kind, took, err)
	}
	return err == nil
}

func (h *honest) note(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errors[text]++
}

func (h *honest) client() *client.Client { return h.n.client(h.note) }

const pause = 20 * time.Millisecond // between calls: the clients are not a benchmark

// submit submits jobs until the first context ends.
func (h *honest) submit(until, ctx context.Context, who int) {
	q := h.client()
	defer q.Close()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-until.Done():
			return
		case <-tick.C:
		}
		id := fmt.Sprintf("honest-%d-%d", who, i)
		h.mu.Lock()
		h.submitted[id] = true // before the call, because a worker may be faster than the answer
		h.mu.Unlock()
		ok := h.call(ctx, "submit", func() error {
			_, err := q.Enqueue(ctx, queue.DefaultQueue, []queue.Job{{ID: id, Type: "honest", Payload: fmt.Appendf(nil, `{"n":%d}`, i)}})
			return err
		})
		if !ok {
			h.mu.Lock()
			delete(h.submitted, id)
			h.mu.Unlock()
		}
	}
}

// work claims and completes.
func (h *honest) work(ctx context.Context, who int) {
	q := h.client()
	defer q.Close()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var got []queue.Claimed
		h.call(ctx, "claim", func() (err error) {
			got, err = q.Claim(ctx, queue.DefaultQueue, queue.ClaimRequest{Worker: fmt.Sprint("w", who), Types: []string{"honest"}, Max: 10})
			return err
		})
		if len(got) == 0 {
			continue
		}
		what := make([]queue.Settlement, len(got))
		for i, c := range got {
			what[i] = queue.Settlement{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token}
		}
		h.call(ctx, "complete", func() error {
			outcomes, err := q.Settle(ctx, queue.DefaultQueue, what)
			for _, o := range outcomes {
				if o.Err == nil {
					h.completed(o.ID)
				}
			}
			return err
		})
	}
}

func (h *honest) completed(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.submitted[id] {
		h.done++
		delete(h.submitted, id)
	}
}

// drained waits until all jobs are completed.
func (h *honest) drained(ctx context.Context, t *testing.T) {
	deadline := time.After(3 * time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	q := h.client()
	defer q.Close()
	for {
		h.mu.Lock()
		open := slices.Sorted(maps.Keys(h.submitted))
		h.mu.Unlock()
		if len(open) == 0 {
			return
		}
		// A completion whose answer was lost is reported as stale, so the queue is asked for the job's state.
		if info, _, err := q.Get(ctx, queue.DefaultQueue, open[0]); err == nil && info.State == queue.Completed {
			h.completed(open[0])
			continue
		} else if err != nil && !errors.Is(err, context.Canceled) {
			t.Logf("%s: %v", open[0], err)
		}
		select {
		case <-deadline:
			t.Errorf("%d acknowledged jobs were never completed, %s among them", len(open), open[0])
			return
		case <-tick.C:
		}
	}
}

func (h *honest) failures() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, count := range h.failed {
		n += count
	}
	return n
}

// String returns the results so far.
func (h *honest) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(h.took)) {
		sorted := slices.Sorted(slices.Values(h.took[kind]))
		at := func(p float64) time.Duration {
			return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)].Round(time.Millisecond / 10)
		}
		fmt.Fprintf(&b, "honest %-9s n %7d  p50 %8v  p99 %8v  max %8v\n", kind, len(sorted), at(0.5), at(0.99), at(1))
	}
	fmt.Fprintf(&b, "honest jobs completed %d; calls failed after repetitions %v; attempts that failed %v\n", h.done, h.failed, h.errors)
	return b.String()
}
