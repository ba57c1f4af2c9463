// Command emitd makes processes on one store a cluster: they elect a leader, the leader assigns
// daemons to nodes, and every node runs what is assigned to it.
//
// See package cli for what scripts may rely on, and docs/reference for all commands, settings and
// errors.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/emitd/emitd/cmd/emitd/internal/cli"
	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/daemon/exec"
)

func main() {
	exec.GuardianMain() // in the processes that guard commands it does not return
	os.Exit(run())
}

// run runs the program. The first interrupt ends it cleanly, a second one at once.
func run() int {
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
	return cli.Main(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()})
}
