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

// once runs the command once, for a due time if it has a schedule.
func (g *agent) once(ctx context.Context, a *daemon.Assignment, due time.Time) (err error) {
	r := &run{
		cfg: g.cfg, a: a, draining: a.Draining(),
		log: g.cfg.Logger.With("unit", a.Unit.String(), "generation", a.Generation),
	}
	if r.cfg.due = due; !due.IsZero() {
		r.draining = nil
	}
	if g.cfg.Record != nil {
		line, end := g.cfg.Record(a)
		r.record = line
		defer func() { end(err) }()
	}
	if err := r.begin(ctx, g.guardian); err != nil {
		if errors.Is(err, errUntrusted) {
			err = r.awaitCancel(ctx)
		}
		if err != nil {
			return fmt.Errorf("start %s: %w", g.cfg.ID, err)
		}
		return context.Cause(ctx) // nil if it was drained
	}
	r.supervise(ctx)
	return r.end(ctx)
}

// run is one run of a command.
type run struct {
	cfg    Config
	a      *daemon.Assignment
	log    *slog.Logger
	record func(stream, text string, truncated bool) // may be nil
	link   *link
	group  *group
	// draining is closed when the assignment drains. It is nil for a command with a schedule: a drain waits for it.
	draining <-chan struct{}

	deadline    instant         // the newest deadline that was sent to the guardian
	extending   []<-chan answer // the answers that are still to come
	missed      bool            // a renewal was skipped because too many answers were still to come
	guardianErr error           // why the group has no guardian
	signalled   bool            // SIGTERM or SIGKILL was sent
}

// begin asks the guardian to run the command.
func (r *run) begin(ctx context.Context, guardian *Guardian) error {
	var err error
	if r.link, err = guardian.reach(); err != nil {
		return err
	}
	c, err := r.cfg.command(os.Environ(), r.a)
	if err != nil {
		return err
	}
	if r.deadline = validUntil(ctx); r.deadline <= readClock() {
		return errUntrusted
	}
	g, theirs, err := newGroup(r.log, r.record, r.link.gone, func() { r.a.Progress(1) })
	if err != nil {
		return err
	}
	if err := r.link.start(g, c, r.deadline, theirs...); err != nil {
		g.close()
		return err
	}
	r.group = g
	return nil
}

// errUntrusted is the failure of a run whose validity ended before the run was cancelled.
var errUntrusted = errors.New("the validity of the assignment has ended")

// awaitCancel waits up to a second for the cancellation that must come when the validity has ended. A
// process that was stopped may continue here before it has checked its own deadlines.
func (r *run) awaitCancel(ctx context.Context) error {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-r.draining:
		return nil
	case <-t.C:
		return errUntrusted
	}
}

// validUntil returns until when the assignment is valid. It reads the clock first, so a pause before
// the answer shortens the result.
func validUntil(ctx context.Context) instant {
	now := readClock()
	left, ok := daemon.Validity(ctx)
	if !ok || left > time.Duration(never-now) {
		return never
	}
	return now + instant(left)
}

// Pauses of the loop.
const (
	grace       = 2 * time.Second        // for the other processes, after the first one has ended by itself
	killTimeout = 250 * time.Millisecond // for the guardian to kill a group; after that emitd kills it
	shortest    = 2 * time.Millisecond
	longer      = 100 * time.Millisecond
)

// supervise returns when no process of the run is left.
func (r *run) supervise(ctx context.Context) {
	var (
		started, exited     = r.group.started, r.group.exited
		draining, cancelled = r.draining, ctx.Done()
		kill                = time.NewTimer(time.Hour) // when to kill the remaining processes
		renew               = time.NewTimer(r.interval())
	)
	kill.Stop()
	defer kill.Stop()
	defer renew.Stop()
	for {
		var extended <-chan answer
		if len(r.extending) > 0 {
			extended = r.extending[0]
		}
		select {
		case <-started:
			started = nil
			r.a.Ready()
		case <-draining:
			draining = nil
			r.signal(unix.SIGTERM) // a run that has not begun is not started, whatever the signal
		case <-cancelled:
			cancelled = nil
			r.signal(unix.SIGKILL)
			kill.Reset(killTimeout)
		case <-renew.C:
			r.renew(ctx)
			renew.Reset(r.interval())
		case s := <-extended:
			r.extended(ctx, s)
		case <-exited:
			exited = nil
			if !r.signalled {
				r.send(unix.SIGTERM)
				kill.Reset(grace)
			}
		case <-kill.C:
			r.send(unix.SIGKILL)
			r.killGroup()
		case <-r.group.gone:
			return
		case <-r.link.gone:
			r.endUnguarded()
			return
		}
	}
}

func (r *run) isGone() bool {
	select {
	case <-r.group.gone:
		return true
	default:
		return false
	}
}

func (r *run) isDraining() bool {
	select {
	case <-r.draining:
		return true
	default:
		return false
	}
}

func (r *run) signal(s unix.Signal) {
	r.signalled = true
	r.send(s)
}

func (r *run) send(s unix.Signal) {
	r.link.send(request{Verb: verbSignal, Run: r.group.run, Signal: int(s)})
}

// killGroup kills the process group without the guardian's help.
func (r *run) killGroup() {
	select {
	case <-r.group.started:
		if r.group.target != nil {
			r.group.target.kill()
		}
	default:
	}
}

// endUnguarded ends a run whose guardian has ended. It returns when the process group is gone too.
func (r *run) endUnguarded() {
	if r.isGone() {
		return // the guardian reported the end before it ended itself
	}
	r.guardianErr = r.link.why
	r.killGroup()
	select {
	case <-r.group.started:
	default:
		return
	}
	for pause := shortest; r.group.target != nil && r.group.target.runs(); pause = min(2*pause, longer) {
		time.Sleep(pause)
		r.killGroup()
	}
}

// interval returns the pause until the next renewal: a tenth of the remaining time.
func (r *run) interval() time.Duration {
	left := time.Duration(min(r.deadline-readClock(), instant(time.Hour)))
	return min(max(left/10, 10*time.Millisecond), 10*time.Second)
}

// extended handles the guardian's answer to a new deadline.
func (r *run) extended(ctx context.Context, a answer) {
	r.extending = r.extending[1:]
	if a.Status == statusUnknown && !r.isGone() {
		r.guardianErr = fmt.Errorf("%w: the group is unknown to it", ErrGuardianGone)
		r.signal(unix.SIGKILL)
	}
	if r.missed {
		r.renew(ctx)
	}
}

// maxExtending is how many deadlines may be under way to the guardian. One that stands still, perhaps while it handles a
// deadline, must find a newer one when it goes on, and its socket must not fill.
const maxExtending = 4

// renew sends the guardian a deadline that has changed.
func (r *run) renew(ctx context.Context) {
	deadline := validUntil(ctx)
	if r.missed = len(r.extending) >= maxExtending; r.missed {
		return
	}
	moved := deadline - r.deadline
	if moved > -instant(time.Millisecond) && moved < instant(time.Millisecond) {
		return
	}
	r.deadline = deadline
	r.extending = append(r.extending, r.link.send(request{Verb: verbExtend, Run: r.group.run, Deadline: deadline}))
}

// end determines the result of the run from how the command ended.
func (r *run) end(ctx context.Context) error {
	complete := r.group.close()
	switch last := r.group.last; {
	case r.guardianErr != nil:
	case last.Strays > 0:
		r.log.Warn("killed processes that had left the command's process group", "processes", last.Strays)
	case !complete:
		r.log.Warn("a process that left the command's process group still holds its output: it may run on")
	}
	status := syscall.WaitStatus(r.group.last.Wait) // 16 bits
	killed := status.Signaled() && status.Signal() == syscall.SIGKILL
	if r.guardianErr == nil && !r.signalled && killed && r.link.isClosing() {
		r.guardianErr = ErrGuardianGone // the guardian killed the group when it was closed
	}
	ended := r.explain(status)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case r.guardianErr != nil && r.group.pgid == 0 && r.isDraining():
		return nil // drained before it began
	case r.guardianErr != nil:
		return fmt.Errorf("run %s: the command was killed: %w", r.cfg.ID, r.guardianErr)
	case r.group.last.Status == statusFailed:
		return fmt.Errorf("start %s: %s", r.cfg.ID, r.group.last.Text)
	case r.group.last.Status == statusLate:
		return r.late(ctx)
	case ended == nil:
		return nil
	case r.signalled && (status.Signaled() && status.Signal() == syscall.SIGTERM || status.ExitStatus() == 128+int(syscall.SIGTERM)):
		return nil // it ended by the signal that it was sent
	case killed && validUntil(ctx) <= readClock():
		if err := r.awaitCancel(ctx); err != nil { // the guardian killed it
			return err
		}
		return context.Cause(ctx)
	}
	return fmt.Errorf("run %s: %w", r.cfg.ID, ended)
}

// late ends a run that never began: it was drained meanwhile, or its validity had ended.
func (r *run) late(ctx context.Context) error {
	if err := r.awaitCancel(ctx); err != nil {
		return fmt.Errorf("start %s: %w", r.cfg.ID, err)
	}
	return context.Cause(ctx)
}

// explain returns nil for exit code 0, and otherwise an error that says how the command ended.
func (r *run) explain(status syscall.WaitStatus) error {
	code := status.ExitStatus()
	var err error
	switch {
	case status.Signaled():
		err = fmt.Errorf("signal: %v", status.Signal())
	case code == 0:
		return nil
	case code == exitRelease:
		err = fmt.Errorf("%w: exit code %d", daemon.ErrRelease, code)
	default:
		err = fmt.Errorf("exit code %d", code)
	}
	if tail := r.group.stderr.last(); tail != "" {
		err = fmt.Errorf("%w: %s", err, tail)
	}
	return err
}
