//go:build linux || darwin

package exec

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/daemon"
)

// Run runs the command once; see the package comment.
func (g *agent) Run(ctx context.Context, a *daemon.Assignment) error {
	r := &run{
		cfg: g.cfg, a: a,
		log: g.cfg.Logger.With("unit", a.Unit.String(), "generation", a.Generation),
	}
	began, err := r.begin(ctx, g.guardian)
	if err != nil {
		return fmt.Errorf("start %s: %w", g.cfg.ID, err)
	}
	if !began {
		return context.Cause(ctx) // nil, if it was drained
	}
	r.accompany(ctx)
	return r.end(ctx)
}

// run is one run of a command.
type run struct {
	cfg   Config
	a     *daemon.Assignment
	log   *slog.Logger
	link  *link
	group *group

	deadline  instant       // as the guardian knows it
	extending <-chan status // answer to come
	failed    error         // why the command never ran
	lost      error         // why nobody guards the group
	signalled bool          // SIGTERM or SIGKILL was sent
}

// begin brings the group up to the point where the command runs, watched. It reports false if the
// run was ended meanwhile.
func (r *run) begin(ctx context.Context, guardian *Guardian) (bool, error) {
	var err error
	if r.link, err = guardian.reach(); err != nil {
		return false, err
	}
	if r.deadline = trusted(ctx); r.deadline <= readClock() {
		return false, r.untrusted(ctx)
	}
	r.group, err = spawn(launch{
		dir: r.cfg.Dir, command: r.cfg.Command, env: r.cfg.environ(os.Environ(), r.a),
		log: r.log, progress: func() { r.a.Progress(1) },
	})
	if err != nil {
		return false, err
	}
	if begin, err := r.guard(ctx); !begin {
		r.abort()
		return false, err
	}
	return true, nil
}

// guard has the group watched and opens its gate.
func (r *run) guard(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() { // what was drained before it began need not begin
		select {
		case <-r.a.Draining():
			cancel()
		case <-stop:
		}
	}()
	s, err := r.link.ask(ctx, request{verb: watch, pgid: r.group.pgid, start: r.group.start, deadline: r.deadline})
	switch {
	case ctx.Err() != nil:
		return false, nil
	case err != nil:
		return false, err
	case s == statusLate:
		return false, r.untrusted(ctx)
	case s != statusOK:
		return false, fmt.Errorf("guardian does not watch the process: %s", s)
	}
	if err := r.group.open(); err != nil {
		return false, fmt.Errorf("open the gate: %w", err)
	}
	return true, nil
}

// abort ends a group whose command never ran.
func (r *run) abort() {
	_ = r.group.gate.Close()
	r.group.signal(unix.SIGKILL)
	<-r.group.exited
	_ = r.forget()
	_, _ = r.group.reap()
}

// errUntrusted is the failure of a run whose trust was over before anybody ended it.
var errUntrusted = errors.New("the assignment's trust is over")

// untrusted waits a moment for the end that must come when trust is over: a process that was
// stopped wakes up here before it has looked at its own deadlines.
func (r *run) untrusted(ctx context.Context) error {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-r.a.Draining():
		return nil
	case <-t.C:
		return errUntrusted
	}
}

// trusted returns until when the assignment may be trusted. The clock is read first: a pause
// before the answer shortens it.
func trusted(ctx context.Context) instant {
	now := readClock()
	left, ok := daemon.Trust(ctx)
	if !ok || left > time.Duration(never-now) {
		return never
	}
	return now + instant(left)
}

// Pauses of the loop.
const (
	grace    = 2 * time.Second // for the rest of a group whose first process ended by itself
	shortest = 2 * time.Millisecond
	longer   = 100 * time.Millisecond
)

// accompany returns when the group is gone.
func (r *run) accompany(ctx context.Context) {
	var (
		exited, draining = r.group.exited, r.a.Draining()
		cancelled, gone  = ctx.Done(), r.link.gone
		became           = r.group.became
		look             = time.NewTimer(time.Hour) // whether the group is gone
		kill             = time.NewTimer(time.Hour) // what is left of it
		renew            = time.NewTimer(r.interval())
		pause            = shortest
	)
	look.Stop()
	kill.Stop()
	defer look.Stop()
	defer kill.Stop()
	defer renew.Stop()
	for {
		select {
		case err := <-became:
			became = nil
			r.began(err)
		case <-draining:
			draining = nil
			r.signal(unix.SIGTERM)
		case <-cancelled:
			cancelled = nil
			r.signal(unix.SIGKILL)
		case <-gone:
			gone = nil
			r.lost = r.link.why
			r.signal(unix.SIGKILL)
		case <-renew.C:
			r.renew(ctx)
			renew.Reset(r.interval())
		case s := <-r.extending:
			r.extending = nil
			if s == statusUnknown {
				r.lost = fmt.Errorf("%w: it does not know the group", ErrGuardian)
				r.signal(unix.SIGKILL)
			}
		case <-exited:
			exited = nil
			if !r.signalled {
				r.group.signal(unix.SIGTERM)
				kill.Reset(grace)
			}
			look.Reset(0)
		case <-kill.C:
			r.group.signal(unix.SIGKILL)
		case <-look.C:
			if r.group.isGone() {
				return
			}
			look.Reset(pause)
			pause = min(2*pause, longer)
		}
	}
}

// began notes that the command runs, or why it does not.
func (r *run) began(err error) {
	if err != nil {
		r.failed = err
		return
	}
	r.a.Ready()
}

func (r *run) signal(s unix.Signal) {
	r.signalled = true
	r.group.signal(s)
}

// interval returns the pause until trust is looked at again: a tenth of what is left.
func (r *run) interval() time.Duration {
	left := time.Duration(min(r.deadline-readClock(), instant(time.Hour)))
	return min(max(left/10, 10*time.Millisecond), 10*time.Second)
}

// renew tells the guardian a deadline that has changed.
func (r *run) renew(ctx context.Context) {
	deadline := trusted(ctx)
	moved := deadline - r.deadline
	if r.extending != nil || moved > -instant(time.Millisecond) && moved < instant(time.Millisecond) {
		return
	}
	r.deadline = deadline
	r.extending = r.link.send(request{verb: extend, pgid: r.group.pgid, deadline: deadline})
}

// forget has the guardian forget the group before its number is given back. One that is gone has
// nothing to forget; one that does not answer is not waited for, as it looks at what it kills.
func (r *run) forget() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := r.link.ask(ctx, request{verb: forget, pgid: r.group.pgid})
	return err
}

// end gives the group's number back and reads how the command ended.
func (r *run) end(ctx context.Context) error {
	guarded := r.forget()
	state, err := r.group.reap()
	if err != nil {
		return fmt.Errorf("wait for %s: %w", r.cfg.ID, err)
	}
	if !r.signalled && signalOf(state) == syscall.SIGKILL && errors.Is(guarded, ErrGuardian) {
		r.lost = guarded // the guardian killed the group when it was closed
	}
	select { // all is read by now
	case err := <-r.group.became:
		r.began(err)
	default:
	}
	ended := r.explain(state)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case r.lost != nil:
		return fmt.Errorf("run %s: the command was killed: %w", r.cfg.ID, r.lost)
	case r.failed != nil:
		return fmt.Errorf("start %s: %w", r.cfg.ID, r.failed)
	case ended == nil:
		return nil
	case r.signalled && (signalOf(state) == syscall.SIGTERM || state.ExitCode() == 128+int(syscall.SIGTERM)):
		return nil // as it was told
	case signalOf(state) == syscall.SIGKILL && trusted(ctx) <= readClock():
		return r.untrusted(ctx) // by the guardian
	}
	return fmt.Errorf("run %s: %w", r.cfg.ID, ended)
}

// explain returns nil for exit code 0, or what became of the command.
func (r *run) explain(state *os.ProcessState) error {
	code := state.ExitCode()
	var err error
	switch {
	case code == 0:
		return nil
	case code == exitRelease:
		err = fmt.Errorf("%w: exit code %d", daemon.ErrRelease, code)
	case code > 0:
		err = fmt.Errorf("exit code %d", code)
	default:
		err = errors.New(state.String()) // "signal: killed"
	}
	if tail := r.group.stderr.last(); tail != "" {
		err = fmt.Errorf("%w: %s", err, tail)
	}
	return err
}

// signalOf returns the signal that killed a process, or 0.
func signalOf(state *os.ProcessState) syscall.Signal {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return w.Signal()
	}
	return 0
}
