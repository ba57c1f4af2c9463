package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/emitd/emitd/internal/admin/fault"
)

// Run runs the program with the process's own arguments and streams and returns its exit code. The first
// interrupt ends it cleanly. Another one a second or more later ends it at once.
func Run() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := forcing(signals, cancel)
		fmt.Fprintf(os.Stderr, "%v again: ended without draining\n", s)
		os.Exit(fault.ExitFailed)
	}()
	return Main(ctx, os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()})
}

// oneStop is the time after the first signal in which others count as the same one. A program that stops
// a process often signals its process group as well, so the process gets the signal twice: timeout(1),
// shells and service managers do that.
const oneStop = time.Second

// forcing calls stop at the first signal, and returns the signal that asks to end at once.
func forcing(signals <-chan os.Signal, stop func()) os.Signal {
	<-signals
	first := time.Now()
	stop()
	for {
		if s := <-signals; time.Since(first) >= oneStop {
			return s
		}
	}
}
