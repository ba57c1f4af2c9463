package pgtest

import "syscall"

// attributes: there are no privileges to drop in this way.
func attributes(syscall.Signal) *syscall.SysProcAttr { return nil }

// giveAway has nobody to give to.
func giveAway(string) error { return nil }
