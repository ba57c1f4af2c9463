// Package worker runs job handlers against a queue: a broker in this process or the client of one
// elsewhere.
//
//	w, err := worker.New(q, worker.Config{Queue: "mail", Concurrency: 50})
//	worker.Handle(w, "email:send", func(ctx context.Context, j worker.Job[Email]) error {
//		return send(ctx, j.Args)
//	})
//	err = w.Run(ctx) // until ctx ends, then drains
//
// # What is promised
//
//  1. Concurrency is reached, and never exceeded: a claim asks for as many jobs as there are free
//     places, and a place is taken before its handler starts. Types with a limit of their own
//     ([Config].Limits) keep that too.
//  2. Only types that have a handler are claimed.
//  3. A handler's context ends when its claim is lost, with [ErrClaimLost] in its cause: the
//     broker said so, or no heartbeat was answered for the claim's length, counted from before
//     the last one that was. Nothing is reported for a job that the broker gave to others.
//  4. Exactly one of complete, fail and release is reported per claim. A complete that gets no
//     answer is repeated until it does or the claim is over; it never turns into a failure.
//  5. A panic is a failure with its cause. A payload that cannot be decoded makes the job dead with
//     its cause: neither completed nor retried, as retrying would not mend it.
//  6. When Run's context ends nothing more is claimed and handlers may finish for DrainTimeout;
//     then their contexts end, with [ErrStopped] as the cause, and what they have not finished is
//     given back at once, without counting as an attempt. Run returns at the latest StopTimeout
//     later.
//
// Not promised: that a job runs only once. A claim can be lost while its handler runs, and the
// job is handed out again; the token makes sure that only one of them completes it. Effects
// outside need a key of their own, for which the job's ID serves.
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

	"github.com/emitd/emitd/daemon/queue"
)

// Errors with which a handler's context ends.
var (
	ErrClaimLost = errors.New("the claim is lost") // the job may be with somebody else
	ErrStopped   = errors.New("the worker stops")  // the drain timeout is over
)

// Config of a worker. The zero value is good.
type Config struct {
	Queue string // default "default"
	// Name tells people who has a job; default host name and process number.
	Name string
	// Concurrency is how many handlers run at a time; default 10.
	Concurrency int
	// Limits bounds single types further. A limit also makes claims smaller while its type has
	// room for few.
	Limits map[string]int
	// Visibility is how long a claim lasts without a heartbeat; heartbeats are sent at a third of
	// it. Default 30 s. Longer rides out longer outages, and leaves the jobs of a worker that died
	// longer alone.
	Visibility time.Duration
	// Wait is how long a claim waits for jobs; default and at most half of Visibility, because a
	// claim is counted from before the call.
	Wait time.Duration
	// DrainTimeout is how long handlers may go on once Run's context has ended; default 30 s,
	// negative: not at all.
	DrainTimeout time.Duration
	// StopTimeout is how long handlers get to return after that, and reports to be answered;
	// default 5 s.
	StopTimeout time.Duration
	// Hooks are told what happens.
	Hooks Hooks
	// Logger gets panics and what could not be reported; default slog.Default().
	Logger *slog.Logger
	// MeterProvider makes the instruments; nil: OpenTelemetry's global one.
	MeterProvider metric.MeterProvider
	// TracerProvider makes a span of each handler's run; nil: OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
}

// Hooks are told what a worker does. Each may be nil. They run on the goroutine of the job, or of
// the worker for OnError, and delay that alone.
type Hooks struct {
	// OnClaimed: a job was claimed and its handler is about to start.
	OnClaimed func(j queue.Info)
	// OnCompleted: the complete was acknowledged. took is the handler's time.
	OnCompleted func(j queue.Info, took time.Duration)
	// OnFailed: the failure was acknowledged; state says whether the job is tried again.
	OnFailed func(j queue.Info, err error, state queue.State)
	// OnReleased: the job was given back.
	OnReleased func(j queue.Info)
	// OnLost: the claim was over before anything could be reported.
	OnLost func(j queue.Info, err error)
	// OnError: a claim, heartbeat or report did not work; the worker tries again.
	OnError func(err error)
}

// Tee returns hooks that tell both.
func Tee(a, b Hooks) Hooks {
	return Hooks{
		OnClaimed:   func(j queue.Info) { a.claimed(j); b.claimed(j) },
		OnCompleted: func(j queue.Info, d time.Duration) { a.completed(j, d); b.completed(j, d) },
		OnFailed:    func(j queue.Info, err error, s queue.State) { a.failed(j, err, s); b.failed(j, err, s) },
		OnReleased:  func(j queue.Info) { a.released(j); b.released(j) },
		OnLost:      func(j queue.Info, err error) { a.lost(j, err); b.lost(j, err) },
		OnError:     func(err error) { a.erred(err); b.erred(err) },
	}
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

// Worker runs handlers. Make it with [New], give it handlers with [Handle], then call Run.
type Worker struct {
	svc      queue.Consumer
	cfg      Config
	handlers map[string]handler
	reports  *reporter
	meters   meters

	mu       sync.Mutex
	started  bool
	types    []string // that have a handler, sorted
	running  map[*run]struct{}
	byType   map[string]int
	freed    chan struct{} // a place was freed; holds one
	draining chan struct{} // closed when nothing more is claimed
}

// New makes a worker on a queue.
func New(svc queue.Consumer, c Config) (*Worker, error) {
	c.Queue = cmp.Or(c.Queue, queue.DefaultQueue)
	c.Concurrency = cmp.Or(c.Concurrency, 10)
	c.Visibility = cmp.Or(c.Visibility, 30*time.Second)
	c.Wait = cmp.Or(c.Wait, min(c.Visibility/2, queue.MaxWait))
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 5*time.Second)
	if c.Name == "" {
		host, _ := os.Hostname() // without one the process number has to do
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
	if c.Visibility < time.Second {
		errs = append(errs, fmt.Errorf("visibility is %v, less than 1s: heartbeats could not keep a claim", c.Visibility))
	}
	if c.Wait < 0 || c.Wait > c.Visibility/2 || c.Wait > queue.MaxWait {
		errs = append(errs, fmt.Errorf("wait is %v, more than half of visibility (%v) or %v", c.Wait, c.Visibility, queue.MaxWait))
	}
	if c.StopTimeout < 0 {
		errs = append(errs, fmt.Errorf("stop timeout is %v, negative", c.StopTimeout))
	}
	if len(c.Name) > queue.MaxType {
		errs = append(errs, fmt.Errorf("name has %d bytes, more than %d", len(c.Name), queue.MaxType))
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

// Run claims and works until ctx ends, then drains; see the package's promises. It returns nil
// unless handlers ignored the end of their contexts, and may be called once.
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
		return errors.New("worker: run twice")
	}
	if len(w.handlers) == 0 {
		return errors.New("worker: there are no handlers")
	}
	w.started = true
	w.types = slices.Sorted(maps.Keys(w.handlers))
	return nil
}

// drain waits for the handlers, ends those that are late, and gives up those that do not return.
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
	w.reports.end() // reports without an answer; what they are about comes back by itself
	if within(ended, time.Second) {
		return nil
	}
	var names []string
	for _, r := range w.active() {
		names = append(names, fmt.Sprintf("%s (%s)", r.claim.Job.ID, r.claim.Job.Type))
	}
	slices.Sort(names)
	return fmt.Errorf("worker: %d handlers go on although their context has ended: %s", len(names), strings.Join(names, ", "))
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

// active returns the runs under way.
func (w *Worker) active() []*run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.running))
}

// room says what may be claimed now: how many jobs of which types. saturated: types with a limit
// are left out, so the claim must not wait long.
func (w *Worker) room() (n int, types []string, saturated bool) {
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

// enter takes a place; leave frees it.
func (w *Worker) enter(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[r] = struct{}{}
	w.byType[r.claim.Job.Type]++
}

func (w *Worker) leave(r *run) {
	w.mu.Lock()
	delete(w.running, r)
	w.byType[r.claim.Job.Type]--
	w.mu.Unlock()
	select {
	case w.freed <- struct{}{}:
	default:
	}
}
