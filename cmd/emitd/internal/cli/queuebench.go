package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue"
)

// benchType is the type of a benchmark's jobs. No worker handles it, so workers do not take the jobs.
const benchType = "emitd:bench"

// benchmark runs clients that each submit a batch, claim as many jobs and complete them, again and again.
type benchmark struct {
	batch, size int
	rate        float64       // cycles per second of all clients together; 0: each client begins its next cycle at once
	length      time.Duration // of the whole benchmark
	payload     func() []byte // of the next job
}

// samePayload returns a payload for all jobs.
func samePayload(size int) func() []byte {
	payload := bytes.Repeat([]byte("x"), size)
	return func() []byte { return payload }
}

// randomPayload makes each job a payload of random text.
func randomPayload(size int) func() []byte {
	return func() []byte {
		raw := make([]byte, base64.StdEncoding.DecodedLen(size)+3)
		_, _ = rand.Read(raw) // never fails
		return base64.StdEncoding.AppendEncode(nil, raw)[:size]
	}
}

// benchCalls are the three calls of a cycle in one of the protocols.
type benchCalls interface {
	reach(ctx context.Context) error // nil: the server answers, and has the queue
	submit(ctx context.Context, jobs []queue.Job) error
	claim(ctx context.Context, worker string, most int) ([]queue.Claimed, error) // waits for a while if there are none
	complete(ctx context.Context, worker string, claims []queue.Claimed) error
	// writes returns how many segments the queue's brokers have written, and the highest epoch of them;
	// false if the server does not say.
	writes(ctx context.Context) (n, epoch int64, ok bool)
}

// durations are those of calls, in milliseconds.
type durations struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func durationsOf(all []time.Duration) durations {
	if len(all) == 0 {
		return durations{}
	}
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return durations{ms(all[len(all)/2]), ms(all[len(all)*99/100]), ms(all[len(all)-1])}
}

func (d durations) cells() []string {
	return []string{fmt.Sprintf("%.1fms", d.P50), fmt.Sprintf("%.1fms", d.P99)}
}

// benchResult is the result of a benchmark.
type benchResult struct {
	Clients  int       `json:"clients"`
	Batch    int       `json:"batch"`
	Jobs     int64     `json:"jobs"`
	Seconds  float64   `json:"seconds"`
	Rate     float64   `json:"jobs_per_second"`
	Total    durations `json:"total_ms"` // from submit to complete
	Submit   durations `json:"submit_ms"`
	Claim    durations `json:"claim_ms"`
	Complete durations `json:"complete_ms"`
	Writes   *float64  `json:"writes_per_1000_jobs,omitempty"` // nil: not known
	Failed   int64     `json:"failed_calls"`
	Error    string    `json:"error,omitempty"` // the first
}

func (r *benchResult) cells(wide bool) []string {
	writes := "-"
	if r.Writes != nil {
		writes = fmt.Sprintf("%.0f", *r.Writes)
	}
	row := slices.Concat([]string{fmt.Sprint(r.Clients), fmt.Sprint(r.Batch), fmt.Sprintf("%.0f", r.Rate)},
		r.Submit.cells(), r.Claim.cells(), r.Complete.cells(), []string{writes, fmt.Sprint(r.Failed)})
	if wide {
		row = append(row, fmt.Sprint(r.Jobs), view.Exact(time.Duration(r.Seconds*float64(time.Second))))
		row = append(row, r.Total.cells()...)
	}
	return row
}

// benchTable shows the results of several numbers of clients.
func benchTable(all []benchResult) func(w io.Writer, wide bool) error {
	return func(w io.Writer, wide bool) error {
		t := &view.Table{Head: []string{"CLIENTS", "BATCH", "JOBS/S", "SUBMIT P50", "P99", "CLAIM P50", "P99", "COMPLETE P50", "P99", "WRITES/1000", "FAILED"}}
		if wide {
			t.Head = append(t.Head, "JOBS", "TIME", "TOTAL P50", "P99")
		}
		for i := range all {
			t.Add(all[i].cells(wide)...)
		}
		err := t.Write(w)
		for i := range all {
			if err == nil && all[i].Error != "" {
				_, err = fmt.Fprintf(w, "first error with %d clients: %s\n", all[i].Clients, view.Line(all[i].Error))
			}
		}
		return err
	}
}

// benchRun is a benchmark while it runs.
type benchRun struct {
	benchmark
	calls  benchCalls
	began  time.Time
	cycles atomic.Int64 // number of cycles that the clients have begun
	mu     sync.Mutex
	result benchResult
	took   [4][]time.Duration // submit, claim, complete, cycle
}

// run runs the benchmark. Failed calls are counted; only the end of ctx ends it early.
func (b benchmark) run(ctx context.Context, calls benchCalls, clients int) (benchResult, error) {
	r := &benchRun{benchmark: b, calls: calls, result: benchResult{Clients: clients, Batch: b.batch}}
	before, epoch, known := calls.writes(ctx)
	r.began = time.Now()
	var all errgroup.Group
	for i := range clients {
		all.Go(func() error {
			for r.next(ctx) {
				r.cycle(ctx, fmt.Sprintf("bench-%d", i))
			}
			return ctx.Err()
		})
	}
	if err := all.Wait(); err != nil {
		return r.result, err
	}
	out := &r.result
	out.Seconds = time.Since(r.began).Seconds()
	out.Rate = float64(out.Jobs) / out.Seconds
	out.Submit, out.Claim, out.Complete, out.Total = durationsOf(r.took[0]), durationsOf(r.took[1]), durationsOf(r.took[2]), durationsOf(r.took[3])
	if after, now, ok := calls.writes(ctx); ok && known && now == epoch && after > before && out.Jobs > 0 {
		n := float64(after-before) * 1000 / float64(out.Jobs)
		out.Writes = &n
	}
	return *out, nil
}

// next waits until the client may begin a cycle. It returns false at the end.
func (r *benchRun) next(ctx context.Context) bool {
	n := r.cycles.Add(1) - 1
	if r.rate > 0 {
		due := time.Duration(float64(n) / r.rate * float64(time.Second))
		if due >= r.length {
			return false
		}
		return backoff.Sleep(ctx, time.Until(r.began.Add(due))) == nil
	}
	return time.Since(r.began) < r.length && ctx.Err() == nil
}

// cycle submits a batch, and then claims and completes jobs until it has completed as many, whichever
// client submitted them.
func (r *benchRun) cycle(ctx context.Context, worker string) {
	jobs := make([]queue.Job, r.batch)
	for i := range jobs {
		jobs[i] = queue.Job{Type: benchType, Payload: r.payload()}
	}
	began := time.Now()
	if !r.call(0, func() error { return r.calls.submit(ctx, jobs) }) {
		return
	}
	for done := 0; done < r.batch; {
		var claims []queue.Claimed
		if !r.call(1, func() (err error) {
			claims, err = r.calls.claim(ctx, worker, r.batch-done)
			return err
		}) || len(claims) == 0 {
			return
		}
		if !r.call(2, func() error { return r.calls.complete(ctx, worker, claims) }) {
			return
		}
		done += len(claims)
		r.mu.Lock()
		r.result.Jobs += int64(len(claims))
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.took[3] = append(r.took[3], time.Since(began))
	r.mu.Unlock()
}

// call measures one call of a kind and reports whether it succeeded.
func (r *benchRun) call(kind int, do func() error) bool {
	began := time.Now()
	err := do()
	took := time.Since(began)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.took[kind] = append(r.took[kind], took)
		return true
	}
	if r.result.Failed++; r.result.Failed == 1 {
		r.result.Error = err.Error()
	}
	return false
}
