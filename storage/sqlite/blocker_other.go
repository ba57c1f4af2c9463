//go:build !linux

package sqlite

// WriteLockHolder returns the process that holds the write lock at this moment, and whether it is stopped.
// On this system that is unknown, and it returns 0.
func (s *Store) WriteLockHolder() (pid int, stopped bool) { return 0, false }
