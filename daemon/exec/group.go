//go:build linux || darwin

package exec

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	osexec "os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// group is a process group whose first process is a child of this one: first a gate, then the
// command. Its number stays ours until reap: the first process is left unreaped.
type group struct {
	pgid  int
	start string

	process *os.Process
	gate    *os.File      // the word is written here
	became  chan error    // nil once the gate has become the command, or why it has not
	exited  chan struct{} // closed when the first process has exited

	stdout, stderr output
	pipes          []*os.File // ends that are read
	readers        sync.WaitGroup
}

// launch says what a gate will become.
type launch struct {
	dir      string
	command  []string
	env      []string
	log      *slog.Logger // of the output
	progress func()       // called for each line of it
}

// spawn starts a gate that will become the command.
func spawn(c launch) (*group, error) {
	path, err := self()
	if err != nil {
		return nil, err
	}
	var ours, theirs []*os.File
	defer func() { closeAll(theirs...) }()
	for range 4 { // stdout, stderr, status, gate
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(ours...)
			return nil, err
		}
		ours, theirs = append(ours, r), append(theirs, w)
	}
	ours[3], theirs[3] = theirs[3], ours[3] // the gate reads
	cmd := &osexec.Cmd{
		Path: path, Args: append([]string{roleGate, c.dir}, c.command...), Env: c.env,
		Stdout: theirs[0], Stderr: theirs[1], ExtraFiles: []*os.File{theirs[3], theirs[2]},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := cmd.Start(); err != nil {
		closeAll(ours...)
		return nil, err
	}
	g := &group{
		pgid: cmd.Process.Pid, process: cmd.Process, gate: ours[3],
		became: make(chan error, 1), exited: make(chan struct{}), pipes: ours[:3],
	}
	log := c.log.With("pid", g.pgid)
	g.stdout = output{log: log.With("stream", "stdout"), progress: c.progress}
	g.stderr = output{log: log.With("stream", "stderr"), progress: c.progress}
	g.readers.Go(func() { g.stdout.drain(ours[0]) })
	g.readers.Go(func() { g.stderr.drain(ours[1]) })
	g.readers.Go(func() { g.became <- readStatus(ours[2]) })
	go func() {
		defer close(g.exited)
		if err := awaitExit(g.pgid); err != nil {
			log.Error("cannot wait for the command", "error", err)
		}
	}()
	p, err := lookup(g.pgid)
	if err != nil {
		g.discard()
		return nil, fmt.Errorf("look at the new process: %w", err)
	}
	g.start = p.start
	return g, nil
}

// readStatus returns nil if the pipe ends without a word: the execve has closed it.
func readStatus(r io.Reader) error {
	text, _ := io.ReadAll(io.LimitReader(r, maxTail))
	if len(text) == 0 {
		return nil
	}
	return errors.New(string(text))
}

// open lets the gate become the command.
func (g *group) open() error {
	_, err := g.gate.Write([]byte{1})
	return errors.Join(err, g.gate.Close())
}

// discard ends a group whose gate was not opened.
func (g *group) discard() {
	_ = g.gate.Close()
	g.signal(unix.SIGKILL)
	<-g.exited
	_, _ = g.reap()
}

// signal sends to all processes of the group.
func (g *group) signal(s unix.Signal) {
	_ = unix.Kill(-g.pgid, s)
	if s == unix.SIGTERM {
		_ = unix.Kill(-g.pgid, unix.SIGCONT) // who is stopped hears nothing
	}
}

// isGone reports whether no process of the group executes anything any more. A scan may miss a
// process that forks while it looks, so an empty one is made sure of: SIGKILL also reaches what
// is being forked.
func (g *group) isGone() bool {
	select {
	case <-g.exited:
	default:
		return false
	}
	if groupRuns(g.pgid) {
		return false
	}
	g.signal(unix.SIGKILL)
	return !groupRuns(g.pgid)
}

// lastWords is how long output is still read from pipes that a process outside the group holds.
const lastWords = 500 * time.Millisecond

// reap ends a group that is gone: its output is read to the end and its number given back.
func (g *group) reap() (*os.ProcessState, error) {
	_ = g.gate.Close()
	for _, p := range g.pipes {
		_ = p.SetReadDeadline(time.Now().Add(lastWords))
	}
	g.readers.Wait()
	closeAll(g.pipes...)
	return g.process.Wait()
}
