//go:build !unix && !windows

package terminal

import "os"

// drawable returns false, because nothing is known about the terminals of this system.
func drawable(descriptor) bool { return false }

// Resizes returns a channel that never receives.
func Resizes() (resized <-chan os.Signal, stop func()) { return nil, func() {} }
