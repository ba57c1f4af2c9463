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

// startUp is how long the start of a process takes: on a machine with spare processor time, and then on a
// busy one.
var startUp = []time.Duration{5 * time.Second, time.Minute}

// releaseStartMemory returns memory that only the start needed to the system.
func releaseStartMemory(ctx context.Context) {
	for _, d := range startUp {
		select {
		case <-ctx.Done():
			return
		case <-time.After(d):
			giveBack()
		}
	}
}

// giveBack returns free heap, and the pages of the program itself. The packages' initialisation touches
// most of those pages, and a working node only a few. They are clean pages of a file, so the system maps
// them again when they are needed.
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
