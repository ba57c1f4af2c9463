//go:build linux || darwin

package exec

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	osexec "os/exec"
	"sync"
	"syscall"
	"time"
)

// Guardian is the node's guardian as emitd sees it. The process is started with the first
// command, and started again with the next one if it ended.
type Guardian struct {
	cfg GuardianConfig

	mu     sync.Mutex
	link   *link // nil = not started yet
	closed bool
}

// NewGuardian returns a guardian whose process is not started yet.
func NewGuardian(cfg GuardianConfig) *Guardian {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Guardian{cfg: cfg}
}

// patience is how long closing waits for the process.
const patience = 5 * time.Second

// Close ends the guardian: groups it still watches are killed. It is called after all runs have
// ended.
func (g *Guardian) Close() error {
	g.mu.Lock()
	g.closed = true
	l := g.link
	g.mu.Unlock()
	if l == nil {
		return nil
	}
	l.close()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-l.gone:
		return nil
	case <-t.C:
		return errors.New("close guardian: it still waits for processes to end")
	}
}

// reach returns a link to a living guardian, and starts one if there is none.
func (g *Guardian) reach() (*link, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !hooked.Load():
		return nil, errors.New("exec.GuardianMain must be the first call in main")
	case g.closed:
		return nil, errors.New("guardian is closed")
	case g.link != nil && !g.link.isGone():
		return g.link, nil
	}
	l, err := startGuardian(g.cfg)
	if err != nil {
		return nil, fmt.Errorf("start guardian: %w", err)
	}
	g.link = l
	return l, nil
}

// link is one guardian process and the conversation with it.
type link struct {
	cmd *osexec.Cmd
	log *slog.Logger
	in  *os.File // requests
	out *os.File // answers

	// gone is closed once the process has ended; why is set before.
	gone chan struct{}
	why  error

	mu      sync.Mutex
	closing bool
	last    uint64
	waiting map[uint64]*waiting
}

// waiting is a request without an answer.
type waiting struct {
	answer chan status // has room for one
	ticks  int         // of the watchdog since it was sent
}

func startGuardian(cfg GuardianConfig) (*link, error) {
	path, err := self()
	if err != nil {
		return nil, err
	}
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		closeAll(childIn, in)
		return nil, err
	}
	cmd := &osexec.Cmd{
		Path: path, Args: []string{roleGuardian},
		// One thread that runs Go code is plenty, and a smaller heap.
		Env:   append(os.Environ(), "GOMAXPROCS=1"),
		Stdin: childIn, Stdout: childOut, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if cfg.Lock != nil {
		cmd.ExtraFiles = []*os.File{cfg.Lock}
	}
	err = cmd.Start()
	closeAll(childIn, childOut)
	if err != nil {
		closeAll(in, out)
		return nil, err
	}
	l := &link{
		cmd: cmd, log: cfg.Logger.With("guardian", cmd.Process.Pid), in: in, out: out,
		gone: make(chan struct{}), waiting: map[uint64]*waiting{},
	}
	go l.listen()
	go l.watchdog()
	return l, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (l *link) isGone() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// close ends the conversation; the guardian then ends by itself.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closing {
		l.closing = true
		_ = l.in.Close()
	}
}

// listen hands answers out until the process has ended.
func (l *link) listen() {
	lines := bufio.NewScanner(l.out)
	for lines.Scan() {
		a, err := parseAnswer(lines.Text())
		if err != nil {
			l.log.Error("guardian says what is no answer", "line", lines.Text())
			l.kill()
			break
		}
		if a.id == 0 {
			l.log.Warn("guardian killed a process group: its assignment's trust was over", "pgid", a.pgid)
			continue
		}
		l.mu.Lock()
		if w := l.waiting[a.id]; w != nil {
			delete(l.waiting, a.id)
			w.answer <- a.status
		}
		l.mu.Unlock()
	}
	err := l.cmd.Wait()
	l.mu.Lock()
	expected := l.closing
	l.closing = true
	if !expected {
		_ = l.in.Close()
	}
	l.mu.Unlock()
	_ = l.out.Close()
	l.why = ErrGuardian
	if err != nil {
		l.why = fmt.Errorf("%w: %w", ErrGuardian, err)
	}
	if !expected {
		l.log.Error("guardian has ended; its commands are killed", "error", l.why)
	}
	close(l.gone)
}

// A request that was not answered for so many ticks is never answered. Ticks are counted, not
// time: a process that was stopped sees one tick when it goes on, and finds its answers then.
const (
	tick     = time.Second
	maxTicks = 5
)

// watchdog kills a guardian that does not answer: one that is stopped guards nothing.
func (l *link) watchdog() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-l.gone:
			return
		case <-t.C:
		}
		if l.overdue() {
			l.log.Error("guardian does not answer; it is killed")
			l.kill()
		}
	}
}

// overdue counts a tick and reports whether some request has waited for too long.
func (l *link) overdue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := false
	for _, w := range l.waiting {
		w.ticks++
		late = late || w.ticks > maxTicks
	}
	return late
}

func (l *link) kill() { _ = l.cmd.Process.Kill() }

// send sends a request; the answer comes on the channel, or never if the link ends. The channel
// is nil if it has ended already.
func (l *link) send(req request) <-chan status {
	w := &waiting{answer: make(chan status, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil
	}
	l.last++
	req.id = l.last
	l.waiting[req.id] = w
	// Lines are short and answered: the pipe is full only if the guardian does not read.
	_ = l.in.SetWriteDeadline(time.Now().Add(maxTicks * tick))
	if _, err := l.in.WriteString(req.line()); err != nil {
		l.log.Error("guardian does not listen; it is killed", "error", err)
		l.kill()
	}
	return w.answer
}

// ask sends a request and waits for its answer.
func (l *link) ask(ctx context.Context, req request) (status, error) {
	sent := l.send(req)
	if sent == nil {
		return "", fmt.Errorf("%w: it was closed", ErrGuardian)
	}
	select {
	case s := <-sent:
		return s, nil
	case <-l.gone:
		return "", l.why
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
