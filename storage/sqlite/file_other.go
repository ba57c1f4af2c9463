//go:build !unix && !windows

package sqlite

import "os"

// place identifies where a file is; on this system it cannot.
func place(string, os.FileInfo) string { return "" }
