package pgtest

import (
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child and the goroutine that owns it.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended and err is set
	err  error
}

// launch starts a child on a thread of its own that lives as long as the child: the kernel tells
// the child of the end of the *thread* that started it.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
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

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // ended already: fine
