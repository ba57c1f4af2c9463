//go:build unix

package terminal

import (
	"os"
	"os/signal"
	"syscall"
)

// drawable reports whether a terminal understands control sequences.
func drawable(descriptor) bool { return true }

// Resizes returns a channel that receives when the terminal may have another size. stop ends that.
func Resizes() (resized <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	return c, func() { signal.Stop(c) }
}
