//go:build !linux

package sqlite

// networkFS recognises nothing on this system.
func networkFS(string) string { return "" }
