package pgtest

import "syscall"

// attributes does nothing, because on Windows there are no privileges to drop in this way.
func attributes(syscall.Signal) *syscall.SysProcAttr { return nil }

// giveAway does nothing, because servers do not run as another user.
func giveAway(string) error { return nil }
