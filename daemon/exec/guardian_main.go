//go:build linux || darwin

package exec

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guard is the guardian's whole state. One goroutine, no locks: it waits for input, for a process
// that has ended, or for the next deadline, takes all input there is, and only then looks at the
// deadlines. (It may have been stopped itself: what emitd has said meanwhile counts before what
// its own timer says.) Commands are started by another goroutine, the starter, so that a command
// on a file system that does not answer delays no deadline.
type guard struct {
	conn    int // the socket, both directions
	reaper  int // ends when the reaper does; 0 = there is none
	alarm   *alarm
	wake    [2]int // a pipe: a byte says that a process has ended or a command was started
	starter starter
	cgroups *cgroups // nil = there are none to be had

	wards map[uint64]*ward        // by run
	queue []*ward                 // wait for the starter
	busy  *ward                   // the starter has it
	early map[int]unix.WaitStatus // of processes that may be of the command being started
	marks map[string][]string     // of adopted processes

	partial []byte            // of a line
	files   []int             // received, not yet claimed by their request
	out     []byte            // answers not yet written
	deaf    bool              // emitd does not read, or is gone
	garbage [1]metrics.Sample // bytes allocated
	clean   uint64            // of them, when garbage was collected

	// orphaned is set once emitd has gone.
	orphaned bool
	killed   int
}

// ward is a run that is watched.
type ward struct {
	run      uint64
	command  *program
	marks    []string // variables by which a process is known as one of this run
	files    []int    // its output
	deadline instant
	cgroup   *cgroup     // nil = none
	killed   bool        // nothing of it may run: its deadline has passed, or it was cancelled
	pending  unix.Signal // to be sent; 0 = none

	pid    int     // of the first process; 0 = not started yet
	target *target // the group of that process
	exited bool
	status unix.WaitStatus
	empty  bool         // no process of it was found once
	told   bool         // that it has exited
	strays map[int]bool // processes that had left the group, as far as they were seen
	check  instant      // when to look whether it is gone; never before the first process has ended
	pause  time.Duration
}

// guardianMain is the guardian process: it converses on the socket that is its standard input.
func guardianMain(useCgroups bool) (code int) {
	setName(roleGuardian)
	catchSignals()
	closeOnExec()
	_ = os.Chdir("/") // hold no mount
	// A collection stops all goroutines, and one that starts a command stops only when that is
	// done. So garbage is collected by hand, while no command is being started.
	debug.SetGCPercent(-1)
	g, err := newGuard(0)
	if err != nil {
		tell("emit-guardian: %v\n", err)
		return 1
	}
	if adopts {
		adopt()
		g.reaper = reaperAlive
	}
	if useCgroups {
		g.cgroups = newCgroups()
	}
	g.starter = newStarter(g.ring)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go func() {
		for range children {
			g.ring()
		}
	}()
	g.run()
	killRest() // what was adopted and belonged to no run that is known
	if g.cgroups != nil {
		g.cgroups.close()
	}
	if g.killed > 0 {
		tell("emit-guardian: emitd has ended; process groups of its daemons killed: %d\n", g.killed)
	}
	return 0
}

// closeOnExec keeps the descriptors that this process was given from the commands: the lock file, which a
// command could unlock, and whatever emitd itself was started with.
func closeOnExec() {
	all, err := os.ReadDir(ownDescriptors)
	if err != nil {
		tell("emit-guardian: commands inherit its descriptors: %v\n", err)
	}
	for _, e := range all {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

func newGuard(conn int) (*guard, error) {
	alarm, err := newAlarm()
	if err != nil {
		return nil, err
	}
	g := &guard{conn: conn, alarm: alarm, wards: map[uint64]*ward{}, early: map[int]unix.WaitStatus{}}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// Descriptors of the pipe that no finalizer closes.
	defer closeAll(r, w)
	for i, f := range []*os.File{r, w} {
		if g.wake[i], err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("make pipe: %w", err)
		}
	}
	for _, fd := range []int{conn, g.wake[0], g.wake[1]} { // the guardian never waits but for its alarm
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("set nonblocking: %w", err)
		}
	}
	return g, nil
}

// ring wakes the guardian up. A full pipe will do that as well.
func (g *guard) ring() { _, _ = unix.Write(g.wake[1], []byte{1}) }

// run returns when emitd is gone and nothing of its runs is left.
func (g *guard) run() {
	for !g.orphaned || len(g.wards) > 0 {
		if err := g.wait(); err != nil {
			g.abandon() // without a clock nothing may go on
		}
		g.read()
		g.started()
		g.reap()
		g.expire(readClock())
		g.launch()
		g.flush()
		g.tidy()
	}
}

func (g *guard) wait() error {
	fds := []unix.PollFd{{Fd: int32(g.wake[0]), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
	if !g.orphaned {
		events := int16(unix.POLLIN)
		if len(g.out) > 0 {
			events |= unix.POLLOUT
		}
		fds = append(fds, unix.PollFd{Fd: int32(g.conn), Events: events}) //nolint:gosec // descriptors are small
	}
	if g.reaper != 0 && !g.orphaned {
		fds = append(fds, unix.PollFd{Fd: int32(g.reaper)}) //nolint:gosec // descriptors are small
	}
	err := g.alarm.wait(g.next(), fds)
	if g.reaper != 0 && !g.orphaned && fds[len(fds)-1].Revents != 0 {
		g.abandon() // with this process killed as well, nobody would be left to end the commands
	}
	var buf [512]byte
	for {
		if n, err := unix.Read(g.wake[0], buf[:]); n < len(buf) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return err
}

// next returns when there is something to do although nothing happens.
func (g *guard) next() instant {
	next := never
	for _, w := range g.wards {
		if !w.killed {
			next = min(next, w.deadline)
		}
		next = min(next, w.check)
	}
	return next
}

// read takes all input there is.
func (g *guard) read() {
	var buf [64 << 10]byte
	for !g.orphaned {
		n, files, err := receive(g.conn, buf[:])
		g.files = append(g.files, files...)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil || n == 0:
			g.abandon()
			return
		}
		g.take(buf[:n])
	}
}

// take handles the lines in input, together with what is left of earlier input.
func (g *guard) take(input []byte) {
	g.partial = append(g.partial, input...)
	for {
		text, rest, ok := bytes.Cut(g.partial, []byte("\n"))
		if !ok {
			break
		}
		req, err := parseRequest(text)
		if err != nil {
			g.abandon() // whoever speaks there is not to be trusted with deadlines
			return
		}
		g.say(answer{ID: req.ID, Status: g.handle(req)})
		g.partial = rest
	}
	g.partial = append([]byte(nil), g.partial...)
	if len(g.partial) > maxLine {
		g.abandon()
	}
}

func (g *guard) handle(req request) status {
	if req.Verb == verbStart {
		w := &ward{run: req.ID, command: req.Command, deadline: req.Deadline, check: never, strays: map[int]bool{}}
		w.marks = marksOf(req.Command.Env)
		n := min(2, len(g.files))
		w.files, g.files = g.files[:n:n], g.files[n:]
		g.wards[w.run] = w
		g.queue = append(g.queue, w)
		return statusOK
	}
	w := g.wards[req.Run]
	switch {
	case req.Verb == verbPing:
		return statusOK
	case w == nil:
		return statusUnknown
	case req.Verb == verbSignal && w.pid == 0: // what was cancelled before it began need not begin
		w.killed = true
		if w == g.busy {
			newCensus(g).killUnborn()
		}
	case req.Verb == verbSignal:
		w.pending = unix.Signal(req.Signal)
		w.killed = w.killed || req.Signal == sigKill
	case w.killed:
		return statusLate
	default:
		w.deadline = req.Deadline
	}
	return statusOK
}

// kill sends SIGKILL to all processes of the run, and sees to it that none is started.
func (g *guard) kill(seen *census, w *ward) {
	w.killed = true
	switch {
	case w.pid != 0:
		w.signal(seen, unix.SIGKILL)
	case w == g.busy:
		seen.killUnborn()
	}
}

// launch hands the next command to the starter, if that is idle.
func (g *guard) launch() {
	g.queue = slices.DeleteFunc(g.queue, func(w *ward) bool {
		if w.killed || g.orphaned {
			g.drop(w, answer{Status: statusLate})
		}
		return w.killed || g.orphaned
	})
	for g.busy == nil && len(g.queue) > 0 {
		w := g.queue[0]
		g.queue = g.queue[1:]
		if g.cgroups != nil {
			w.cgroup = g.cgroups.make(w.run)
		}
		g.busy = w
		g.starter.jobs <- w
	}
}

// drop forgets a run and says why it ended.
func (g *guard) drop(w *ward, last answer) {
	last.Run = w.run
	g.say(last)
	if w.target != nil {
		w.target.close()
	}
	if w.cgroup != nil {
		g.cgroups.remove(w.cgroup)
	}
	for _, fd := range w.files {
		_ = unix.Close(fd)
	}
	delete(g.wards, w.run)
}

// started takes what the starter has done.
func (g *guard) started() {
	var done birth
	select {
	case done = <-g.starter.done:
	default:
		return
	}
	w := g.busy
	g.busy = nil
	for _, fd := range w.files {
		_ = unix.Close(fd)
	}
	w.files = nil
	if done.noCgroup { // the kernel, or whoever confines us, does not allow it
		g.cgroups.remove(w.cgroup)
		w.cgroup = nil
		g.cgroups.close()
		g.cgroups = nil
	}
	if done.err != nil {
		s := answer{Status: statusFailed, Text: done.err.Error()}
		if w.killed {
			s = answer{Status: statusLate}
		}
		g.drop(w, s)
		g.early = map[int]unix.WaitStatus{}
		return
	}
	w.pid, w.command = done.pid, nil
	w.target = w.identify(lookup(w.pid))
	if s, ended := g.early[w.pid]; ended {
		w.end(s)
	}
	g.early = map[int]unix.WaitStatus{}
	g.say(answer{Run: w.run, Status: statusStarted, PID: w.pid, Begin: w.target.start})
	if w.killed {
		w.signal(newCensus(g), unix.SIGKILL)
	}
}

// identify returns the group of the first process, which is there, for it was not reaped yet. One that cannot
// be told from others later could never be ended, so it is ended now.
func (w *ward) identify(p process, err error) *target {
	if err == nil {
		var t *target
		if t, err = aim(w.pid, p.start); err == nil {
			return t
		}
	}
	tell("emit-guardian: a command that cannot be watched is killed: %v\n", err)
	_ = unix.Kill(-w.pid, unix.SIGKILL)
	w.killed = true
	return noTarget(w.pid)
}

// reap takes the processes that have ended: first processes of runs, and what was adopted.
func (g *guard) reap() {
	for {
		var s unix.WaitStatus
		pid, err := unix.Wait4(-1, &s, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if w := g.leader(pid); w != nil {
			w.end(s)
		} else if g.busy != nil {
			g.early[pid] = s
		}
	}
}

func (g *guard) leader(pid int) *ward {
	for _, w := range g.wards {
		if w.pid == pid && !w.exited {
			return w
		}
	}
	return nil
}

// end notes that the first process has ended.
func (w *ward) end(s unix.WaitStatus) {
	w.exited, w.status = true, s
	w.check, w.pause = 0, time.Millisecond
}

// expire does what was asked and what time demands: deadlines first, then what may be gone.
func (g *guard) expire(now instant) {
	var asked, late, ended []*ward
	for _, w := range g.wards {
		if w.pending != 0 {
			asked = append(asked, w)
		}
		if !w.killed && w.deadline <= now {
			late = append(late, w)
		}
		if w.check <= now {
			ended = append(ended, w)
		}
	}
	if len(asked)+len(late)+len(ended) == 0 {
		return
	}
	slices.SortFunc(ended, func(a, b *ward) int { return cmp.Compare(a.run, b.run) })
	seen := newCensus(g) // one for all of them
	for _, w := range asked {
		if w.killed {
			w.pending = unix.SIGKILL
		}
		w.signal(seen, w.pending)
		w.pending = 0
	}
	for _, w := range late {
		g.kill(seen, w)
		if w.pid != 0 {
			g.say(answer{Run: w.run, Status: statusKilled})
		}
	}
	for _, w := range ended {
		g.look(seen, w, now)
	}
}

// maxPause is the longest between two looks at whether a run is gone.
const maxPause = 250 * time.Millisecond

// look forgets a run of which nothing is left, or looks again later: a process in an
// uninterruptible call dies when that returns.
func (g *guard) look(seen *census, w *ward, now instant) {
	if w.runs(seen) {
		if w.killed {
			w.signal(seen, unix.SIGKILL)
		}
		if !w.told && !w.empty {
			w.told = true
			g.say(answer{Run: w.run, Status: statusExited})
		}
		w.check = (now/instant(w.pause) + 1) * instant(w.pause) // together with others: each look is at all processes
		w.pause = min(2*w.pause, maxPause)
		return
	}
	g.drop(w, answer{Status: statusGone, Wait: int(w.status), Strays: len(w.strays)})
}

// abandon is the end of emitd: everything is killed at once.
func (g *guard) abandon() {
	if g.orphaned {
		return
	}
	g.orphaned, g.deaf = true, true
	var all []*ward
	for _, w := range g.wards {
		all = append(all, w)
	}
	seen := newCensus(g)
	for _, w := range all {
		if !w.killed && w.pid != 0 && w.runs(seen) {
			g.killed++
		}
		g.kill(seen, w)
	}
}

// The most that waits to be written. Emitd does not read while it is stopped; what happens to a
// thousand runs meanwhile takes a hundredth of this.
const maxOut = 16 << 20

func (g *guard) say(a answer) {
	if !g.deaf {
		g.out = append(g.out, a.line()...)
	}
}

// flush writes as much as emitd takes. The guardian waits for nobody.
func (g *guard) flush() {
	for len(g.out) > 0 && !g.deaf {
		n, err := unix.Write(g.conn, g.out)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			g.deaf = len(g.out) > maxOut
			return
		case err != nil:
			g.deaf = true
			return
		}
		g.out = g.out[n:]
	}
	g.out = nil
}

// maxGarbage is how much may lie around. (To ask how much does not stop the starter.)
const maxGarbage = 4 << 20

// tidy collects garbage, but not while a command is being started. It reports whether it did.
func (g *guard) tidy() bool {
	g.garbage[0].Name = "/gc/heap/allocs:bytes"
	metrics.Read(g.garbage[:])
	made := g.garbage[0].Value.Uint64()
	if g.busy != nil || made-g.clean < maxGarbage {
		return false
	}
	g.clean = made
	runtime.GC()
	return true
}

// tell writes to standard error, if that can be done without waiting.
func tell(format string, args ...any) {
	fds := []unix.PollFd{{Fd: 2, Events: unix.POLLOUT}}
	if n, err := unix.Poll(fds, 0); err == nil && n == 1 && fds[0].Revents&unix.POLLOUT != 0 {
		fmt.Fprintf(os.Stderr, format, args...)
	}
}
