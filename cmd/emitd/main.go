// Command emitd makes processes on one store a cluster: they elect a leader, the leader assigns
// daemons to nodes, and every node runs what is assigned to it.
//
// See package cli for what scripts may rely on, and docs/reference for all commands, settings and
// errors.
package main

import (
	"os"

	"github.com/emitd/emitd/cmd/emitd/internal/cli"
	"github.com/emitd/emitd/daemon/exec"
)

func main() {
	exec.GuardianMain() // in the processes that guard commands it does not return
	os.Exit(cli.Run())
}
