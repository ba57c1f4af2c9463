package exec

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	osexec "os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/daemon"
)

// The roles in which the tests start this binary; see also GuardianMain.
const (
	roleVar     = "EXEC_TEST_ROLE"
	roleNode    = "node"     // a process like emitd, with one command
	roleCommand = "command"  // a command that does what its arguments say
	roleBare    = "unhooked" // a program that forgot GuardianMain
)

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) == roleBare {
		os.Exit(bareMain())
	}
	GuardianMain()
	switch os.Getenv(roleVar) {
	case roleNode:
		os.Exit(nodeMain())
	case roleCommand:
		os.Exit(commandMain(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// soon bounds every wait for something that must happen. It is long, because machines are busy.
const soon = 30 * time.Second

var fence = daemon.Fence{Unit: daemon.Unit{Daemon: "acme:ticker", Index: 3}, Generation: 77}

// journal is a slog.Handler that keeps messages and lets tests wait for them.
type journal struct {
	mu      *sync.Mutex
	printed *[]string
	more    chan struct{} // has room for one
	attrs   []slog.Attr
}

func newJournal() *journal {
	return &journal{mu: new(sync.Mutex), printed: new([]string), more: make(chan struct{}, 1)}
}

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithGroup(string) slog.Handler            { return j }
func (j *journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	k := *j
	k.attrs = append(slices.Clone(j.attrs), attrs...)
	return &k
}

func (j *journal) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	for _, a := range j.attrs {
		if a.Key == "stream" {
			text = a.Value.String() + ": " + text
		}
	}
	r.Attrs(func(a slog.Attr) bool { text += fmt.Sprintf(" [%s=%v]", a.Key, a.Value); return true })
	j.mu.Lock()
	*j.printed = append(*j.printed, text)
	j.mu.Unlock()
	select {
	case j.more <- struct{}{}:
	default:
	}
	return nil
}

func (j *journal) lines() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(*j.printed)
}

// after waits for a line with the prefix and returns the rest of it.
func (j *journal) after(t *testing.T, prefix string) string {
	t.Helper()
	late := time.After(soon)
	for {
		for _, l := range j.lines() {
			if rest, ok := strings.CutPrefix(l, prefix); ok {
				return rest
			}
		}
		select {
		case <-j.more:
		case <-late:
			t.Fatalf("no line %q…; said:\n%s", prefix, strings.Join(j.lines(), "\n"))
		}
	}
}

// pid waits for a line that consists of the prefix and a number, and opens that process.
func (j *journal) pid(t *testing.T, prefix string) *held {
	t.Helper()
	n, err := strconv.Atoi(j.after(t, prefix))
	if err != nil {
		t.Fatalf("line %q…: %v", prefix, err)
	}
	return hold(t, n)
}

// held is a process with an open descriptor, so that a test can wait for its end.
type held struct{ pid, fd int }

func hold(t *testing.T, pid int) *held {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("open process %d: %v", pid, err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &held{pid: pid, fd: fd}
}

// endsWithin reports whether the process ends in that time.
func (h *held) endsWithin(d time.Duration) bool {
	end := time.Now().Add(d)
	for {
		left := max(time.Until(end), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if err == nil {
			return n == 1
		}
	}
}

func (h *held) mustEnd(t *testing.T, what string) {
	t.Helper()
	if !h.endsWithin(soon) {
		_ = unix.Kill(h.pid, unix.SIGKILL)
		t.Fatalf("%s (process %d) did not end", what, h.pid)
	}
}

func (h *held) mustRun(t *testing.T, what string) {
	t.Helper()
	if h.endsWithin(0) {
		t.Fatalf("%s (process %d) has ended", what, h.pid)
	}
}

func (h *held) signal(t *testing.T, s unix.Signal) {
	t.Helper()
	if err := unix.PidfdSendSignal(h.fd, s, nil, 0); err != nil {
		t.Fatalf("signal %v to %d: %v", s, h.pid, err)
	}
	if s == unix.SIGSTOP { // a failing test must not leave it stopped for ever
		awaitStop(h.pid)
		t.Cleanup(func() { _ = unix.PidfdSendSignal(h.fd, unix.SIGCONT, nil, 0) })
	}
}

// awaitStop waits until no thread of the process runs any more.
func awaitStop(pid int) {
	for end, stopped := time.Now().Add(soon), false; !stopped && time.Now().Before(end); {
		stopped = true
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, path := range stats {
			text, err := os.ReadFile(path)
			_, rest, _ := strings.Cut(string(text), ") ")
			stopped = stopped && (err != nil || strings.HasPrefix(rest, "T") || strings.HasPrefix(rest, "t"))
		}
		runtime.Gosched()
	}
}

// newGuardian returns a guardian that ends with the test.
func newGuardian(t *testing.T, log *journal) *Guardian {
	t.Helper()
	g := NewGuardian(GuardianConfig{Logger: slog.New(log), noCgroup: true})
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Errorf("close guardian: %v", err)
		}
	})
	return g
}

// process returns the running guardian.
func (g *Guardian) process(t *testing.T) *held {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	pid, err := g.link.guardian()
	if err != nil {
		t.Fatal(err)
	}
	return hold(t, pid)
}

// guardian returns the number of the guardian, which is the reaper's only child. A guardian that
// answers has its name.
func (l *link) guardian() (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if _, err := l.call(ctx, request{Verb: verbPing}); err != nil {
		return 0, fmt.Errorf("the guardian does not answer: %w", err)
	}
	all, err := processes()
	for _, p := range all {
		if p.ppid == l.cmd.Process.Pid && p.name == roleGuardian {
			return p.pid, nil
		}
	}
	return 0, fmt.Errorf("the guardian is not among the processes (%v)", err) //nolint:errorlint // or nil
}

// trial is one run of a command in this process.
type trial struct {
	*journal
	a        *daemon.Assignment
	cancel   context.CancelCauseFunc
	guardian *Guardian
	result   chan error
	trust    func() time.Duration
	states   daemon.StateStore // of a command with a schedule
}

// try begins a run. It is cancelled at the end of the test, if it still exists.
func try(t *testing.T, cfg Config, change ...func(*trial)) *trial {
	t.Helper()
	r := &trial{journal: newJournal(), a: daemon.NewAssignment(fence, 9, "n1", nil), result: make(chan error, 1)}
	for _, c := range change {
		c(r)
	}
	if r.guardian == nil {
		r.guardian = newGuardian(t, r.journal)
	}
	cfg.ID, cfg.Logger = fence.Unit.Daemon, slog.New(r.journal)
	ctx := context.Background()
	if r.states != nil {
		ctx = daemon.WithStates(ctx, r.states)
	}
	if r.trust != nil {
		ctx = daemon.WithValidity(ctx, r.trust)
	}
	ctx, r.cancel = context.WithCancelCause(ctx)
	agent := New(cfg, r.guardian)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.result <- agent.Run(ctx, r.a)
	}()
	t.Cleanup(func() { r.cancel(nil); <-done })
	return r
}

func with(g *Guardian) func(*trial)                { return func(r *trial) { r.guardian = g } }
func trusting(f func() time.Duration) func(*trial) { return func(r *trial) { r.trust = f } }

// end waits for Run to return.
func (r *trial) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.result:
		return err
	case <-time.After(soon):
		t.Fatalf("Run does not return; said:\n%s", strings.Join(r.lines(), "\n"))
		return nil
	}
}

func (r *trial) mustNotReturn(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.result:
		t.Fatalf("Run returned %v", err)
	default:
	}
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// forever is a command that prints its pid and waits for a signal.
const forever = `echo up $$; exec sleep 1000`

// command is this binary as a command. Shells do not work where signals matter: a process that they
// fork loses a signal that arrives too early.
//
//	NAME exit CODE     says "NAME pid"; on SIGTERM it exits
//	NAME finish FIFO   on SIGTERM it says "busy", waits for the fifo, says "saved" and exits
//	NAME deaf -        on SIGTERM it says "deaf" and goes on
//	NAME leave FIFO    waits for the fifo and exits with code 5, leaving its child
//
// More arguments are those of a child in the same group, started first.
func command(args ...string) Config {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Config{Command: append([]string{self}, args...), Env: map[string]string{roleVar: roleCommand}}
}

func commandMain(args []string) int {
	terms := make(chan os.Signal, 10)
	signal.Notify(terms, unix.SIGTERM)
	name, verb, what := args[0], args[1], args[2]
	if len(args) > 3 {
		child := osexec.Command(os.Args[0], args[3:]...)
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			fmt.Println("child:", err)
			return 2
		}
	}
	fmt.Println(name, os.Getpid())
	if verb == "leave" {
		_, _ = os.ReadFile(what)
		return 5
	}
	for range terms {
		switch verb {
		case "exit":
			code, _ := strconv.Atoi(what)
			if code != 0 {
				fmt.Fprintln(os.Stderr, "cannot save")
			}
			return code
		case "finish":
			fmt.Println("busy")
			_, _ = os.ReadFile(what)
			fmt.Println("saved")
			return 0
		case "deaf":
			fmt.Println("deaf")
		}
	}
	return 2
}

// fifo makes a named pipe on which commands wait for the test.
func fifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// release lets the reader of the fifo go on.
func release(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("go\n")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// node is a process like emitd with one command, apart from this one: it may be killed.
type node struct {
	*journal
	process *held
}

// nodeConfig configures a node.
type nodeConfig struct {
	Command    []string
	Env        map[string]string
	Trust      time.Duration // the validity always lasts this much longer; 0 = none is known
	Lock       string        // path
	PrintReads bool          // print a line each time the validity is read
	Cgroup     bool          // let the guardian use control groups
	// StopGuardian stops the guardian before the command is begun.
	StopGuardian bool
}

const nodeVar = "EXEC_TEST_NODE"

func startNode(t *testing.T, cfg nodeConfig) *node {
	t.Helper()
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+roleNode, nodeVar+"="+string(text))
	// A StdoutPipe would not do: Wait must not wait for commands that hold the pipe.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	n := &node{process: hold(t, cmd.Process.Pid), journal: newJournal()}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			_ = n.Handle(context.Background(), slog.Record{Message: lines.Text()})
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = r.SetReadDeadline(time.Now().Add(soon))
		<-read
		_ = r.Close()
	})
	return n
}

// nodeMain is the node. It prints its command's output, its guardian's pid, and how Run returned.
func nodeMain() int {
	var cfg nodeConfig
	if err := json.Unmarshal([]byte(os.Getenv(nodeVar)), &cfg); err != nil {
		fmt.Println("config:", err)
		return 2
	}
	log := slog.New(printer{newJournal()})
	gc := GuardianConfig{Logger: log, noCgroup: !cfg.Cgroup}
	if cfg.Lock != "" {
		lock, err := os.OpenFile(cfg.Lock, os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil {
			err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		if err != nil {
			fmt.Println("lock:", err)
			return 2
		}
		gc.Lock = lock
	}
	g := NewGuardian(gc)
	l, err := g.reach()
	if err != nil {
		fmt.Println("guardian:", err)
		return 2
	}
	guardian, err := l.guardian()
	if err != nil {
		fmt.Println("guardian:", err)
		return 2
	}
	if cfg.StopGuardian {
		_ = unix.Kill(guardian, unix.SIGSTOP)
		awaitStop(guardian)
	}
	fmt.Println("reaper", l.cmd.Process.Pid)
	fmt.Println("guardian", guardian)
	ctx := context.Background()
	if cfg.Trust > 0 {
		reads := 0
		ctx = daemon.WithValidity(ctx, func() time.Duration {
			if reads++; cfg.PrintReads {
				fmt.Println("asked", reads)
			}
			return cfg.Trust
		})
	}
	agent := New(Config{ID: fence.Unit.Daemon, Command: cfg.Command, Env: cfg.Env, Logger: log}, g)
	fmt.Println("returned:", agent.Run(ctx, daemon.NewAssignment(fence, 9, "n1", nil)))
	fmt.Println("closed:", g.Close())
	return 0
}

// printer prints what is logged.
type printer struct{ *journal }

func (p printer) WithAttrs(attrs []slog.Attr) slog.Handler {
	return printer{p.journal.WithAttrs(attrs).(*journal)}
}

func (p printer) Handle(ctx context.Context, r slog.Record) error {
	_ = p.journal.Handle(ctx, r)
	lines := p.lines()
	fmt.Println(lines[len(lines)-1])
	return nil
}

func bareMain() int {
	g := NewGuardian(GuardianConfig{})
	_, err := g.reach()
	fmt.Println(err)
	return 0
}

// ask sends a request and waits for its answer.
func (l *link) call(ctx context.Context, req request) (answer, error) {
	sent := l.send(req)
	if sent == nil {
		return answer{}, fmt.Errorf("%w: it was closed", ErrGuardianGone)
	}
	select {
	case a := <-sent:
		return a, nil
	case <-l.gone:
		return answer{}, l.why
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}
