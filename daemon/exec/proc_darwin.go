package exec

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// self is the program to execute for the guardian.
func self() (string, error) { return os.Executable() }

// ownDescriptors is the directory of this process's open descriptors.
const ownDescriptors = "/dev/fd"

// readClock returns CLOCK_MONOTONIC, which on this system also runs while the machine sleeps.
func readClock() instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("exec: read CLOCK_MONOTONIC: " + err.Error())
	}
	return instant(t.Nano())
}

// alarm waits for input until an instant.
type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

// longest bounds one wait, because poll's own clock stops while the machine sleeps.
const longest = 250 * time.Millisecond

// wait returns when something happens at a descriptor, or at the instant. It may also return
// without a reason.
func (a *alarm) wait(until instant, fds []unix.PollFd) error {
	ms := -1
	if until != never {
		left := min(max(time.Duration(until-readClock()), 0), longest)
		ms = int((left + time.Millisecond - 1) / time.Millisecond)
	}
	_, err := unix.Poll(fds, ms)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("poll: %w", err)
	}
	return nil
}

func setName(string) {}

func nameThread(string) {}

// startingName is the name of a process that does not execute its command yet: that of its parent.
func startingName() string {
	self, _ := lookup(os.Getpid())
	return self.name
}

// adopts says whether processes whose parents have ended become children of the guardian. On this
// system they do not: a process that has left its group and whose parent has ended cannot be found.
const adopts = false

func adopt() {}

// processAttr returns the kernel's attributes of a new process: nothing special here.
func processAttr(*cgroup) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// There are no control groups on this system.
type (
	cgroups struct{}
	cgroup  struct{}
)

func newCgroups() *cgroups                  { return nil }
func sweepCgroups()                         {}
func (*cgroups) make(uint64) *cgroup        { return nil }
func (*cgroups) remove(*cgroup)             {}
func (*cgroups) close()                     {}
func (*cgroup) members() []process          { return nil }
func (*cgroup) kill()                       {}
func (*cgroup) populated() bool             { return false }
func (g *guard) hasStrays(*guardedRun) bool { return true }
func readEnviron(int) []string              { return nil } // nothing is adopted

// receive reads from the socket, and the descriptors that were sent with the data.
func receive(conn int, buf []byte) (n int, files []int, err error) {
	oob := make([]byte, unix.CmsgSpace(16*4))
	syscall.ForkLock.RLock() // no command may be started before they are close-on-exec
	defer syscall.ForkLock.RUnlock()
	n, oobn, _, _, err := unix.Recvmsg(conn, buf, oob, 0)
	if err != nil {
		return 0, nil, err
	}
	files = rights(oob[:oobn])
	for _, fd := range files {
		unix.CloseOnExec(fd)
	}
	return n, files, nil
}

// process is what the kernel reports about a process.
type process struct {
	pid, ppid, pgid, sid int

	name  string
	start string
	dead  bool // a zombie: executes nothing any more
}

// id identifies the process even after its number was given to another one.
func (p process) id() string { return fmt.Sprint(p.pid, " ", p.start) }

// signal sends a signal to this process, if it still exists.
func (p process) signal(s unix.Signal) {
	if now, err := lookup(p.pid); err == nil && now.start == p.start {
		_ = unix.Kill(p.pid, s)
	}
}

// processes lists all processes of the machine that can be seen.
func processes() ([]process, error) {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, err
	}
	out := make([]process, len(all))
	for i := range all {
		out[i] = describe(&all[i])
	}
	return out, nil
}

const zombie = 5 // SZOMB

func describe(k *unix.KinfoProc) process {
	t := k.Proc.P_starttime
	return process{
		pid: int(k.Proc.P_pid), ppid: int(k.Eproc.Ppid), pgid: int(k.Eproc.Pgid), name: unix.ByteSliceToString(k.Proc.P_comm[:]),
		start: fmt.Sprintf("%d.%06d", t.Sec, t.Usec), dead: k.Proc.P_stat == zombie,
	}
}

func lookup(pid int) (process, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return process{}, err
	}
	return describe(k), nil
}

// groupRuns reports whether a process of the group may execute something.
func groupRuns(pgid int) bool {
	if errors.Is(unix.Kill(-pgid, 0), unix.ESRCH) {
		return false
	}
	members, err := unix.SysctlKinfoProcSlice("kern.proc.pgrp", pgid)
	if err != nil {
		return true // unknown
	}
	for i := range members {
		if !describe(&members[i]).dead {
			return true
		}
	}
	return false
}

// target is a process group, identified by its first process. It may be signalled after that
// process has ended.
type target struct {
	pgid  int
	start string
}

var errOther = errors.New("is another process than expected")

// openTarget returns the group whose first process has that number and start time.
func openTarget(pgid int, start string) (*target, error) {
	p, err := lookup(pgid)
	if err == nil && (p.start != start || p.pgid != pgid) {
		err = errOther
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pgid, err)
	}
	return &target{pgid: pgid, start: start}, nil
}

func (t *target) close() {}

func (t *target) kill() { t.signal(unix.SIGKILL) }

// signal sends a signal to the group.
func (t *target) signal(s unix.Signal) {
	if t.reused() {
		return
	}
	_ = unix.Kill(-t.pgid, s)
	if s == unix.SIGTERM {
		_ = unix.Kill(-t.pgid, unix.SIGCONT) // a stopped process would not handle the signal
	}
}

// reused reports whether the number now belongs to another process. The kernel does not reuse it
// while the group has a member, so then the group is gone.
func (t *target) reused() bool {
	p, err := lookup(t.pgid)
	return err == nil && p.start != t.start
}

// runs reports whether a process of the group may execute something.
func (t *target) runs() bool { return !t.reused() && groupRuns(t.pgid) }

// noTarget returns the group of a process of which only the number is known.
func noTarget(pgid int) *target { return &target{pgid: pgid} }
