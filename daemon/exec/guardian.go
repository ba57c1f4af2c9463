//go:build linux || darwin

package exec

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	osexec "os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Guardian is emitd's view of the node's guardian. The process is started with the first command,
// and again with the next command after it ended.
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

// closeTimeout is how long Close waits for the process.
const closeTimeout = 5 * time.Second

// Close ends the guardian, which kills what it still runs. Call it after all runs have ended.
func (g *Guardian) Close() error {
	g.mu.Lock()
	g.closed = true
	l := g.link
	g.mu.Unlock()
	if l == nil {
		return nil
	}
	l.close()
	t := time.NewTimer(closeTimeout)
	defer t.Stop()
	select {
	case <-l.gone:
		return nil
	case <-t.C:
		return errors.New("close guardian: processes are still ending")
	}
}

// reach returns a link to a living guardian. It starts one if there is none.
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

// link is one guardian process and the connection to it.
type link struct {
	cmd  *osexec.Cmd
	log  *slog.Logger
	conn *net.UnixConn

	// gone is closed once the process has ended. The field why has the reason by then.
	gone chan struct{}
	why  error

	mu      sync.Mutex
	closing bool
	last    uint64
	waiting map[uint64]*waiting
	groups  map[uint64]*group // by run
}

// waiting is a request without an answer.
type waiting struct {
	answer chan answer // has room for one
	ticks  int         // ticks of the watchdog since the request was sent
}

func startGuardian(cfg GuardianConfig) (*link, error) {
	path, err := self()
	if err != nil {
		return nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	args := []string{roleGuardian}
	if adopts {
		args[0] = roleReaper
	}
	if cfg.noCgroup {
		args = append(args, argNoCgroup)
	}
	if cfg.Lock != nil {
		args = append(args, argLock)
	}
	cmd := &osexec.Cmd{
		Path: path, Args: args, Env: guardianEnv(),
		Stdin: theirs, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if cfg.Lock != nil {
		cmd.ExtraFiles = []*os.File{cfg.Lock}
	}
	if err := cmd.Start(); err != nil {
		_ = ours.Close()
		return nil, err
	}
	l := &link{
		cmd: cmd, log: cfg.Logger.With("guardian", cmd.Process.Pid), conn: ours,
		gone: make(chan struct{}), waiting: map[uint64]*waiting{}, groups: map[uint64]*group{},
	}
	go l.listen()
	go l.watchdog()
	return l, nil
}

// guardianEnv returns the guardian's own environment. It allows two threads that run Go code, one
// to enforce the deadlines and one to start commands. The guardian needs nothing else of emitd's
// environment.
func guardianEnv() []string {
	env := []string{"GOMAXPROCS=2"}
	for _, name := range []string{"GOCOVERDIR", "GODEBUG"} {
		if v, set := os.LookupEnv(name); set {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// socketPair returns a connection and the file of its other end.
func socketPair() (*net.UnixConn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "guardian"), os.NewFile(uintptr(fds[1]), "emitd") // descriptors are small
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
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

// close ends the connection; the guardian then ends by itself.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closing {
		l.closing = true
		_ = l.conn.CloseWrite()
	}
}

func (l *link) isClosing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing
}

// listen passes answers on until the process has ended.
func (l *link) listen() {
	lines := bufio.NewScanner(l.conn)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil || a.Status == "" {
			l.log.Error("guardian sent a malformed answer", "line", lines.Text())
			l.kill()
			break
		}
		l.handleAnswer(a)
	}
	err := l.cmd.Wait()
	l.mu.Lock()
	expected := l.closing
	l.closing = true
	l.mu.Unlock()
	_ = l.conn.Close()
	l.why = ErrGuardianGone
	if err != nil {
		l.why = fmt.Errorf("%w: %w", ErrGuardianGone, err)
	}
	if !expected {
		l.log.Error("guardian has ended; its commands are killed", "error", l.why)
	}
	close(l.gone)
}

// handleAnswer handles one answer or notice.
func (l *link) handleAnswer(a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.ID != 0 {
		if w := l.waiting[a.ID]; w != nil {
			delete(l.waiting, a.ID)
			w.answer <- a
		}
		return
	}
	g := l.groups[a.Run]
	if g == nil {
		return
	}
	switch a.Status {
	case statusStarted:
		g.begin(a)
	case statusKilled:
		l.log.Warn("guardian killed a process group: the validity of its assignment had ended", "pgid", g.pgid)
	case statusExited:
		close(g.exited)
	case statusGone, statusFailed, statusLate:
		delete(l.groups, a.Run)
		g.end(a)
	default:
	}
}

// A request that was not answered for maxTicks ticks never will be. The watchdog counts ticks instead of time. A
// process that was stopped (SIGSTOP) sees only one tick when it continues, and then finds the answers that arrived
// meanwhile.
const (
	tick     = time.Second
	maxTicks = 5
)

// watchdog kills a guardian that does not answer, because a guardian that is stopped guards
// nothing.
func (l *link) watchdog() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-l.gone:
			return
		case <-t.C:
		}
		switch late, idle := l.overdue(); {
		case late:
			l.log.Error("guardian does not answer and is killed")
			l.kill()
		case idle:
			l.send(request{Verb: verbPing})
		}
	}
}

// overdue counts a tick. It reports whether a request has waited for too long. idle reports that no request waits
// although there are runs; the guardian should then be pinged.
func (l *link) overdue() (late, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiting {
		w.ticks++
		late = late || w.ticks > maxTicks
	}
	return late, len(l.waiting) == 0 && len(l.groups) > 0
}

// kill ends a guardian that does not work any more.
func (l *link) kill() {
	if adopts { // the reaper kills it, and then the processes that are left
		_ = l.cmd.Process.Signal(syscall.SIGCONT)
		_ = l.cmd.Process.Signal(syscall.SIGUSR1)
		return
	}
	_ = l.cmd.Process.Kill()
}

// start asks the guardian to run a command; g gets the notices about it. start closes the files before it returns.
func (l *link) start(g *group, c *program, deadline instant, files ...*os.File) error {
	defer closeAll(files...)
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd())) // descriptors are small
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return fmt.Errorf("%w: it was closed", ErrGuardianGone)
	}
	text, err := line(request{Verb: verbStart, ID: l.last + 1, Deadline: deadline, Command: c})
	if err != nil {
		return err
	}
	l.last++
	g.run = l.last
	l.groups[g.run] = g
	l.waiting[g.run] = &waiting{answer: make(chan answer, 1)}
	l.write(text, unix.UnixRights(fds...))
	return nil
}

// send sends a request about a run. The answer arrives on the channel, or never if the link ends.
// The channel is nil if the link has already ended.
func (l *link) send(req request) <-chan answer {
	w := &waiting{answer: make(chan answer, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil
	}
	l.last++
	req.ID = l.last
	l.waiting[req.ID] = w
	text, _ := line(req) // numbers only
	l.write(text, nil)
	return w.answer
}

// write sends a line and descriptors. The socket is full only if the guardian does not read.
func (l *link) write(text, rights []byte) {
	_ = l.conn.SetWriteDeadline(time.Now().Add(maxTicks * tick))
	n, _, err := l.conn.WriteMsgUnix(text, rights, nil)
	if err == nil && n < len(text) {
		_, err = l.conn.Write(text[n:])
	}
	if err != nil {
		l.log.Error("guardian does not accept requests and is killed", "error", err)
		l.kill()
	}
}
