//go:build !unix && !windows

package filelock

import "os"

// lock does nothing: this system has no file locks.
func lock(*os.File) error { return nil }
