package terminal

import (
	"os"

	"golang.org/x/sys/windows"
)

// drawable reports whether a terminal understands control sequences, which consoles do when asked to.
func drawable(f descriptor) bool {
	var mode uint32
	h := windows.Handle(f.Fd())
	return windows.GetConsoleMode(h, &mode) == nil &&
		windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}

// Resizes returns a channel that never receives: the size is only seen when it is read.
func Resizes() (resized <-chan os.Signal, stop func()) { return nil, func() {} }
