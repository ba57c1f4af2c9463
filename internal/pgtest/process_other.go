//go:build unix && !linux

package pgtest

import "syscall"

// attributes drops privileges. Only on Linux can the child end with the test binary.
func attributes(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: credential(), Setpgid: true}
}
