// Package testproc has what tests need of processes: children that must not outlive the test
// ([Start]), and the processor time that this process has used ([ProcessTime]).
//
// On Linux, the kernel sends the death signal of a child (SysProcAttr.Pdeathsig) when the thread
// that started it ends, not when the process does. A thread of a Go program ends with the goroutine
// that was locked to it. Therefore every such child is started on a thread of its own that lives as
// long as the child. Started on any other thread, it would sometimes be killed while it is still
// needed.
package testproc

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

// Start starts a child on a thread of its own and waits for it there. No other goroutine may wait
// for it.
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

// Err returns how the child ended, once Done is closed.
func (p *Process) Err() error { return p.err }

// PID returns the child's process ID.
func (p *Process) PID() int { return p.Cmd.Process.Pid }

// Signal sends the child a signal, unless it has ended.
func (p *Process) Signal(s syscall.Signal) { _ = p.Cmd.Process.Signal(s) }
