//go:build linux || darwin

package exec

import (
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// starter starts commands, one after the other, on a thread of its own: the kernel holds a thread
// until the new process has become the command, which takes as long as the file system likes.
type starter struct {
	jobs chan *ward
	done chan birth
}

// birth is what became of a command.
type birth struct {
	pid      int
	err      error
	noCgroup bool // it could be started outside of its control group only
}

// newStarter starts the starter; ring is called after each command.
func newStarter(ring func()) starter {
	s := starter{jobs: make(chan *ward, 1), done: make(chan birth, 1)}
	go func() {
		runtime.LockOSThread() // the commands die with this thread (on Linux), so it never ends
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		for w := range s.jobs {
			if err != nil {
				s.done <- birth{err: err}
			} else {
				s.done <- start(w, int(null.Fd())) //nolint:gosec // descriptors are small
			}
			ring()
		}
	}()
	return s
}

// start starts a command. It returns when the process has become it.
func start(w *ward, null int) birth {
	pid, err := fork(w, null, w.cgroup)
	if err == nil || w.cgroup == nil {
		return birth{pid: pid, err: err}
	}
	// Was it the control group or the command? One without the other tells.
	pid, again := fork(w, null, nil)
	if again != nil {
		return birth{err: err}
	}
	return birth{pid: pid, noCgroup: true}
}

func fork(w *ward, null int, c *cgroup) (int, error) {
	files := []uintptr{uintptr(null), uintptr(null), uintptr(null)} //nolint:gosec // descriptors are small
	for i, fd := range w.files {
		files[i+1] = uintptr(fd) //nolint:gosec // descriptors are small
	}
	attr := processAttr(c)
	attr.Setpgid = true
	if u := w.command.User; u != nil {
		attr.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
	}
	pid, err := syscall.ForkExec(string(w.command.Path), texts(w.command.Args), &syscall.ProcAttr{
		Dir: string(w.command.Dir), Env: texts(w.command.Env), Files: files, Sys: attr,
	})
	if err != nil {
		return 0, w.command.explain(err)
	}
	return pid, nil
}

// explain says what could not be done: the kernel names neither the directory nor the program.
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
