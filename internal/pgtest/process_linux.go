package pgtest

import "syscall"

// attributes drops privileges and asks the kernel for an immediate shutdown of the server when
// the thread that started it ends. The server leads a process group of its own, so that Ctrl-C
// in a terminal reaches the test and not the server under its feet.
func attributes(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: credential(), Pdeathsig: death, Setpgid: true}
}
