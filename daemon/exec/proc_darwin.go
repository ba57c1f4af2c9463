package exec

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// self is what is executed for the guardian and the gates.
func self() (string, error) { return os.Executable() }

// readClock returns CLOCK_MONOTONIC, which on this system goes on while the machine sleeps.
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

// longest bounds one wait: poll's own clock stands still while the machine sleeps.
const longest = 250 * time.Millisecond

// wait returns when fd is readable (or its other end is closed), at the instant, or for no
// reason. A negative fd is no input.
func (a *alarm) wait(fd int, until instant) error {
	ms := -1
	if until != never {
		left := min(max(time.Duration(until-readClock()), 0), longest)
		ms = int((left + time.Millisecond - 1) / time.Millisecond)
	}
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, ms)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("poll: %w", err)
	}
	return nil
}

func setName(string) {}

// awaitExit waits until the child has exited, and leaves it unreaped.
func awaitExit(pid int) error {
	kq, err := unix.Kqueue()
	if err != nil {
		return err
	}
	defer unix.Close(kq)
	var change unix.Kevent_t
	unix.SetKevent(&change, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change.Fflags = unix.NOTE_EXIT
	for {
		n, err := unix.Kevent(kq, []unix.Kevent_t{change}, make([]unix.Kevent_t, 1), nil)
		switch {
		case errors.Is(err, unix.ESRCH), n > 0:
			return nil // it has exited
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// process is what the kernel says of one.
type process struct {
	pgid  int
	start string
	dead  bool // a zombie: executes nothing any more
}

const zombie = 5 // SZOMB

func describe(k *unix.KinfoProc) process {
	t := k.Proc.P_starttime
	return process{
		pgid: int(k.Eproc.Pgid), start: fmt.Sprintf("%d.%06d", t.Sec, t.Usec), dead: k.Proc.P_stat == zombie,
	}
}

func lookup(pid int) (process, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return process{}, err
	}
	return describe(k), nil
}

// groupRuns reports whether some process of the group may execute something.
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

// target is a group as the guardian knows it: by its first process.
type target struct {
	pgid  int
	start string
}

var errOther = errors.New("is not the one that was meant")

// aim returns the group whose first process has that number and start time.
func aim(pgid int, start string) (*target, error) {
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

// kill sends SIGKILL to the group.
func (t *target) kill() {
	if !t.reused() {
		_ = unix.Kill(-t.pgid, unix.SIGKILL)
	}
}

// reused reports whether the number belongs to another process by now. The kernel does not give
// it away while the group has a member, so then the group is gone.
func (t *target) reused() bool {
	p, err := lookup(t.pgid)
	return err == nil && p.start != t.start
}

// runs reports whether some process of the group may execute something.
func (t *target) runs() bool { return !t.reused() && groupRuns(t.pgid) }
