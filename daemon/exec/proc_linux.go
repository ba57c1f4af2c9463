package exec

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// self is the program to execute for the guardian. It is the file that this process was started
// from, even if that file was replaced or removed since. Both ends therefore speak the same
// protocol.
func self() (string, error) { return "/proc/self/exe", nil }

// ownDescriptors is the directory of this process's open descriptors.
const ownDescriptors = "/proc/self/fd"

// readClock returns CLOCK_BOOTTIME.
func readClock() instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("exec: read CLOCK_BOOTTIME: " + err.Error()) // needs Linux 2.6.39
	}
	return instant(t.Nano())
}

// alarm waits for input until an instant, on a clock that also runs while the machine sleeps.
type alarm struct{ timer int }

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	return &alarm{timer: fd}, nil
}

// wait returns when something happens at a descriptor, or at the instant. It may also return
// without a reason.
func (a *alarm) wait(until instant, fds []unix.PollFd) error {
	var spec unix.ItimerSpec // zero disarms
	if until != never {
		spec.Value = unix.NsecToTimespec(int64(max(until, 1)))
	}
	if err := unix.TimerfdSettime(a.timer, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	fds = append(fds, unix.PollFd{Fd: int32(a.timer), Events: unix.POLLIN}) // descriptors are small
	if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("poll: %w", err)
	}
	return nil
}

// setName names the process in ps and top. The name does not contain "emitd", so that a kill by
// name that ends emitd does not end the guardian too.
func setName(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0o600) }

// nameThread names the calling thread. The processes that it forks have this name until they
// execute their command: see census.killStarting.
func nameThread(name string) { _ = os.WriteFile("/proc/thread-self/comm", []byte(name), 0o600) }

// startingName is the name of a process that does not execute its command yet.
func startingName() string { return roleGuardian }

// adopts says whether processes whose parents have ended become children of the guardian.
const adopts = true

// adopt makes this process adopt them.
func adopt() {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		logf("emit-guardian: processes that leave their session cannot be found: %v\n", err) // not supported before Linux 3.4
	}
}

// processAttr returns the kernel's attributes of a new process: it dies with the thread that
// started it, and starts in the control group.
func processAttr(c *cgroup) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, c.fd
	}
	return attr
}

// receive reads from the socket, and the descriptors that were sent with the data.
func receive(conn int, buf []byte) (n int, files []int, err error) {
	oob := make([]byte, unix.CmsgSpace(16*4))
	n, oobn, _, _, err := unix.Recvmsg(conn, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, nil, err
	}
	return n, rights(oob[:oobn]), nil
}

// process is what the kernel reports about a process.
type process struct {
	pid, ppid, pgid, sid int

	name  string
	start string
	dead  bool // a zombie: executes nothing any more
}

// id identifies the process even after its number was given to another one.
func (p process) id() string { return strconv.Itoa(p.pid) + " " + p.start }

// signal sends a signal to this process, if it still exists.
func (p process) signal(s unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == nil {
		defer unix.Close(fd)
	}
	if now, lost := lookup(p.pid); lost != nil || now.start != p.start {
		return
	}
	if err != nil || errors.Is(unix.PidfdSendSignal(fd, s, nil, 0), unix.ENOSYS) { // before Linux 5.3
		_ = unix.Kill(p.pid, s)
	}
}

// lookup reads /proc/PID/stat; see proc(5). It makes little garbage: the guardian often reads all
// processes of the machine, and rarely collects garbage.
func lookup(pid int) (process, error) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return process{}, err
	}
	defer unix.Close(fd)
	var text [1024]byte // 52 numbers, most of them short
	n, err := unix.Read(fd, text[:])
	if err != nil {
		return process{}, err
	}
	p, err := parseStat(text[:n])
	p.pid = pid
	return p, err
}

// parseStat parses a line of /proc/PID/stat. The second field is the command in parentheses and may
// contain anything, so fields are counted from the last parenthesis.
func parseStat(text []byte) (process, error) {
	end := bytes.LastIndexByte(text, ')')
	var fields [20][]byte
	n := 0
	for f := range bytes.FieldsSeq(text[end+1:]) {
		if fields[n] = f; n == len(fields)-1 {
			break
		}
		n++
	}
	if fields[19] == nil {
		return process{}, fmt.Errorf("stat has %d fields, want 20 or more", n)
	}
	var p process
	for i, to := range [...]*int{&p.ppid, &p.pgid, &p.sid} {
		n, err := strconv.Atoi(string(fields[i+1]))
		if err != nil {
			return process{}, fmt.Errorf("stat has a field %q: %w", fields[i+1], err)
		}
		*to = n
	}
	if begin := bytes.IndexByte(text, '('); begin >= 0 && begin < end {
		p.name = string(text[begin+1 : end])
	}
	// The first thread of a process may end before the others. Its state is then that of a zombie
	// although the process runs.
	state, threads := string(fields[0]), string(fields[17])
	p.dead = (state == "Z" || state == "X") && (threads == "0" || threads == "1")
	p.start = string(fields[19])
	return p, nil
}

// processes lists all processes of the machine that can be seen. An error says that there may be
// more.
func processes() ([]process, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	out := make([]process, 0, len(names))
	for _, name := range names {
		pid, none := strconv.Atoi(name)
		if none != nil {
			continue
		}
		switch p, lost := lookup(pid); {
		case lost == nil:
			out = append(out, p)
		case isResourceError(lost): // it still exists and is not hidden
			err = lost
		}
	}
	return out, err
}

// hasStrays reports whether the run may have processes outside its group. It is quick in the usual
// case: once the first process has ended, such processes have been adopted, and the kernel lists
// the guardian's children.
func (g *guard) hasStrays(w *guardedRun) bool {
	if w.pid != 0 && !w.exited {
		return true
	}
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(lists) == 0 {
		return true // the kernel has no such lists
	}
	leaders := map[string]bool{}
	for _, l := range g.runs {
		leaders[strconv.Itoa(l.pid)] = true
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			return true
		}
		for _, pid := range strings.Fields(string(text)) {
			if !leaders[pid] {
				return true
			}
		}
	}
	return false
}

// readEnviron returns the environment that a process was started with.
func readEnviron(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\x00")
}

// groupRuns reports whether a process of the group may execute something.
func groupRuns(pgid int) bool {
	if errors.Is(unix.Kill(-pgid, 0), unix.ESRCH) {
		return false // not even a zombie
	}
	all, err := processes()
	for _, p := range all {
		if p.pgid == pgid && !p.dead {
			return true
		}
	}
	return err != nil // unknown
}

// target is a process group, identified by its first process. It may be signalled after that
// process has ended.
type target struct {
	pgid  int
	start string
	pidfd int // of the first process; -1 where there is none
}

// openTarget returns the group whose first process has that number and start time.
func openTarget(pgid int, start string) (*target, error) {
	fd, err := unix.PidfdOpen(pgid, 0)
	if err != nil {
		fd = -1 // before Linux 5.3, or forbidden by a container
	}
	// The comparison comes after the open: from here on the descriptor refers to this process.
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

var errOther = errors.New("is another process than expected")

func (t *target) close() {
	if t.pidfd >= 0 {
		_ = unix.Close(t.pidfd)
	}
}

func (t *target) kill() { t.signal(unix.SIGKILL) }

// signal sends a signal to the group. The kernel delivers it to all processes of the group,
// including those that are being forked.
func (t *target) signal(s unix.Signal) {
	t.send(s)
	if s == unix.SIGTERM {
		t.send(unix.SIGCONT) // a stopped process would not handle the signal
	}
}

func (t *target) send(s unix.Signal) {
	if t.pidfd >= 0 {
		err := unix.PidfdSendSignal(t.pidfd, s, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP)
		if err == nil || errors.Is(err, unix.ESRCH) {
			return
		}
	}
	if !t.reused() { // before Linux 6.9
		_ = unix.Kill(-t.pgid, s)
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
func noTarget(pgid int) *target { return &target{pgid: pgid, pidfd: -1} }
