// Package worker runs job handlers against a queue: a broker in this process, or the client of one
// elsewhere.
//
//	w, err := worker.New(q, worker.Config{Queue: "mail", Concurrency: 50})
//	worker.Handle(w, "email:send", func(ctx context.Context, j worker.Job[Email]) error {
//		return send(ctx, j.Args)
//	})
//	err = w.Run(ctx) // until ctx ends, then drains
//
// The caller closes q after Run has returned; all goroutines of the worker belong to Run. Without other settings ten
// handlers run at once, a claim lasts 30 s without an answered heartbeat, and a stopping worker gives its handlers
// 30 s. examples/worker is a whole program, and docs/explanation/queue.md explains the guarantees of the queue.
//
// # What is promised
//
//  1. Concurrency is reached and never exceeded. A claim asks for as many jobs as there are free
//     places, and a job takes its place before its handler starts. Types with their own limit
//     ([Config].Limits) keep that limit too.
//  2. Only types that have a handler are claimed.
//  3. A handler's context ends when its claim is lost, with [ErrClaimLost] in its cause. The claim
//     is lost when the broker says so, or when no heartbeat was answered for the visibility
//     timeout, counted from before the last answered one was sent. Nothing is reported for a job
//     that the broker gave to another worker.
//  4. Exactly one of complete, fail and release is reported per claim. A complete without an answer
//     is repeated until there is one or the claim is over. It never turns into a failure.
//  5. A panic is a failure, with its cause. A payload that cannot be decoded makes the job dead
//     with its cause. It is not retried, because a retry would fail too.
//  6. When Run's context ends, nothing more is claimed, and handlers may finish for DrainTimeout.
//     Then their contexts end, with [ErrStopped] as the cause, and unfinished jobs are released at
//     once. Run returns at the latest StopTimeout and 1 s later.
//  7. A release counts as no attempt. But a handler that has run for a third of the visibility timeout
//     was reported by a heartbeat, and that has counted its attempt. A job that is released with its
//     last attempt counted is dead. So a job that takes longer than DrainTimeout needs more attempts
//     than there may be deployments while it runs; the default is 3.
//
// It is not promised that a job runs only once. A claim can be lost while its handler runs, and the
// job is claimed again; the token makes sure that only one of the two completes it. Effects outside
// the queue need an idempotency key of their own; the job's ID can serve.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/queue"
)

// Errors with which a handler's context ends.
var (
	ErrClaimLost = errors.New("the claim is lost") // another worker may have the job
	ErrStopped   = errors.New("the worker stops")  // the drain timeout is over
)

// Config configures a worker. The zero value is a good default.
type Config struct {
	Queue string // name of the queue; default "default"
	// Name tells people which worker has a job; default host name and process number.
	Name string
	// Concurrency is how many handlers run at a time; default 10.
	Concurrency int
	// Limits limits how many handlers of a type run at a time. While a limited type has only a
	// few free places, claims are made smaller.
	Limits map[string]int
	// Visibility is the visibility timeout of claims; heartbeats are sent at a third of it.
	// Default 30 s, at least 1 s, at most 24 h. With a longer one, claims survive longer outages,
	// and the jobs of a worker that died wait longer.
	Visibility time.Duration
	// Wait is how long a claim call waits for jobs. Default and maximum is half of Visibility,
	// because the visibility timeout is counted from before the call, but no more than queue.MaxWait.
	Wait time.Duration
	// DrainTimeout is how long handlers may continue after Run's context has ended; default 30
	// s; negative: not at all.
	DrainTimeout time.Duration
	// StopTimeout is how long handlers may take after that to return, and reports to be
	// answered; default 5 s.
	StopTimeout time.Duration
	// Hooks are called when something happens.
	Hooks Hooks
	// Logger receives panics, and errors if there is no Hooks.OnError; default slog.Default().
	Logger *slog.Logger
	// MeterProvider provides the instruments; nil: OpenTelemetry's global one.
	MeterProvider metric.MeterProvider
	// TracerProvider provides a span for each handler's run; nil: OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
}

// Hooks are called when something happens in a worker. Each may be nil. They run on the goroutine
// of the job, or of the worker for OnError, and delay only that goroutine.
type Hooks struct {
	// OnClaimed is called when a job was claimed and its handler is about to start.
	OnClaimed func(j queue.Info)
	// OnCompleted is called when the complete was acknowledged. took is the handler's time.
	OnCompleted func(j queue.Info, took time.Duration)
	// OnFailed is called when the failure was acknowledged; state says whether the job is tried
	// again.
	OnFailed func(j queue.Info, err error, state queue.State)
	// OnReleased is called when the job was released.
	OnReleased func(j queue.Info)
	// OnLost is called when the claim was over before anything could be reported.
	OnLost func(j queue.Info, err error)
	// OnError is called when a claim, heartbeat or report failed; the worker tries again. Without it, the logger is told:
	// the first time for each kind of error, and at most once a minute after that.
	OnError func(err error)
}

// Tee returns hooks that call both a's and b's.
func Tee(a, b Hooks) Hooks {
	both := Hooks{
		OnClaimed:   func(j queue.Info) { a.claimed(j); b.claimed(j) },
		OnCompleted: func(j queue.Info, d time.Duration) { a.completed(j, d); b.completed(j, d) },
		OnFailed:    func(j queue.Info, err error, s queue.State) { a.failed(j, err, s); b.failed(j, err, s) },
		OnReleased:  func(j queue.Info) { a.released(j); b.released(j) },
		OnLost:      func(j queue.Info, err error) { a.lost(j, err); b.lost(j, err) },
		OnError:     func(err error) { a.erred(err); b.erred(err) },
	}
	if a.OnError == nil && b.OnError == nil {
		both.OnError = nil // then errors are logged
	}
	return both
}

func (h Hooks) claimed(j queue.Info) {
	if h.OnClaimed != nil {
		h.OnClaimed(j)
	}
}

func (h Hooks) completed(j queue.Info, took time.Duration) {
	if h.OnCompleted != nil {
		h.OnCompleted(j, took)
	}
}

func (h Hooks) failed(j queue.Info, err error, s queue.State) {
	if h.OnFailed != nil {
		h.OnFailed(j, err, s)
	}
}

func (h Hooks) released(j queue.Info) {
	if h.OnReleased != nil {
		h.OnReleased(j)
	}
}

func (h Hooks) lost(j queue.Info, err error) {
	if h.OnLost != nil {
		h.OnLost(j, err)
	}
}

func (h Hooks) erred(err error) {
	if h.OnError != nil {
		h.OnError(err)
	}
}

// Worker runs handlers. Create it with [New], register handlers with [Handle], then call Run.
type Worker struct {
	svc      queue.Consumer
	cfg      Config
	logged   errorLog
	handlers map[string]handler
	reports  *reporter
	meters   meters

	mu       sync.Mutex
	started  bool
	types    []string // types that have a handler, sorted
	running  map[*run]struct{}
	byType   map[string]int
	freed    chan struct{} // signalled when a place was freed
	draining chan struct{} // closed when nothing more is claimed
}

// New creates a worker on a queue.
func New(svc queue.Consumer, c Config) (*Worker, error) {
	c.Queue = cmp.Or(c.Queue, queue.DefaultQueue)
	c.Concurrency = cmp.Or(c.Concurrency, 10)
	c.Visibility = cmp.Or(c.Visibility, 30*time.Second)
	c.Wait = cmp.Or(c.Wait, min(c.Visibility/2, queue.MaxWait))
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 5*time.Second)
	if c.Name == "" {
		host, _ := os.Hostname() // without a host name, the process number is enough
		suffix := fmt.Sprintf("-%d", os.Getpid())
		c.Name = host[:min(len(host), queue.MaxType-len(suffix))] + suffix
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	m, err := newMeters(c.MeterProvider, c.TracerProvider, c.Queue)
	if err != nil {
		return nil, err
	}
	return &Worker{
		svc: svc, cfg: c, handlers: map[string]handler{}, meters: m, reports: newReporter(svc, c.Queue),
		running: map[*run]struct{}{}, byType: map[string]int{}, freed: make(chan struct{}, 1), draining: make(chan struct{}),
	}, nil
}

func (c *Config) validate() error {
	var errs []error
	if c.Concurrency < 1 {
		errs = append(errs, fmt.Errorf("concurrency is %d, less than 1", c.Concurrency))
	}
	switch {
	case c.Visibility < time.Second:
		errs = append(errs, fmt.Errorf("visibility is %v, less than 1s: heartbeats could not extend a claim in time", c.Visibility))
	case c.Visibility > limits.MaxVisibility:
		errs = append(errs, fmt.Errorf("visibility is %v, more than %v", c.Visibility, limits.MaxVisibility))
	}
	if c.Wait < 0 || c.Wait > c.Visibility/2 || c.Wait > queue.MaxWait {
		errs = append(errs, fmt.Errorf("wait is %v, more than half of visibility (%v) or %v", c.Wait, c.Visibility, queue.MaxWait))
	}
	if c.StopTimeout < 0 {
		errs = append(errs, fmt.Errorf("stop timeout is %v, negative", c.StopTimeout))
	}
	if err := limits.Queue(c.Queue); err != nil {
		errs = append(errs, err)
	}
	if err := limits.Claim(&queue.ClaimRequest{Worker: c.Name}); err != nil { // the broker would refuse each claim
		errs = append(errs, err)
	}
	for _, t := range slices.Sorted(maps.Keys(c.Limits)) {
		if c.Limits[t] < 1 {
			errs = append(errs, fmt.Errorf("limit of %q is %d, less than 1", t, c.Limits[t]))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// Run claims and runs jobs until ctx ends, then drains; see the package's promises. It returns nil
// unless handlers did not return after the end of their contexts. It may be called once.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.begin(); err != nil {
		return err
	}
	var jobs, beats sync.WaitGroup
	beating, stopBeating := context.WithCancel(context.WithoutCancel(ctx))
	beats.Go(func() { w.heartbeat(beating) })

	w.claims(ctx, &jobs)
	close(w.draining)

	ended := make(chan struct{})
	go func() { jobs.Wait(); close(ended) }()
	err := w.drain(ended)
	stopBeating()
	beats.Wait()
	w.reports.close()
	return err
}

func (w *Worker) begin() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return errors.New("worker: Run was called twice")
	}
	switch n := len(w.handlers); {
	case n == 0:
		return errors.New("worker: there are no handlers")
	case n > queue.MaxCall:
		return fmt.Errorf("worker: there are handlers of %d types, more than the %d of one claim", n, queue.MaxCall)
	}
	w.started = true
	w.types = slices.Sorted(maps.Keys(w.handlers))
	return nil
}

// drain waits for the handlers, cancels those that exceed DrainTimeout, and gives up those that do
// not return.
func (w *Worker) drain(ended <-chan struct{}) error {
	if d := w.cfg.DrainTimeout; d > 0 && within(ended, d) {
		return nil
	}
	for _, r := range w.active() {
		r.stop()
	}
	if within(ended, w.cfg.StopTimeout) {
		return nil
	}
	w.reports.end() // cancels reports without an answer; the claims of their jobs expire
	if within(ended, time.Second) {
		return nil
	}
	var names []string
	for _, r := range w.active() {
		names = append(names, fmt.Sprintf("%s (%s)", r.claim.Job.ID, r.claim.Job.Type))
	}
	slices.Sort(names)
	return fmt.Errorf("worker: %d handlers ignore the end of their context: %s", len(names), strings.Join(names, ", "))
}

func within(ended <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ended:
		return true
	case <-t.C:
		return false
	}
}

// active returns the runs in progress.
func (w *Worker) active() []*run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.running))
}

// capacity returns what may be claimed now: how many jobs, and of which types. If saturated is true,
// types at their limit are left out, so the claim must not wait long.
func (w *Worker) capacity() (n int, types []string, saturated bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n = min(w.cfg.Concurrency-len(w.running), queue.MaxCall)
	for _, t := range w.types {
		limit, limited := w.cfg.Limits[t]
		left := limit - w.byType[t]
		switch {
		case limited && left <= 0:
			saturated = true
			continue
		case limited:
			n = min(n, left)
		}
		types = append(types, t)
	}
	if len(types) == 0 {
		n = 0
	}
	return n, types, saturated
}

// takePlace takes a place for a run; leave frees it.
func (w *Worker) takePlace(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[r] = struct{}{}
	w.byType[r.claim.Job.Type]++
}

func (w *Worker) freePlace(r *run) {
	w.mu.Lock()
	delete(w.running, r)
	w.byType[r.claim.Job.Type]--
	w.mu.Unlock()
	select {
	case w.freed <- struct{}{}:
	default:
	}
}
