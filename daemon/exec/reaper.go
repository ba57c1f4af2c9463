//go:build linux || darwin

package exec

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The descriptors of a guardian beyond the standard ones.
const (
	reaperAlive = 3 // hangs up when the reaper ends
	lockFile    = 4 // if a lock file was inherited
)

// reaperMain is the main function of the reaper, the process between emitd and the guardian (on
// Linux). If the guardian is killed, the reaper adopts the processes that the guardian leaves
// behind, and kills them. It also holds the socket and the lock file, so that emitd sees both end
// only when no process is left.
func reaperMain(args []string) (code int) {
	setName(roleReaper)
	runtime.LockOSThread()
	catchSignals()
	_ = os.Chdir("/")
	adopt()
	path, err := self()
	if err != nil {
		logf("emit-reaper: %v\n", err)
		return 1
	}
	r, w, err := os.Pipe()
	if err != nil {
		logf("emit-reaper: %v\n", err)
		return 1
	}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr, r}
	if slices.Contains(args, argLock) {
		lock := os.NewFile(3, "lock")
		defer lock.Close() // not before, because it holds the lock
		files = append(files, lock)
	}
	guardian, err := os.StartProcess(path, append([]string{roleGuardian}, args...), &os.ProcAttr{Env: os.Environ(), Files: files})
	if err != nil {
		logf("emit-reaper: start guardian: %v\n", err)
		return 1
	}
	_ = r.Close()
	defer w.Close()
	go endStopped(guardian)
	state, err := guardian.Wait()
	if n := killChildren(); n > 0 {
		logf("emit-reaper: the guardian has ended; killed %d processes of daemons that it left behind\n", n)
	}
	if !slices.Contains(args, argNoCgroup) {
		sweepCgroups()
	}
	if err != nil {
		logf("emit-reaper: wait for guardian: %v\n", err)
		return 1
	}
	if s, ok := state.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return state.ExitCode()
}

// endStopped kills a guardian that does not work any more: when emitd sends SIGUSR1, or when emitd has
// ended and the guardian still exists closeTimeout later.
func endStopped(guardian *os.Process) {
	requested, ended := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(requested, syscall.SIGUSR1)
	go func() {
		defer close(ended)
		awaitHangup(0)
		time.Sleep(closeTimeout)
	}()
	for {
		select {
		case <-requested:
		case <-ended:
			ended = nil
		}
		_ = guardian.Kill()
	}
}

// awaitHangup waits until the other end of a socket is closed.
func awaitHangup(conn int32) {
	fds := []unix.PollFd{{Fd: conn}}
	for fds[0].Revents == 0 {
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// killChildren kills all children, including adopted ones, until none is left. It returns how many
// there were. A child keeps its number until it is waited for here, so no other process can be hit.
func killChildren() int {
	seen := map[int]bool{}
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) {
				return len(seen)
			}
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
		self := os.Getpid()
		all, _ := processes()
		for _, p := range all {
			if p.ppid != self || p.dead {
				continue
			}
			seen[p.pid] = true
			if p.pgid == p.pid { // including processes that it is forking
				_ = unix.Kill(-p.pid, unix.SIGKILL)
			}
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
		time.Sleep(pause)
	}
}

// catchSignals makes the process survive signals that are meant for emitd. Emitd handles them: it
// ends its runs and closes the socket, and then this process ends. The signals are caught and not
// ignored, because the commands would inherit an ignored signal.
func catchSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGUSR1, syscall.SIGUSR2)
}
