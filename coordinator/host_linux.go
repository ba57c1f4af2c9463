package coordinator

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/node"
)

// thisHost identifies this process to peers on the same machine. BootID also names the PID
// namespace: a number means a process only within one, and two containers of one host share the
// kernel's boot id. What cannot be read is left empty, and then nobody bears witness.
func thisHost() node.Host {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return node.Host{}
	}
	namespace, err := os.Readlink("/proc/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return node.Host{}
	}
	pid := os.Getpid()
	p, err := readProcess(pid)
	if err != nil {
		return node.Host{}
	}
	return node.Host{BootID: strings.TrimSpace(string(boot)) + " " + namespace, PID: pid, Start: p.start}
}

// hostLevel reads what proves the end of a process; tests put their own in its place.
type hostLevel struct {
	read   func(pid int) (process, error)
	exists func(pid int) bool
	locked func(path string) (bool, error)
}

func thisHostLevel() hostLevel { return hostLevel{readProcess, exists, locked} }

// process is what /proc says of one.
type process struct {
	start  string // clock ticks since boot
	zombie bool   // ended, not yet waited for: no thread of it runs any more
}

// readProcess reads /proc/PID/stat: "pid (comm) state …", the start time being field 22. The
// name in parentheses may itself contain parentheses and spaces, so fields count from the last.
func readProcess(pid int) (process, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	i := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[i+1:]))
	if i < 0 || len(fields) < 20 {
		return process{}, errors.New("unreadable process status")
	}
	p := process{start: fields[19]}
	if fields[0] == "Z" || fields[0] == "X" {
		threads, err := strconv.Atoi(fields[17])
		p.zombie = err == nil && threads <= 1 // its first thread may end before the others
	}
	return p, nil
}

// exists reports whether a process has the number. Only "no such process" is a no: a process of
// another user is refused, and counts.
func exists(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// locked reports whether somebody keeps the file locked.
func locked(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return true, err
	}
	defer f.Close()
	// Shared, so that two witnesses do not take each other for the process.
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err != nil:
		return true, err
	}
	return false, nil // closing unlocks
}

// ended reports whether there is proof that the process has ended and nobody acts for it. What
// cannot be seen is no proof.
func (h hostLevel) ended(p node.Host) bool {
	if p.PID <= 0 || p.Start == "" {
		return false
	}
	if h.exists(p.PID) {
		now, err := h.read(p.PID)
		if err != nil || (now.start == p.Start && !now.zombie) {
			return false
		}
	}
	if p.Lock == "" {
		return true
	}
	held, err := h.locked(p.Lock)
	return err == nil && !held
}
