package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/emitd/emitd/cmd/emitd/internal/fault"
)

// Run runs the program on the process's own arguments and streams and returns its exit code. The
// first interrupt ends it cleanly, a second one at once.
func Run() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		s := <-signals
		fmt.Fprintf(os.Stderr, "%v again: ended without draining\n", s)
		os.Exit(fault.ExitFailed)
	}()
	return Main(ctx, os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()})
}
