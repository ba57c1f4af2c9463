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
	reaperAlive = 3 // ends with the reaper
	lockFile    = 4 // if there is one
)

// reaperMain is the process between emitd and the guardian (on Linux). It adopts what a guardian
// that was killed leaves behind, and kills it. It holds the socket and the lock file too, so that
// emitd sees both end only when nothing is left.
func reaperMain(args []string) (code int) {
	setName(roleReaper)
	runtime.LockOSThread()
	catchSignals()
	_ = os.Chdir("/")
	adopt()
	path, err := self()
	if err != nil {
		tell("emit-reaper: %v\n", err)
		return 1
	}
	r, w, err := os.Pipe()
	if err != nil {
		tell("emit-reaper: %v\n", err)
		return 1
	}
	files := []uintptr{0, 1, 2, r.Fd()}
	if _, err := unix.FcntlInt(3, unix.F_GETFD, 0); err == nil && slices.Contains(args, argLock) {
		files = append(files, 3)
	}
	guardian, err := syscall.ForkExec(path, append([]string{roleGuardian}, args...), &syscall.ProcAttr{Env: os.Environ(), Files: files})
	if err != nil {
		tell("emit-reaper: start guardian: %v\n", err)
		return 1
	}
	_ = r.Close()
	defer w.Close()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGUSR1)
	go func() {
		for range end { // emitd says that the guardian does not answer
			_ = unix.Kill(guardian, unix.SIGKILL)
		}
	}()
	s := waitFor(guardian)
	if n := killRest(); n > 0 {
		tell("emit-reaper: the guardian has ended; killed %d processes of daemons that it left behind\n", n)
	}
	if !slices.Contains(args, argNoCgroup) {
		sweepCgroups()
	}
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// waitFor waits for a child.
func waitFor(pid int) unix.WaitStatus {
	var s unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &s, 0, nil); !errors.Is(err, unix.EINTR) {
			return s
		}
	}
}

// killRest kills all children, those among them that were adopted, until none is left. It returns
// how many there were. Each is the parent's until it is waited for here, so its number is its own.
func killRest() int {
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
		for _, p := range processes() {
			if p.ppid != self || p.dead {
				continue
			}
			seen[p.pid] = true
			if p.pgid == p.pid { // and what it is forking
				_ = unix.Kill(-p.pid, unix.SIGKILL)
			}
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
		time.Sleep(pause)
	}
}

// catchSignals makes the process deaf: whoever signals emitd means emitd, which ends its runs and
// closes the socket, and then this ends. Caught and not ignored, as what is ignored here would be
// ignored by the commands too.
func catchSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGUSR1, syscall.SIGUSR2)
}
