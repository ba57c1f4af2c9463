//go:build linux || darwin

package exec

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guard is the guardian's whole state. One goroutine, no locks: it waits for input or the next
// deadline, takes all input there is, and only then looks at the deadlines. (It may have been
// stopped itself: what emitd has said meanwhile counts before what its own timer says.)
type guard struct {
	in, out int
	alarm   *alarm
	groups  map[int]*ward // by process group
	partial []byte        // of a line
	deaf    bool          // the answers' pipe is full or closed
	// orphaned is set once emitd has gone; check is when to look again whether the groups have.
	orphaned bool
	check    instant
	pause    time.Duration
	killed   int
}

// ward is a group that is watched.
type ward struct {
	target   *target
	deadline instant
	killed   bool
}

// guardianMain is the guardian process: requests on standard input, answers on standard output.
func guardianMain() (code int) {
	setName(roleGuardian)
	// Whoever signals emitd means emitd: it ends its runs, closes the pipe, and then this ends.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE,
		syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGUSR1, syscall.SIGUSR2)
	_ = os.Chdir("/") // hold no mount
	g, err := newGuard(0, 1)
	if err != nil {
		tell("emit-guardian: %v\n", err)
		return 1
	}
	g.run()
	if g.killed > 0 {
		tell("emit-guardian: emitd has ended; process groups of its daemons killed: %d\n", g.killed)
	}
	return 0
}

func newGuard(in, out int) (*guard, error) {
	alarm, err := newAlarm()
	if err != nil {
		return nil, err
	}
	for _, fd := range []int{in, out} { // the guardian never waits but for its alarm
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("set nonblocking: %w", err)
		}
	}
	return &guard{in: in, out: out, alarm: alarm, groups: map[int]*ward{}}, nil
}

// run returns when emitd is gone and nothing of its groups is left.
func (g *guard) run() {
	for !g.orphaned || len(g.groups) > 0 {
		in := g.in
		if g.orphaned {
			in = -1
		}
		if err := g.alarm.wait(in, g.next()); err != nil {
			g.abandon() // without a clock nothing may go on
		}
		if !g.orphaned {
			g.read()
		}
		g.expire(readClock())
	}
}

// next returns when there is something to do without input.
func (g *guard) next() instant {
	if g.orphaned {
		return g.check
	}
	next := never
	for _, w := range g.groups {
		if !w.killed {
			next = min(next, w.deadline)
		}
	}
	return next
}

// read takes all input there is.
func (g *guard) read() {
	var buf [64 << 10]byte
	for {
		n, err := unix.Read(g.in, buf[:])
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
		if g.orphaned {
			return
		}
	}
}

// take handles the lines in input, together with what is left of earlier input.
func (g *guard) take(input []byte) {
	g.partial = append(g.partial, input...)
	for {
		line, rest, ok := bytes.Cut(g.partial, []byte("\n"))
		if !ok {
			break
		}
		req, err := parseRequest(string(line))
		if err != nil {
			g.abandon() // whoever speaks there is not to be trusted with deadlines
			return
		}
		g.say(answer{id: req.id, status: g.handle(req)})
		g.partial = rest
	}
	g.partial = append([]byte(nil), g.partial...)
	if len(g.partial) > maxLine {
		g.abandon()
	}
}

func (g *guard) handle(req request) status {
	w := g.groups[req.pgid]
	switch req.verb {
	case watch:
		t, err := aim(req.pgid, req.start)
		if err != nil {
			return statusOther
		}
		if w != nil {
			w.target.close()
		}
		w = &ward{target: t}
		g.groups[req.pgid] = w
	case forget:
		if w != nil {
			w.target.close()
			delete(g.groups, req.pgid)
		}
		return statusOK
	}
	switch {
	case w == nil:
		return statusUnknown
	case w.killed:
		return statusLate
	}
	w.deadline = req.deadline
	if g.late(req.pgid, w, readClock()) {
		return statusLate
	}
	return statusOK
}

// late kills a group whose deadline has passed, and tells.
func (g *guard) late(pgid int, w *ward, now instant) bool {
	if !w.killed && w.deadline <= now {
		w.kill()
		g.say(answer{status: statusKilled, pgid: pgid})
	}
	return w.killed
}

func (w *ward) kill() {
	w.target.kill()
	w.killed = true
}

// expire does what time demands.
func (g *guard) expire(now instant) {
	if g.orphaned {
		g.finish(now)
		return
	}
	for pgid, w := range g.groups {
		g.late(pgid, w, now)
	}
}

// abandon is the end of emitd: all groups are killed at once.
func (g *guard) abandon() {
	if g.orphaned {
		return
	}
	g.orphaned, g.deaf = true, true
	for _, w := range g.groups {
		if !w.killed && w.target.runs() {
			g.killed++
		}
		w.kill()
	}
	g.pause = time.Millisecond
	g.check = readClock()
}

// finish forgets the killed groups of which nothing runs any more, and looks again later for the
// others: a process in an uninterruptible call dies when that returns.
func (g *guard) finish(now instant) {
	if now < g.check {
		return
	}
	for pgid, w := range g.groups {
		if w.target.runs() {
			w.kill()
			continue
		}
		w.target.close()
		delete(g.groups, pgid)
	}
	g.check = now + instant(g.pause)
	g.pause = min(2*g.pause, time.Second)
}

// say answers. If emitd does not read, it gets no more answers and draws its conclusions; the
// guardian waits for nobody.
func (g *guard) say(a answer) {
	if g.deaf {
		return
	}
	line := a.line()
	for {
		n, err := unix.Write(g.out, []byte(line))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		g.deaf = err != nil || n != len(line)
		return
	}
}

// tell writes to standard error, if that can be done without waiting.
func tell(format string, args ...any) {
	fds := []unix.PollFd{{Fd: 2, Events: unix.POLLOUT}}
	if n, err := unix.Poll(fds, 0); err == nil && n == 1 && fds[0].Revents&unix.POLLOUT != 0 {
		fmt.Fprintf(os.Stderr, format, args...)
	}
}
