//go:build linux || darwin

package exec

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// starter starts commands, one after the other, on a thread of its own. The kernel blocks a thread
// until the new process executes the command, which may take arbitrarily long on a slow file
// system.
type starter struct {
	jobs chan *guardedRun
	done chan startResult
}

// startResult is the result of starting a command.
type startResult struct {
	pid      int
	err      error
	noCgroup bool // it could be started only outside its control group
}

// newStarter starts the starter. ring is called after each command.
func newStarter(ring func()) starter {
	s := starter{jobs: make(chan *guardedRun, 1), done: make(chan startResult, 1)}
	go func() {
		runtime.LockOSThread() // the commands die with this thread (on Linux), so it never ends
		nameThread(roleGuardian)
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		for w := range s.jobs {
			if err != nil {
				s.done <- startResult{err: err}
			} else {
				s.done <- start(w.cgroup, func(c *cgroup) (int, error) { return fork(w, null, c) })
			}
			ring()
		}
	}()
	return s
}

// start starts a command. It returns when the process executes it. fork makes the process.
func start(c *cgroup, fork func(*cgroup) (int, error)) startResult {
	pid, err := fork(c)
	if err == nil || c == nil || isResourceError(err) {
		return startResult{pid: pid, err: err}
	}
	// Was the control group the reason, or the command? A start without the group shows it.
	pid, again := fork(nil)
	if again != nil {
		return startResult{err: err}
	}
	return startResult{pid: pid, noCgroup: true}
}

// isResourceError reports whether something failed for want of processes, descriptors or memory. It may
// succeed at another time, and the failure says nothing about what was requested.
func isResourceError(err error) bool {
	return slices.ContainsFunc([]error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EINTR}, func(e error) bool { return errors.Is(err, e) })
}

func fork(w *guardedRun, null *os.File, c *cgroup) (int, error) {
	files := []uintptr{null.Fd(), null.Fd(), null.Fd()}
	for i, fd := range w.files {
		files[i+1] = uintptr(fd) // descriptors are small
	}
	attr := processAttr(c)
	attr.Setpgid = true
	if u := w.command.User; u != nil {
		attr.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
		for _, fd := range w.files { // otherwise the command could not open /dev/stdout
			_ = unix.Fchown(fd, int(u.UID), int(u.GID))
		}
	}
	pid, err := syscall.ForkExec(string(w.command.Path), texts(w.command.Args), &syscall.ProcAttr{
		Dir: string(w.command.Dir), Env: texts(w.command.Env), Files: files, Sys: attr,
	})
	if err != nil {
		return 0, w.command.explain(err)
	}
	return pid, nil
}

// explain adds the directory or the program to an error, because the kernel names neither.
func (c *program) explain(err error) error {
	if dir := string(c.Dir); dir != "" && errors.Is(unix.Access(dir, unix.X_OK), err) {
		return &os.PathError{Op: "chdir", Path: dir, Err: err}
	}
	return &os.PathError{Op: "exec", Path: string(c.Path), Err: err}
}

func texts(bs [][]byte) []string {
	out := make([]string, len(bs))
	for i, b := range bs {
		out[i] = string(b)
	}
	return out
}
