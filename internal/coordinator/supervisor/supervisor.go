// Package supervisor runs agents. It carries out what a node has decided. It decides only how long
// to wait before an agent that returned is started again.
//
// A *run* is one generation of one unit; its fence names it. An *attempt* is one call of Agent.Run
// within a run. A run has at most one attempt at a time, and a unit at most one run.
//
//	           stamped           entered / Ready              Drain
//	Start ──▶ stamping ──▶ attempt ─────────────▶ running ──────────▶ draining ──▶ Ended
//	             │            ▲                      │ error, panic, nil, stall       ▲
//	             │            └───── back-off ◀──────┘                                │
//	             └──────────────────────────────────────── Cancel, refusal ──────────┘
//
// What the package promises:
//
//  1. The fence is stamped before Agent.Run is called, so what the agent reads cannot be changed by
//     earlier runs any more. A stamp with an unknown outcome is repeated, with back-off, until it
//     is answered or the run is cancelled. Stamped is reported once per run.
//  2. Started is reported once per run: when Run is about to be called or, with Spec.WaitReady, when the agent
//     called Ready. Attempts after a crash do not report it again.
//  3. Ended is reported exactly once per run, and only when its attempt has returned: no code of
//     the run executes any more. (The package cannot see goroutines that an agent left behind.)
//  4. Reports of one run come in order, one at a time. Only Abandoned comes from the caller of
//     Abandon, and it means nothing after Ended. The unit is free for another Start before its
//     Ended is reported.
//  5. Commands return at once. A command for a run that does not exist, or for another generation,
//     changes nothing.
//
// An attempt is *stalled* when its agent has not called Assignment.Progress for Spec.StallTimeout. Its
// context is then cancelled.
//
// What the return of an attempt means, in this order:
//
//	after Drain or Cancel           Ended Returned, whatever was returned
//	daemon.ErrStale                 Ended FenceRefused: another run owns the unit; never a failure
//	daemon.ErrRelease               Ended Released
//	stalled                         failure
//	nil                             started again after the shortest back-off; no failure, and
//	                                the count of failures in a row begins anew
//	error, panic, runtime.Goexit    failure; MaxFailures in a row: Ended GaveUp
//
// A run that ignores its cancelled context cannot be ended from outside. If its agent's code
// executes at that moment, Abandon stops waiting for it, reports Abandoned, logs the stacks of its
// goroutines and, if the spec says so, ends the process. If the run returns later, Ended is
// reported then. A run whose agent's code has not begun, or has already returned, is not abandoned,
// because it is about to end.
//
// An agent that panics in a goroutine of its own ends the process. Go allows nothing else.
package supervisor

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// Config configures a supervisor. Agent and Stamp are required.
type Config struct {
	// Node is the node's name, for the agents.
	Node string
	// Agent returns the agent that runs the daemon on this node.
	Agent func(daemon.ID) (daemon.Agent, bool)
	// Stamp writes the fence stamp of the run; see storage.Store. It must respect its context.
	Stamp func(ctx context.Context, f daemon.Fence) error
	// OnReport gets the reports about runs, on their goroutines. It must not block.
	OnReport func(Report)
	// OnFenceHeld gets the generation that a fence holds when it refused a run, so that the next
	// generation issued is higher. It must not block.
	OnFenceHeld func(generation int64)
	// Validity returns the remaining validity of the unit's assignment: how long the run may still act
	// on it.
	Validity func(daemon.Unit) time.Duration
	// States is where agents keep the states of their units; nil = nowhere.
	States daemon.StateStore

	// StampTimeout bounds one attempt to stamp; default 5 s.
	StampTimeout time.Duration
	// StopTimeout is how long a stalled attempt may take to return once it was cancelled. If it has
	// not returned by then, Failed (Report.Hangs) is reported and its stacks are logged, and the run goes on
	// waiting for it; default 5 s.
	StopTimeout time.Duration
	// RestartMin and RestartMax bound the back-off; defaults 100 ms and 30 s.
	RestartMin, RestartMax time.Duration
	// ResetAfter is how long an attempt must last for earlier failures to be reset. A stalled
	// attempt counts only until its progress ceased. The default is daemon.FailuresResetAfter.
	ResetAfter time.Duration

	// Exit ends the process (Spec.OnAbandoned); default os.Exit.
	Exit func(code int)
	// Logger, MeterProvider and TracerProvider default to slog's and OpenTelemetry's own.
	Logger         *slog.Logger
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

func (c Config) withDefaults() Config {
	c.StampTimeout = cmp.Or(c.StampTimeout, 5*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 5*time.Second)
	c.RestartMin = cmp.Or(c.RestartMin, 100*time.Millisecond)
	c.RestartMax = max(cmp.Or(c.RestartMax, 30*time.Second), c.RestartMin)
	c.ResetAfter = cmp.Or(c.ResetAfter, daemon.FailuresResetAfter)
	if c.OnReport == nil {
		c.OnReport = func(Report) {}
	}
	if c.OnFenceHeld == nil {
		c.OnFenceHeld = func(int64) {}
	}
	if c.Exit == nil {
		c.Exit = os.Exit
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Report is an event in the life of a run.
type Report struct {
	Fence  daemon.Fence
	Kind   ReportKind
	Ending member.Ending // in a report of Ended
	// Err is the failure; its text is bounded.
	Err error
	// Failures is how many failures in a row there were.
	Failures int
	// RetryIn is how long after a Failed the next attempt begins.
	RetryIn time.Duration
	// Hangs is set in a Failed of a stalled attempt that ignores its cancellation. When it has returned, its failure is
	// reported again, without Hangs.
	Hangs bool
	// Lasted is set in a Failed of an attempt that lasted for ResetAfter: the failures before it count no more.
	Lasted bool
}

// ReportKind is the kind of a report.
type ReportKind int

// The kinds of report.
const (
	Stamped   ReportKind = iota + 1 // the fence is stamped
	Started                         // Agent.Run is about to be called, or the run is ready
	Failed                          // an attempt failed and will be repeated, or is stalled and ignores its cancellation
	Abandoned                       // Abandon was called: the agent's code ignores its cancelled context
	Ended                           // no code of the run executes any more, and none will
)

// ErrNoAgent is the error of a run that ended NoAgent.
var ErrNoAgent = errors.New("this node has no agent for the daemon")

// ErrBusy is the error of a run that was refused because an earlier run of the unit has not
// returned yet.
var ErrBusy = errors.New("an earlier run of the unit has not returned")

// Supervisor runs agents. Its methods may be called from any goroutine.
type Supervisor struct {
	cfg Config
	tel telemetry
	ctx context.Context // what the contexts of all runs have

	mu sync.Mutex
	// units holds the run that occupies each unit: one whose code may execute.
	units map[daemon.Unit]*run
	// pending counts the runs that Wait waits for. idle is closed while there are none.
	pending int
	idle    chan struct{}
}

// New returns a supervisor that runs nothing yet.
func New(cfg Config) *Supervisor {
	if cfg.Agent == nil || cfg.Stamp == nil {
		panic("supervisor: Config.Agent and Config.Stamp are needed")
	}
	cfg = cfg.withDefaults()
	s := &Supervisor{
		cfg: cfg, tel: newTelemetry(cfg), ctx: context.Background(),
		units: map[daemon.Unit]*run{}, idle: make(chan struct{}),
	}
	if cfg.States != nil {
		s.ctx = daemon.WithStates(s.ctx, cfg.States)
	}
	close(s.idle)
	return s
}

// Start begins a run. It changes nothing if the run already exists. While an earlier run of the
// unit has not returned, the new one ends FenceRefused with ErrBusy.
func (s *Supervisor) Start(f daemon.Fence, term int64, spec daemon.Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.units[f.Unit]
	if old != nil && old.fence == f {
		return
	}
	if s.pending++; s.pending == 1 {
		s.idle = make(chan struct{})
	}
	r := newRun(s, f, term, spec.WithDefaults())
	if old != nil {
		go r.refuse(ErrBusy)
		return
	}
	s.units[f.Unit] = r
	go r.begin()
}

// Drain asks the run to finish the work in flight. A run whose agent was not called yet, or that
// waits for its next attempt, ends at once.
func (s *Supervisor) Drain(f daemon.Fence) {
	if r := s.find(f); r != nil {
		r.drain()
	}
}

// Cancel cancels the run's context with the cause. A run whose agent was not called yet, or that
// waits for its next attempt, ends at once.
func (s *Supervisor) Cancel(f daemon.Fence, cause error) {
	if r := s.find(f); r != nil {
		r.cancel(cause)
	}
}

// Abandon stops waiting for a run that ignores its cancelled context. It reports Abandoned, logs
// the stacks of the run's goroutines and, with Spec.OnAbandoned "exit", ends the process. The unit
// stays occupied until the run returns. A run whose agent's code does not execute at that moment is
// only cancelled; it then ends by itself.
func (s *Supervisor) Abandon(f daemon.Fence) {
	r := s.find(f)
	if r == nil {
		return
	}
	r.cancel(errAbandoned)
	if !r.agentRunning.Load() || r.abandoned.Swap(true) {
		return
	}
	s.cfg.OnReport(Report{Kind: Abandoned, Fence: f})
	go func() {
		defer r.stopAwaiting()
		r.logIgnoredCancel("run is abandoned: it ignores its cancelled context")
	}()
}

var errAbandoned = errors.New("abandoned")

// Running returns the runs whose code may execute, abandoned ones included, sorted by unit.
func (s *Supervisor) Running() []daemon.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]daemon.Fence, 0, len(s.units))
	for _, r := range s.units {
		out = append(out, r.fence)
	}
	slices.SortFunc(out, func(a, b daemon.Fence) int { return a.Unit.Compare(b.Unit) })
	return out
}

// Wait returns nil once every run has ended or was abandoned, or ctx's error if ctx ends before. It
// neither starts nor ends runs.
func (s *Supervisor) Wait(ctx context.Context) error {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// find returns the run that is exactly f.
func (s *Supervisor) find(f daemon.Fence) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.units[f.Unit]; r != nil && r.fence == f {
		return r
	}
	return nil
}

// free makes the unit of r free for another run.
func (s *Supervisor) free(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.units[r.fence.Unit] == r {
		delete(s.units, r.fence.Unit)
	}
}

// awaitedDone says that Wait has one run less to wait for.
func (s *Supervisor) awaitedDone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending--; s.pending == 0 {
		close(s.idle)
	}
}
