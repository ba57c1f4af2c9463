package pgtest

import "syscall"

// attributes drops privileges and asks the kernel to send the signal death when the thread that
// starts the child ends. The child leads a process group of its own, so that Ctrl-C in a terminal
// reaches the test and not directly the server.
func attributes(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: credential(), Pdeathsig: death, Setpgid: true}
}
