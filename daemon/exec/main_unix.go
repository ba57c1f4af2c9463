//go:build linux || darwin

package exec

import (
	"errors"
	"os"
	osexec "os/exec"
	"sync/atomic"
	"syscall"
)

// The roles in which the binary starts itself; each is the first argument of its process.
const (
	roleGuardian = "emit-guardian"
	roleGate     = "emit-gate"
)

// hooked is set once GuardianMain was called. Without the call a guardian or gate would be one
// more copy of the program itself, so none is started then.
var hooked atomic.Bool

// GuardianMain must be the first call in main of every program that runs commands, and in
// TestMain of their tests. In the program itself it returns at once; in a process that was
// started as guardian or gate it does that work and does not return.
func GuardianMain() {
	hooked.Store(true)
	switch os.Args[0] {
	case roleGuardian:
		os.Exit(guardianMain())
	case roleGate:
		os.Exit(gateMain(os.Args[1:]))
	}
}

// The descriptors of a gate beyond the standard ones.
const (
	gateGo     = 3 // a byte on it opens the gate; its end closes it
	gateStatus = 4 // closed by the execve; before that, takes the text of an error
)

// gateMain waits for the word and becomes the command. Arguments are the directory (or empty) and
// the command.
func gateMain(args []string) (code int) {
	var word [1]byte
	for {
		n, err := syscall.Read(gateGo, word[:])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			return 0 // emitd is gone, or has thought better of it
		}
		break
	}
	syscall.CloseOnExec(gateGo)
	syscall.CloseOnExec(gateStatus)
	err := become(args[0], args[1:])
	_, _ = syscall.Write(gateStatus, []byte(err.Error()))
	return 127
}

// become replaces the process by the command; it returns only with an error.
func become(dir string, command []string) error {
	if dir != "" {
		if err := os.Chdir(dir); err != nil {
			return err
		}
	}
	path, err := osexec.LookPath(command[0])
	if err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, command, os.Environ())}
}
