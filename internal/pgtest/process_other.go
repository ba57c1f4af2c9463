//go:build unix && !linux

package pgtest

import "syscall"

// attributes drops privileges. Only Linux can end the child with the test binary.
func attributes(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: credential(), Setpgid: true}
}
