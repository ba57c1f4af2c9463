package exec

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// self is what is executed for the guardian and the gates: the file this process was started
// from, also after it was replaced or removed, so that both ends speak the same protocol.
func self() (string, error) { return "/proc/self/exe", nil }

// readClock returns CLOCK_BOOTTIME.
func readClock() instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("exec: read CLOCK_BOOTTIME: " + err.Error()) // needs Linux 2.6.39
	}
	return instant(t.Nano())
}

// alarm waits for input until an instant, in a clock that goes on while the machine sleeps.
type alarm struct{ timer int }

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	return &alarm{timer: fd}, nil
}

// wait returns when fd is readable (or its other end is closed), at the instant, or for no
// reason. A negative fd is no input.
func (a *alarm) wait(fd int, until instant) error {
	var spec unix.ItimerSpec // zero disarms
	if until != never {
		spec.Value = unix.NsecToTimespec(int64(max(until, 1)))
	}
	if err := unix.TimerfdSettime(a.timer, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(a.timer), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
	if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("poll: %w", err)
	}
	return nil
}

// setName names the process in ps and top. A name without "emitd" keeps guardian and gates from
// dying together with emitd when somebody kills by name.
func setName(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0o600) }

// awaitExit waits until the child has exited, and leaves it unreaped.
func awaitExit(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
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

// lookup reads /proc/PID/stat; see proc(5).
func lookup(pid int) (process, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	return parseStat(string(text))
}

// parseStat parses a line of /proc/PID/stat. The second field is the command in parentheses and
// may contain anything, so fields count from the last parenthesis.
func parseStat(text string) (process, error) {
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 20 {
		return process{}, fmt.Errorf("stat has %d fields, want 20 or more", len(f))
	}
	pgid, err := strconv.Atoi(f[2])
	if err != nil {
		return process{}, fmt.Errorf("process group %q: %w", f[2], err)
	}
	// The first thread of a process may end before the others: then the state is that of a
	// zombie while the process runs.
	dead := (f[0] == "Z" || f[0] == "X") && (f[17] == "0" || f[17] == "1")
	return process{pgid: pgid, start: f[19], dead: dead}, nil
}

// groupRuns reports whether some process of the group may execute something.
func groupRuns(pgid int) bool {
	if errors.Is(unix.Kill(-pgid, 0), unix.ESRCH) {
		return false // not even a zombie
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return true // unknown
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return true
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := lookup(pid); err == nil && p.pgid == pgid && !p.dead {
			return true
		}
	}
	return false
}

// target is a group as the guardian knows it: by its first process.
type target struct {
	pgid  int
	start string
	pidfd int // of the first process; -1 where there is none
}

// aim returns the group whose first process has that number and start time.
func aim(pgid int, start string) (*target, error) {
	fd, err := unix.PidfdOpen(pgid, 0)
	if err != nil {
		fd = -1 // before Linux 5.3, or forbidden by a container
	}
	// Compared after it was opened: from here on the descriptor means this process.
	p, err := lookup(pgid)
	if err == nil && (p.start != start || p.pgid != pgid) {
		err = errOther
	}
	t := &target{pgid: pgid, start: start, pidfd: fd}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("process %d: %w", pgid, err)
	}
	return t, nil
}

var errOther = errors.New("is not the one that was meant")

func (t *target) close() {
	if t.pidfd >= 0 {
		_ = unix.Close(t.pidfd)
	}
}

// kill sends SIGKILL to the group. The kernel delivers it to all processes of the group and to
// those they are about to fork.
func (t *target) kill() {
	if t.pidfd >= 0 {
		err := unix.PidfdSendSignal(t.pidfd, unix.SIGKILL, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP)
		if err == nil || errors.Is(err, unix.ESRCH) {
			return
		}
	}
	if !t.reused() { // before Linux 6.9
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
