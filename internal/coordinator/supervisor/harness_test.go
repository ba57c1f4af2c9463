package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// theatre is a supervisor in a bubble with one agent, and a record of everything that happened.
type theatre struct {
	*Supervisor
	t *testing.T

	mu      sync.Mutex
	lines   []string // reports, stamps, entries, exits, in order
	reports []Report
	log     bytes.Buffer
}

// act runs the story in a bubble. Every run must have ended by its end.
func act(t *testing.T, cfg Config, agent daemon.AgentFunc, story func(th *theatre)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		th := newTheatre(t, cfg, agent)
		defer func() {
			for _, f := range th.Running() { // or the bubble would never end
				th.Cancel(f, errLost)
			}
		}()
		story(th)
		synctest.Wait()
		if left := th.Running(); len(left) > 0 {
			t.Fatalf("still running at the end: %v", left)
		}
		if err := th.Wait(th.t.Context()); err != nil {
			t.Errorf("wait at the end: %v", err)
		}
	})
}

func newTheatre(t *testing.T, cfg Config, agent daemon.AgentFunc) *theatre {
	th := &theatre{t: t}
	cfg.Node = "n1"
	if cfg.Agent == nil {
		cfg.Agent = func(daemon.ID) (daemon.Agent, bool) {
			return daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
				th.record("enter")
				return agent(ctx, a)
			}), true
		}
	}
	stamp := cfg.Stamp
	cfg.Stamp = func(ctx context.Context, f daemon.Fence) error {
		th.record("stamp")
		if stamp == nil {
			return nil
		}
		return stamp(ctx, f)
	}
	cfg.OnReport = th.report
	cfg.OnFenceHeld = func(g int64) { th.record("held %d", g) }
	cfg.Exit = func(code int) { th.record("exit %d", code) }
	cfg.Logger = slog.New(slog.NewTextHandler(lockedWriter{th}, nil))
	th.Supervisor = New(cfg)
	return th
}

type lockedWriter struct{ th *theatre }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.th.mu.Lock()
	defer w.th.mu.Unlock()
	return w.th.log.Write(p)
}

func (th *theatre) record(format string, args ...any) {
	th.mu.Lock()
	defer th.mu.Unlock()
	th.lines = append(th.lines, fmt.Sprintf(format, args...))
}

func (th *theatre) report(r Report) {
	if r.Kind == Stamped {
		return // TestStampedIsReportedOnce looks at it
	}
	line := map[ReportKind]string{Started: "started", Failed: "failed", Abandoned: "abandoned", Ended: "ended"}[r.Kind]
	if r.Kind == Ended {
		line += " " + []string{"returned", "gave up", "released", "refused", "forgotten"}[r.Ending]
	}
	if r.Lasted {
		line = "lasted, " + line
	}
	if r.Kind == Failed || r.Ending == member.GaveUp {
		line += fmt.Sprintf(" #%d", r.Failures)
	}
	if r.Err != nil {
		line += ": " + r.Err.Error()
	}
	th.mu.Lock()
	defer th.mu.Unlock()
	th.lines = append(th.lines, line)
	th.reports = append(th.reports, r)
}

// expect waits until everything is blocked and compares what has been recorded since the last call.
func (th *theatre) expect(want ...string) {
	th.t.Helper()
	synctest.Wait()
	th.mu.Lock()
	defer th.mu.Unlock()
	// A run that is ready at once is reported just before the agent is called, others by another goroutine than the agent's.
	for i := 1; i < len(th.lines); i++ {
		if th.lines[i] == "enter" && th.lines[i-1] == "started" || th.lines[i] == "started" && strings.HasPrefix(th.lines[i-1], "held") {
			th.lines[i], th.lines[i-1] = th.lines[i-1], th.lines[i]
		}
	}
	if got := strings.Join(th.lines, "\n"); got != strings.Join(want, "\n") {
		th.t.Errorf("said:\n\t%s\nwant:\n\t%s", strings.Join(th.lines, "\n\t"), strings.Join(want, "\n\t"))
	}
	th.lines = nil
}

// logged waits until everything is blocked and returns the log.
func (th *theatre) logged() string {
	synctest.Wait()
	th.mu.Lock()
	defer th.mu.Unlock()
	return th.log.String()
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

var (
	unit  = daemon.Unit{Daemon: "acme:reports", Index: 2}
	fence = daemon.Fence{Unit: unit, Generation: 7}
	next  = daemon.Fence{Unit: unit, Generation: 8}
)

// obedient returns when it is asked to.
func obedient(ctx context.Context, a *daemon.Assignment) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.Draining():
		return nil
	}
}
