package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/fault"
)

// Run runs the program on the process's own arguments and streams and returns its exit code. The
// first interrupt ends it cleanly; one that comes a second or more later ends it at once.
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

// oneStop is how long after the first signal others are taken for the same one. Who stops a process
// often tells its group as well, so that it hears of it twice: timeout(1), shells and service managers.
const oneStop = time.Second

// forcing calls stop at the first signal and returns the one that asks for more.
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
