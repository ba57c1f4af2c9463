package testproc

import (
	"bufio"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// A child outlives the thread of the goroutine that started it.
func TestThreadsEndWithoutTheChild(t *testing.T) {
	t.Parallel()
	for range 2 { // the first thread of a program never ends
		outlive(t)
	}
}

func outlive(t *testing.T) {
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var p *Process
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and with this goroutine it ends
		var err error
		p, err = Start(cmd)
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for i := range 1000 { // meanwhile the thread is gone
		if _, err := fmt.Fprintln(in, i); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
			t.Fatalf("the child has ended: %q, %v", lines.Text(), lines.Err())
		}
	}
	p.Signal(syscall.SIGKILL)
	<-p.Done
	if p.Err() == nil {
		t.Error("it was killed, and nobody says so")
	}
}
