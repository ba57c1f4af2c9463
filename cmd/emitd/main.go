// Command emitd turns the processes that use one store into a cluster: they elect a leader, the leader
// assigns daemons to nodes, and every node runs what is assigned to it.
//
// Package cli documents what scripts may rely on. docs/reference lists all commands, settings and errors.
package main

import (
	"os"
	_ "time/tzdata" // schedules have time zones, and a container may have no database of them

	"github.com/emitd/emitd/cmd/emitd/internal/cli"
	"github.com/emitd/emitd/daemon/exec"
)

func main() {
	exec.GuardianMain() // does not return in a process that guards commands
	os.Exit(cli.Run())
}
