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

// thisHost identifies this process to other processes on the same machine. BootID includes the PID
// namespace, because a PID identifies a process only within its namespace, and two containers on
// one host have the same kernel boot ID. If anything cannot be read the result is empty, and no
// exit evidence is possible.
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

// processProbe reads the exit evidence; tests replace it.
type processProbe struct {
	read   func(pid int) (process, error)
	exists func(pid int) bool
	locked func(path string) (bool, error)
}

func newProcessProbe() processProbe { return processProbe{readProcess, exists, locked} }

// process is what /proc says about a process.
type process struct {
	start  string // clock ticks since boot
	zombie bool   // ended, but not yet waited for: none of its threads run
}

// readProcess reads /proc/PID/stat: "pid (comm) state …", with the start time as field 22. The name
// in parentheses may contain parentheses and spaces itself, so fields count from the last one.
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
		p.zombie = err == nil && threads <= 1 // the first thread may end before the others
	}
	return p, nil
}

// exists reports whether a process with the PID exists. Only "no such process" means that it does
// not: for a process of another user the call is refused, and that process exists.
func exists(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// locked reports whether another process keeps the file locked.
func locked(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return true, err
	}
	defer f.Close()
	// A shared lock, so that two nodes that check at once do not take each other for the process.
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err != nil:
		return true, err
	}
	return false, nil // closing unlocks
}

// ended reports whether the process has provably ended and nothing acts for it any more. If
// something cannot be read, there is no proof.
func (h processProbe) ended(p node.Host) bool {
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
