package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/cmd/emitd/internal/view"
	"github.com/emitd/emitd/queue"
)

// benchType is the type of a benchmark's jobs. No worker handles it, so workers do not take the jobs.
const benchType = "emitd:bench"

// benchmark runs clients that each submit a batch, claim as many jobs and complete them, again and again.
type benchmark struct {
	clients, batch, size int
	time                 time.Duration
	payload              []byte
}

// benchResult is the result of a benchmark.
type benchResult struct {
	Clients int     `json:"clients"`
	Batch   int     `json:"batch"`
	Jobs    int64   `json:"jobs"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"jobs_per_second"`
	P50     float64 `json:"cycle_p50_seconds"`
	P99     float64 `json:"cycle_p99_seconds"`
	Errors  int64   `json:"errors"`
	Error   string  `json:"error,omitempty"` // the first
}

func (r benchResult) table(w io.Writer, _ bool) error {
	t := &view.Table{Head: []string{"CLIENTS", "BATCH", "JOBS", "TIME", "JOBS/S", "CYCLE P50", "P99", "ERRORS"}}
	seconds := func(s float64) string { return view.Exact(time.Duration(s * float64(time.Second))) }
	millis := func(s float64) string { return milliseconds(time.Duration(s * float64(time.Second))) }
	t.Add(fmt.Sprint(r.Clients), fmt.Sprint(r.Batch), fmt.Sprint(r.Jobs), seconds(r.Seconds), fmt.Sprintf("%.0f", r.Rate),
		millis(r.P50), millis(r.P99), fmt.Sprint(r.Errors))
	if err := t.Write(w); err != nil || r.Error == "" {
		return err
	}
	_, err := fmt.Fprintf(w, "first error: %s\n", view.Line(r.Error))
	return err
}

// run runs the benchmark. Errors are counted; only the end of ctx ends it early.
func (b benchmark) run(ctx context.Context, s queue.Service, name string) (benchResult, error) {
	var mu sync.Mutex
	out := benchResult{Clients: b.clients, Batch: b.batch}
	var cycles []time.Duration
	began := time.Now()
	var all errgroup.Group
	for i := range b.clients {
		worker := fmt.Sprintf("bench-%d", i)
		all.Go(func() error {
			for time.Since(began) < b.time && ctx.Err() == nil {
				at := time.Now()
				n, err := b.cycle(ctx, s, name, worker)
				mu.Lock()
				out.Jobs += int64(n)
				if err == nil {
					cycles = append(cycles, time.Since(at))
				} else if out.Errors++; out.Errors == 1 {
					out.Error = err.Error()
				}
				mu.Unlock()
			}
			return ctx.Err()
		})
	}
	if err := all.Wait(); err != nil {
		return out, err
	}
	out.Seconds = time.Since(began).Seconds()
	out.Rate = float64(out.Jobs) / out.Seconds
	slices.Sort(cycles)
	if n := len(cycles); n > 0 {
		out.P50, out.P99 = cycles[n/2].Seconds(), cycles[min(n*99/100, n-1)].Seconds()
	}
	return out, nil
}

// cycle submits a batch, and then claims and completes jobs until it has completed as many, whichever
// client submitted them.
func (b benchmark) cycle(ctx context.Context, s queue.Service, name, worker string) (done int, err error) {
	jobs := make([]queue.Job, b.batch)
	for i := range jobs {
		jobs[i] = queue.Job{Type: benchType, Payload: b.payload}
	}
	if _, err := s.Enqueue(ctx, name, jobs); err != nil {
		return 0, err
	}
	for done < b.batch {
		claimed, err := s.Claim(ctx, name, queue.ClaimRequest{
			Worker: worker, Types: []string{benchType}, Max: b.batch - done, Wait: time.Second,
		})
		if err != nil || len(claimed) == 0 {
			return done, err
		}
		what := make([]queue.Settlement, len(claimed))
		for i, c := range claimed {
			what[i] = queue.Settlement{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token, Worker: worker}
		}
		outcomes, err := s.Settle(ctx, name, what)
		if err != nil {
			return done, err
		}
		for _, o := range outcomes {
			if o.Err != nil {
				return done, o.Err
			}
			done++
		}
	}
	return done, nil
}
