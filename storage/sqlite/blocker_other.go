//go:build !linux

package sqlite

// Blocker finds the process that holds the write lock at this moment, and whether it is stopped;
// it cannot tell on this system and returns 0.
func (s *Store) Blocker() (pid int, stopped bool) { return 0, false }
