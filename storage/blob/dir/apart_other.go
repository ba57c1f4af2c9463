//go:build !linux

package dir

import "os"

// mkdirApart makes a directory.
func mkdirApart(path string) error { return os.Mkdir(path, 0o700) }
