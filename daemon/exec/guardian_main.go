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

// guard is the guardian's whole state. One goroutine uses it, without locks. It waits for input,
// for the end of a process, or for the next deadline. Then it handles all input that has arrived,
// and only after that checks the deadlines: the guardian may have been stopped itself, and an
// extension that emitd sent meanwhile must count before the guardian's own timer. Another
// goroutine, the starter, starts the commands, so that a command on a file system that does not
// answer delays no deadline.
type guard struct {
	conn    int // the socket, both directions
	reaper  int // a descriptor that hangs up when the reaper ends; 0 = there is no reaper
	alarm   *alarm
	wake    [2]int // a pipe: a byte says that a process has ended or a command was started
	starter starter
	cgroups *cgroups // nil = emitd may not create any

	cgroupsWork bool // a command was started in its control group

	runs  map[uint64]*guardedRun  // by run
	queue []*guardedRun           // runs that wait for the starter
	busy  *guardedRun             // the run that the starter is starting
	early map[int]unix.WaitStatus // of ended processes, one of which may be the command being started
	marks map[string][]string     // of adopted processes, by process.id
	bare  map[string]instant      // of adopted processes without an environment: when each was first seen so

	partial     []byte            // the beginning of a line that has not arrived completely
	files       []int             // descriptors received before their request
	out         []byte            // answers not yet written
	dropAnswers bool              // emitd does not read, or has ended: answers are dropped
	garbage     [1]metrics.Sample // bytes allocated
	clean       uint64            // that number at the last garbage collection

	// orphaned is set once emitd has ended.
	orphaned bool
	killed   int
}

// guardedRun is a run that the guardian watches.
type guardedRun struct {
	run      uint64
	command  *program
	marks    []string // variables by which a process of this run is recognised
	files    []int    // the files for its output
	deadline instant
	cgroup   *cgroup     // nil = none
	killed   bool        // none of it may run: its deadline has passed, or it was cancelled
	pending  unix.Signal // the signal to send next; 0 = none

	pid        int     // of the first process; 0 = not started yet
	target     *target // the process group of that process
	exited     bool
	status     unix.WaitStatus
	seenEmpty  bool         // the last look found no process of it
	exitedSent bool         // emitd has got the notice "exited"
	strays     map[int]bool // processes seen outside the group
	check      instant      // when to check whether it is gone; never until the first process has ended
	pause      time.Duration
}

// guardianMain is the main function of the guardian process. The socket to emitd is its standard
// input.
func guardianMain(useCgroups bool) (code int) {
	setName(roleGuardian)
	catchSignals()
	closeOnExec()
	_ = os.Chdir("/") // so that it keeps no file system mounted
	// A garbage collection stops all goroutines. A goroutine that is starting a command stops only
	// when that is done. Therefore garbage is collected explicitly, while no command is being
	// started.
	debug.SetGCPercent(-1)
	g, err := newGuard(0)
	if err != nil {
		logf("emit-guardian: %v\n", err)
		return 1
	}
	if adopts {
		adopt()
		g.reaper = reaperAlive
	}
	if useCgroups {
		g.cgroups = newCgroups()
	}
	g.starter = newStarter(g.wakeUp)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go func() {
		for range children {
			g.wakeUp()
		}
	}()
	g.run()
	killChildren() // processes that were adopted and belong to no known run
	if g.cgroups != nil {
		g.cgroups.close()
	}
	if g.killed > 0 {
		logf("emit-guardian: emitd has ended; process groups of its daemons killed: %d\n", g.killed)
	}
	return 0
}

// closeOnExec prevents commands from inheriting the descriptors that this process was given. These
// are the lock file, which a command could unlock, and whatever emitd itself was started with.
func closeOnExec() {
	all, err := os.ReadDir(ownDescriptors)
	if err != nil {
		logf("emit-guardian: commands inherit its descriptors: %v\n", err)
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
	g := &guard{conn: conn, alarm: alarm, runs: map[uint64]*guardedRun{}, early: map[int]unix.WaitStatus{}}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// Duplicate the descriptors of the pipe, because a finalizer would close the originals.
	defer closeAll(r, w)
	for i, f := range []*os.File{r, w} {
		if g.wake[i], err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("make pipe: %w", err)
		}
	}
	for _, fd := range []int{conn, g.wake[0], g.wake[1]} { // the guardian waits only in alarm.wait
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("set nonblocking: %w", err)
		}
	}
	return g, nil
}

// wakeUp wakes the guardian up. If the pipe is full, the guardian wakes up anyway.
func (g *guard) wakeUp() { _, _ = unix.Write(g.wake[1], []byte{1}) }

// run returns when emitd has ended and no process of its runs is left.
func (g *guard) run() {
	for !g.orphaned || len(g.runs) > 0 {
		if err := g.wait(); err != nil {
			g.killAll() // without a clock no run may go on
		}
		g.read()
		g.started()
		g.reap()
		g.enforce(readClock())
		g.launch()
		g.flush()
		g.collectGarbage()
	}
}

func (g *guard) wait() error {
	fds := []unix.PollFd{{Fd: int32(g.wake[0]), Events: unix.POLLIN}} // descriptors are small
	if !g.orphaned {
		events := int16(unix.POLLIN)
		if len(g.out) > 0 {
			events |= unix.POLLOUT
		}
		fds = append(fds, unix.PollFd{Fd: int32(g.conn), Events: events}) // descriptors are small
	}
	if g.reaper != 0 && !g.orphaned {
		fds = append(fds, unix.PollFd{Fd: int32(g.reaper)}) // descriptors are small
	}
	err := g.alarm.wait(g.next(), fds)
	if g.reaper != 0 && !g.orphaned && fds[len(fds)-1].Revents != 0 {
		g.killAll() // if this process were killed as well, nothing would end the commands
	}
	var buf [512]byte
	for {
		if n, err := unix.Read(g.wake[0], buf[:]); n < len(buf) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return err
}

// next returns when the guardian must act even if no input arrives.
func (g *guard) next() instant {
	next := never
	for _, w := range g.runs {
		if !w.killed {
			next = min(next, w.deadline)
		}
		next = min(next, w.check)
	}
	return next
}

// read handles all input that has arrived.
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
			g.killAll()
			return
		}
		g.take(buf[:n])
	}
}

// take handles the lines in input, together with the rest of earlier input.
func (g *guard) take(input []byte) {
	g.partial = append(g.partial, input...)
	for {
		text, rest, ok := bytes.Cut(g.partial, []byte("\n"))
		if !ok {
			break
		}
		req, err := parseRequest(text)
		if err != nil {
			g.killAll() // a peer that breaks the protocol cannot be trusted with deadlines
			return
		}
		g.queueAnswer(answer{ID: req.ID, Status: g.handle(req)})
		g.partial = rest
	}
	g.partial = append([]byte(nil), g.partial...)
	if len(g.partial) > maxLine {
		g.killAll()
	}
}

func (g *guard) handle(req request) status {
	if req.Verb == verbStart {
		w := &guardedRun{run: req.ID, command: req.Command, deadline: req.Deadline, check: never, strays: map[int]bool{}}
		w.marks = marksOf(req.Command.Env)
		n := min(2, len(g.files))
		w.files, g.files = g.files[:n:n], g.files[n:]
		g.runs[w.run] = w
		g.queue = append(g.queue, w)
		return statusOK
	}
	w := g.runs[req.Run]
	switch {
	case req.Verb == verbPing:
		return statusOK
	case w == nil:
		return statusUnknown
	case req.Verb == verbSignal && w.pid == 0: // a run that is cancelled before it began is not started
		w.killed = true
		if w == g.busy {
			newCensus(g).killStarting()
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

// kill sends SIGKILL to all processes of the run, and makes sure that none is started.
func (g *guard) kill(seen *census, w *guardedRun) {
	w.killed = true
	switch {
	case w.pid != 0:
		w.signal(seen, unix.SIGKILL)
	case w == g.busy:
		seen.killStarting()
	}
}

// launch gives the next command to the starter, if that is idle.
func (g *guard) launch() {
	g.queue = slices.DeleteFunc(g.queue, func(w *guardedRun) bool {
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

// drop removes a run and tells emitd why it ended.
func (g *guard) drop(w *guardedRun, last answer) {
	last.Run = w.run
	g.queueAnswer(last)
	if w.target != nil {
		w.target.close()
	}
	if w.cgroup != nil {
		g.cgroups.remove(w.cgroup)
	}
	for _, fd := range w.files {
		_ = unix.Close(fd)
	}
	delete(g.runs, w.run)
}

// started handles the result of the starter.
func (g *guard) started() {
	var done startResult
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
	switch {
	case done.noCgroup:
		g.cgroups.remove(w.cgroup)
		w.cgroup = nil
		if !g.cgroupsWork { // the kernel or a sandbox does not allow control groups, and no run has one
			g.cgroups.close()
			g.cgroups = nil
		}
	case done.err == nil && w.cgroup != nil:
		g.cgroupsWork = true
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
	g.queueAnswer(answer{Run: w.run, Status: statusStarted, PID: w.pid, Begin: w.target.start})
	if w.killed {
		w.signal(newCensus(g), unix.SIGKILL)
	}
}

// identify returns the process group of the first process. That process still exists, because it
// was not reaped yet. If it cannot be identified, it could not be told from others later and never
// be ended. So it is killed now.
func (w *guardedRun) identify(p process, err error) *target {
	if err == nil {
		var t *target
		if t, err = openTarget(w.pid, p.start); err == nil {
			return t
		}
	}
	logf("emit-guardian: a command that cannot be watched is killed: %v\n", err)
	_ = unix.Kill(-w.pid, unix.SIGKILL)
	w.killed = true
	return noTarget(w.pid)
}

// reap handles processes that have ended: first processes of runs, and adopted ones.
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

func (g *guard) leader(pid int) *guardedRun {
	for _, w := range g.runs {
		if w.pid == pid && !w.exited {
			return w
		}
	}
	return nil
}

// end records that the first process has ended.
func (w *guardedRun) end(s unix.WaitStatus) {
	w.exited, w.status = true, s
	w.check, w.pause = 0, time.Millisecond
}

// enforce sends the requested signals, then enforces the deadlines, then checks runs that may be
// gone.
func (g *guard) enforce(now instant) {
	var toEnd, late, ended []*guardedRun
	for _, w := range g.runs {
		if w.pending != 0 {
			toEnd = append(toEnd, w)
		}
		if !w.killed && w.deadline <= now {
			late = append(late, w)
		}
		if w.check <= now {
			ended = append(ended, w)
		}
	}
	if len(toEnd)+len(late)+len(ended) == 0 {
		return
	}
	slices.SortFunc(ended, func(a, b *guardedRun) int { return cmp.Compare(a.run, b.run) })
	seen := newCensus(g) // one process list for all of them
	for _, w := range toEnd {
		if w.killed {
			w.pending = unix.SIGKILL
		}
		w.signal(seen, w.pending)
		w.pending = 0
	}
	for _, w := range late {
		g.kill(seen, w)
		if w.pid != 0 {
			g.queueAnswer(answer{Run: w.run, Status: statusKilled})
		}
	}
	for _, w := range ended {
		g.checkGone(seen, w, now)
	}
}

// maxPause is the longest pause between two checks whether a run is gone.
const maxPause = 250 * time.Millisecond

// checkGone removes a run of which no process is left, or checks again later. A process in an
// uninterruptible system call dies only when that call returns.
func (g *guard) checkGone(seen *census, w *guardedRun, now instant) {
	if w.runs(seen) {
		if w.killed {
			w.signal(seen, unix.SIGKILL)
		}
		if !w.exitedSent && !w.seenEmpty {
			w.exitedSent = true
			g.queueAnswer(answer{Run: w.run, Status: statusExited})
		}
		w.check = (now/instant(w.pause) + 1) * instant(w.pause) // aligned with other runs, because each check reads the whole process list
		w.pause = min(2*w.pause, maxPause)
		return
	}
	g.drop(w, answer{Status: statusGone, Wait: int(w.status), Strays: len(w.strays)})
}

// killAll kills everything at once, because emitd has ended.
func (g *guard) killAll() {
	if g.orphaned {
		return
	}
	g.orphaned, g.dropAnswers = true, true
	var all []*guardedRun
	for _, w := range g.runs {
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

// maxOut bounds the answers that wait to be written. Emitd does not read while it is stopped. The
// notices about a thousand runs meanwhile take a hundredth of this.
const maxOut = 16 << 20

func (g *guard) queueAnswer(a answer) {
	if !g.dropAnswers {
		g.out = append(g.out, a.line()...)
	}
}

// flush writes as much as the socket takes. The guardian never waits for emitd.
func (g *guard) flush() {
	for len(g.out) > 0 && !g.dropAnswers {
		n, err := unix.Write(g.conn, g.out)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			g.dropAnswers = len(g.out) > maxOut
			return
		case err != nil:
			g.dropAnswers = true
			return
		}
		g.out = g.out[n:]
	}
	g.out = nil
}

// maxGarbage is how much garbage may accumulate. (Reading the amount does not stop the starter.)
const maxGarbage = 4 << 20

// collectGarbage collects garbage, but not while a command is being started. It reports whether it did.
func (g *guard) collectGarbage() bool {
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

// logf writes to standard error, if that is possible without waiting.
func logf(format string, args ...any) {
	fds := []unix.PollFd{{Fd: 2, Events: unix.POLLOUT}}
	if n, err := unix.Poll(fds, 0); err == nil && n == 1 && fds[0].Revents&unix.POLLOUT != 0 {
		fmt.Fprintf(os.Stderr, format, args...)
	}
}
