package exec_test

import (
	"fmt"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon/exec"
	"github.com/emitd/emitd/storage/memory"
)

// A command as a daemon: one node of the cluster runs it, and another one when that node is gone.
func Example() {
	exec.GuardianMain() // the first call in main: a copy of the program starts and ends the commands
	guardian := exec.NewGuardian(exec.GuardianConfig{})
	defer guardian.Close() // after Run has returned

	command := exec.Config{ID: "acme:reports", Command: []string{"/usr/local/bin/reports", "--every", "1h"}}
	if err := command.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Register(command.Spec(), exec.New(command, guardian)); err != nil {
		fmt.Println(err)
		return
	}
	// c.Run(ctx) runs it.
}
