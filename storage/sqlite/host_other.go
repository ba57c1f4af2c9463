//go:build !linux && !darwin

package sqlite

import "time"

// thisHost has only the wall clock. The store makes it non-decreasing, and does not notice a
// reboot.
func thisHost() (*host, error) { return &host{wall: time.Now}, nil }
