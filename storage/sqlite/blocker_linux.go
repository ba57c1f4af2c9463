package sqlite

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// writeLockByte is the byte of the -shm file that SQLite locks for writing.
const writeLockByte = 120

// WriteLockHolder returns the process that holds the write lock at this moment, and whether it is stopped.
// It returns 0 if no process holds the lock or the process is unknown. It reads the kernel's list
// of locks. Testing the lock itself would require opening a file whose closing drops locks.
func (s *Store) WriteLockHolder() (pid int, stopped bool) {
	info, err := os.Stat(s.cfg.Path + "-shm")
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for range 5 { // the list may miss an entry while others change
		if pid = lockOwner(readLocks(), file); pid > 0 {
			return pid, isStopped(pid)
		}
	}
	return 0, false
}

// readLocks reads the kernel's list of locks with as few reads as possible, because the list
// changes between two reads.
func readLocks() string {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	n := 0
	for n < len(buf) {
		m, err := f.Read(buf[n:])
		if n += m; err != nil {
			break
		}
	}
	return string(buf[:n])
}

// lockOwner finds in the kernel's list the process that holds the write lock of a file. A line
// looks like this:
//
//	1: POSIX  ADVISORY  WRITE 4711 08:01:131074 120 120
func lockOwner(locks, file string) int {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) != 8 || f[3] != "WRITE" || f[5] != file {
			continue // this also skips waiting processes, which have an arrow in front
		}
		from, err1 := strconv.Atoi(f[6])
		to, err2 := strconv.Atoi(f[7])
		pid, err3 := strconv.Atoi(f[4])
		if err1 == nil && err2 == nil && err3 == nil && from <= writeLockByte && writeLockByte <= to && pid > 0 {
			return pid
		}
	}
	return 0
}

// isStopped reports whether a process is stopped. In its state, T means stopped, and t means held
// by a debugger.
func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	return ok && rest != "" && (rest[0] == 'T' || rest[0] == 't')
}
