//go:build !linux

package sqlite

// networkFS recognises nothing here.
func networkFS(string) string { return "" }
