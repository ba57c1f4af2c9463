//go:build !linux

package host

import "context"

// releaseStartMemory does nothing, because only Linux is known to keep such memory.
func releaseStartMemory(context.Context) {}
