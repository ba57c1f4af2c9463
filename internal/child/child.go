// Package child starts child processes of tests that must not outlive them.
//
// On Linux the kernel tells a child with a death signal (SysProcAttr.Pdeathsig) of the end of the
// thread that started it, not of the process. Threads of a Go program end: with each goroutine that was
// locked to one. So every such child is started on a thread of its own, that lives as long as the
// child; started on any thread, it would be killed in its middle now and then.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
)

// Process is a child and the goroutine that owns it.
type Process struct {
	Cmd *exec.Cmd
	// Done is closed when the child has ended.
	Done <-chan struct{}
	err  error
}

// Start starts a child on a thread of its own and waits for it there: nobody else may.
func Start(cmd *exec.Cmd) (*Process, error) {
	done := make(chan struct{})
	p := &Process{Cmd: cmd, Done: done}
	started := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Err is how the child ended, once Done is closed.
func (p *Process) Err() error { return p.err }

// PID returns its number.
func (p *Process) PID() int { return p.Cmd.Process.Pid }

// Signal sends it a signal, unless it has ended.
func (p *Process) Signal(s syscall.Signal) { _ = p.Cmd.Process.Signal(s) }
