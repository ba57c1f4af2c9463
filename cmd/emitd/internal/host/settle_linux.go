package host

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// startUp is how long a process is thought to be starting, on a machine with time for it and on one
// that has little.
var startUp = []time.Duration{5 * time.Second, time.Minute}

// settle gives back what only the start needed.
func settle(ctx context.Context) {
	for _, d := range startUp {
		select {
		case <-ctx.Done():
			return
		case <-time.After(d):
			giveBack()
		}
	}
}

// giveBack gives back heap that is free, and the pages of the program itself, of which the packages'
// initialisation touches most and a node at work a few. They are clean pages of a file; what is needed
// is mapped again when it is touched.
func giveBack() {
	debug.FreeOSMemory()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to uintptr
		var mode, offset, device, inode, path string
		n, _ := fmt.Sscanf(strings.Replace(lines.Text(), "-", " ", 1), "%x %x %s %s %s %s %s", &from, &to, &mode, &offset, &device, &inode, &path)
		if n == 7 && path == program && mode[1] == '-' { // never written to
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}
