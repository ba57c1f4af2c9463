package exec

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/daemon"
)

// wants waits until the clock of the deadlines shows an instant. These tests are about time itself,
// and no other event shows it.
func wants(until instant) { <-time.After(time.Duration(until - readClock())) }

// credit is a validity that always lasts for a window from now, until the test fixes its end.
type credit struct {
	window time.Duration
	end    atomic.Int64
}

func (c *credit) left() time.Duration {
	now := readClock()
	if e := instant(c.end.Load()); e != 0 {
		return time.Duration(e - now)
	}
	return c.window
}

// stop fixes the end.
func (c *credit) stop(left time.Duration) instant {
	end := readClock() + instant(left)
	c.end.Store(int64(end))
	return end
}

// A pause between reading the validity and using it must not extend it.
func TestAPauseWhileRequestingTrustProlongsNothing(t *testing.T) {
	t.Parallel()
	end := readClock() + instant(time.Hour)
	ctx := daemon.WithValidity(t.Context(), func() time.Duration {
		left := time.Duration(end - readClock())
		wants(readClock() + instant(50*time.Millisecond)) // the process is stopped
		return left
	})
	if got := validUntil(ctx); got > end {
		t.Errorf("trusted %v longer than trust lasts", time.Duration(got-end))
	}
	if got := validUntil(t.Context()); got != never {
		t.Errorf("without knowledge of trust: %d", got)
	}
	if got := validUntil(daemon.WithValidity(t.Context(), func() time.Duration { return 1<<63 - 1 })); got != never {
		t.Errorf("trust for ever: %d", got)
	}
}

// Rule A7: the group ends when the validity does, whatever this process does: here, nothing.
func TestTheGuardianKillsAtTheDeadline(t *testing.T) {
	t.Parallel()
	c := &credit{window: 5 * time.Second} // checked each half second
	r := try(t, command("up", "deaf", "-", "child", "deaf", "-"), trusting(c.left))
	leader, child := r.pid(t, "stdout: up "), r.pid(t, "stdout: child ")
	end := c.stop(1500 * time.Millisecond)
	leader.mustEnd(t, "a group whose trust is over")
	if now := readClock(); now < end-instant(10*time.Millisecond) || now > end+instant(1500*time.Millisecond) {
		t.Errorf("it ended %v after its deadline", time.Duration(now-end))
	}
	child.mustEnd(t, "the grandchild")
	if err := r.end(t); !errors.Is(err, errUntrusted) {
		t.Errorf("ended with %v", err)
	}
	r.after(t, "guardian killed a process group")
}

// When a process that was stopped continues, its runs are already killed, a moment before it
// notices that they should end. That is no failure of the command.
func TestAnEndThatComesTogetherWithTheEndOfTrustIsNoFailure(t *testing.T) {
	t.Parallel()
	c := &credit{window: 5 * time.Second}
	r := try(t, Config{Command: sh(forever)}, trusting(c.left))
	leader := r.pid(t, "stdout: up ")
	c.stop(0)
	leader.mustEnd(t, "a group whose trust is over")
	lost := errors.New("trust")
	r.cancel(lost)
	if err := r.end(t); !errors.Is(err, lost) {
		t.Errorf("ended with %v", err)
	}
}

func TestTrustThatIsExtendedKeepsTheGroup(t *testing.T) {
	t.Parallel()
	var last atomic.Int64 // the end of the validity
	const window = 5 * time.Second
	begin := readClock()
	grow := func() time.Duration {
		now := readClock()
		if now < begin+instant(2*time.Second) {
			last.Store(int64(now) + int64(window))
		}
		return time.Duration(instant(last.Load()) - now)
	}
	r := try(t, Config{Command: sh(forever)}, trusting(grow))
	leader := r.pid(t, "stdout: up ")
	leader.mustEnd(t, "a group whose trust is not extended any more")
	end := instant(last.Load())
	if now := readClock(); now < end-instant(200*time.Millisecond) || now > end+instant(time.Second) {
		t.Errorf("it ended %v after its last deadline", time.Duration(now-end))
	}
	_ = r.end(t)
}

func TestWithoutTrustNothingIsStarted(t *testing.T) {
	t.Parallel()
	marker := filepath.Join(t.TempDir(), "ran")
	r := try(t, Config{Command: sh("touch " + marker)}, trusting(func() time.Duration { return 0 }))
	if err := r.end(t); !errors.Is(err, errUntrusted) {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the command ran")
	}
}

// Deadlines are absolute: messages that were not read while the guardian was stopped add no time.
// The node is stopped too, so that nothing tells the guardian the time.
func TestAPauseOfTheGuardianProlongsNothing(t *testing.T) {
	t.Parallel()
	const window = 3 * time.Second
	n := startNode(t, nodeConfig{Command: sh(forever), Trust: window, PrintReads: true})
	guardian, leader := n.pid(t, "guardian "), n.pid(t, "stdout: up ")
	guardian.signal(t, unix.SIGSTOP)
	reads := 0
	for _, l := range n.lines() {
		if strings.HasPrefix(l, "asked ") {
			reads++
		}
	}
	n.after(t, "asked "+strconv.Itoa(reads+3)) // an extension is in the socket
	n.process.signal(t, unix.SIGSTOP)
	wants(readClock() + instant(window))
	guardian.signal(t, unix.SIGCONT)
	if !leader.endsWithin(window / 2) {
		t.Error("the group lives beyond its last deadline")
	}
}

// A guardian that was stopped reads the messages that arrived meanwhile before it checks deadlines.
func TestAPauseOfTheGuardianKillsNobodyWhoseTrustWasExtended(t *testing.T) {
	t.Parallel()
	const short = 2 * time.Second // it is renewed every fifth of a second
	window := int64(short)
	renewals := make(chan struct{}, 1)
	r := try(t, Config{Command: sh(forever)}, trusting(func() time.Duration {
		select {
		case renewals <- struct{}{}:
		default:
		}
		return time.Duration(atomic.LoadInt64(&window))
	}))
	leader := r.pid(t, "stdout: up ")
	guardian := r.guardian.process(t)
	guardian.signal(t, unix.SIGSTOP)
	for underWay := false; !underWay; {
		<-renewals
		l := r.guardian.link
		l.mu.Lock()
		underWay = len(l.waiting) > 0
		l.mu.Unlock()
	}
	atomic.StoreInt64(&window, int64(time.Hour))
	wants(readClock() + instant(short+500*time.Millisecond))
	guardian.signal(t, unix.SIGCONT)
	// Its answer says that it has accepted the extension; the previous deadline has passed.
	if s, err := r.guardian.link.call(t.Context(), request{Verb: verbExtend, Run: 1, Deadline: never}); err != nil || s.Status != statusOK {
		t.Errorf("extend: %v, %v", s, err)
	}
	leader.mustRun(t, "a group whose trust was extended")
	r.a.BeginDrain()
	if err := r.end(t); err != nil {
		t.Errorf("drained: %v", err)
	}
}

// If emitd is killed, the groups end at once, then the guardian, and only then is the lock free.
func TestKilledNode(t *testing.T) {
	t.Parallel()
	lock := filepath.Join(t.TempDir(), "lock")
	n := startNode(t, nodeConfig{
		Command: command("up", "deaf", "-", "child", "deaf", "-").Command, Env: command().Env,
		Trust: time.Hour, Lock: lock,
	})
	guardian, reaper := n.pid(t, "guardian "), n.pid(t, "reaper ")
	leader, child := n.pid(t, "stdout: up "), n.pid(t, "stdout: child ")
	guardian.signal(t, unix.SIGSTOP) // so that the test can see that it holds the lock
	n.process.signal(t, unix.SIGKILL)
	n.process.mustEnd(t, "the node")
	f, err := os.Open(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("the lock is free while the groups live: %v", err)
	}
	leader.mustRun(t, "the command")
	guardian.signal(t, unix.SIGCONT)
	leader.mustEnd(t, "the command of a killed node")
	child.mustEnd(t, "the grandchild of a killed node")
	guardian.mustEnd(t, "the guardian of a killed node")
	reaper.mustEnd(t, "the reaper of a killed node")
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("the lock is held by nobody: %v", err)
	}
}

// If emitd is stopped, no extension arrives, and the group ends before its validity does.
func TestStoppedNode(t *testing.T) {
	t.Parallel()
	const window = 2 * time.Second
	n := startNode(t, nodeConfig{Command: sh(forever), Trust: window})
	guardian, leader := n.pid(t, "guardian "), n.pid(t, "stdout: up ")
	n.process.signal(t, unix.SIGSTOP)
	stopped := time.Now()
	leader.mustEnd(t, "the command of a stopped node")
	if d := time.Since(stopped); d > window+time.Second {
		t.Errorf("it ended %v after the node was stopped; its trust was %v", d, window)
	}
	guardian.mustRun(t, "the guardian of a stopped node")
	n.process.signal(t, unix.SIGCONT)
	n.after(t, "returned: run acme:ticker: signal: killed")
	n.after(t, "closed: <nil>")
	guardian.mustEnd(t, "the guardian")
}

// A node is killed before the guardian has read that a command should start.
func TestNodeKilledBeforeItsCommandIsStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t, nodeConfig{Command: sh("touch " + filepath.Join(dir, "ran") + "; exec sleep 1000"), Trust: 20 * time.Second, PrintReads: true, StopGuardian: true})
	guardian := n.pid(t, "guardian ")
	n.after(t, "asked 2") // the request was sent
	n.process.signal(t, unix.SIGKILL)
	n.process.mustEnd(t, "the node")
	guardian.signal(t, unix.SIGCONT)
	guardian.mustEnd(t, "the guardian of a killed node")
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the command ran although nobody wanted it any more")
	}
}

// No command runs unguarded, even while no process dies.
func TestAGuardianThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	log := newJournal()
	g := newGuardian(t, log)
	if _, err := g.reach(); err != nil {
		t.Fatal(err)
	}
	stopped := g.process(t)
	stopped.signal(t, unix.SIGSTOP)
	marker := filepath.Join(t.TempDir(), "ran")
	r := try(t, Config{Command: sh("touch " + marker)}, with(g))
	if err := r.end(t); !errors.Is(err, ErrGuardianGone) {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the command ran although nobody watched it")
	}
	stopped.mustEnd(t, "a guardian that does not answer")
	log.after(t, "guardian does not answer")
	if err := try(t, Config{Command: sh("touch " + marker)}, with(g)).end(t); err != nil {
		t.Errorf("with another guardian: %v", err)
	}
}

// A guardian that is stopped guards nothing. Emitd detects it even if it has no request to send.
func TestAGuardianThatStopsLater(t *testing.T) {
	t.Parallel()
	r := try(t, Config{Command: sh(forever)})
	leader := r.pid(t, "stdout: up ")
	r.guardian.process(t).signal(t, unix.SIGSTOP)
	if err := r.end(t); !errors.Is(err, ErrGuardianGone) {
		t.Errorf("ended with %v", err)
	}
	leader.mustEnd(t, "the command of a stopped guardian")
}

// If the guardian is killed, its groups are killed, the runs fail and say why, and the next run has
// another guardian.
func TestKilledGuardian(t *testing.T) {
	t.Parallel()
	log := newJournal()
	g := newGuardian(t, log)
	runs := []*trial{try(t, Config{Command: sh(forever)}, with(g)), try(t, Config{Command: sh(forever)}, with(g))}
	var leaders []*held
	for _, r := range runs {
		leaders = append(leaders, r.pid(t, "stdout: up "))
	}
	guardian := g.process(t)
	guardian.signal(t, unix.SIGKILL)
	for i, r := range runs {
		err := r.end(t)
		if !errors.Is(err, ErrGuardianGone) || err.Error() != "run acme:ticker: the command was killed: the guardian has ended: exit status 137" {
			t.Errorf("ended with %v", err)
		}
		leaders[i].mustEnd(t, "the command of a killed guardian")
	}
	r := try(t, Config{Command: sh(forever)}, with(g))
	r.after(t, "stdout: up ")
	if again := g.process(t); again.pid == guardian.pid {
		t.Error("there is no new guardian")
	}
	r.a.BeginDrain()
	if err := r.end(t); err != nil {
		t.Errorf("drained: %v", err)
	}
}

// The node is stopped and its guardian killed, so no process checks deadlines. Everything ends at
// once, even what is not a child of the guardian.
func TestKilledGuardianOfAStoppedNode(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"guardian ", "reaper "} {
		for _, cgroup := range []bool{false, true} {
			t.Run(fmt.Sprintf("%scgroup=%v", who, cgroup), func(t *testing.T) {
				t.Parallel()
				n := startNode(t, nodeConfig{
					Command: sh(`setsid sh -c 'echo away $$; exec sleep 1000' & sh -c 'echo child $$; exec sleep 1000' & echo up $$; wait`),
					Trust:   time.Hour, Cgroup: cgroup,
				})
				victim := n.pid(t, who)
				all := []*held{n.pid(t, "stdout: up "), n.pid(t, "stdout: child "), n.pid(t, "stdout: away ")}
				n.process.signal(t, unix.SIGSTOP)
				victim.signal(t, unix.SIGKILL)
				for i, what := range []string{"the command", "its child", "what had left its group"} {
					all[i].mustEnd(t, what)
				}
				n.process.signal(t, unix.SIGCONT)
				n.after(t, "returned: run acme:ticker: the command was killed: the guardian has ended: ")
			})
		}
	}
}

// Guardian and reaper are killed together. The rest of the command ends with it, and the next
// guardian ends the processes that had left its group, where there are control groups.
func TestAllGuardsKilled(t *testing.T) {
	t.Parallel()
	for _, cgroup := range []bool{false, true} {
		t.Run(fmt.Sprint("cgroup=", cgroup), func(t *testing.T) {
			t.Parallel()
			g := NewGuardian(GuardianConfig{Logger: slog.New(newJournal()), noCgroup: !cgroup})
			defer g.Close()
			r := try(t, Config{Command: sh(`setsid sh -c 'echo away $$; exec sleep 1000' & sh -c 'echo child $$; exec sleep 1000' & echo up $$; wait`)}, with(g))
			leader, child, away := r.pid(t, "stdout: up "), r.pid(t, "stdout: child "), r.pid(t, "stdout: away ")
			defer func() { _ = unix.PidfdSendSignal(away.fd, unix.SIGKILL, nil, 0) }()
			guardian, reaper := g.process(t), hold(t, g.link.cmd.Process.Pid)
			guardian.signal(t, unix.SIGSTOP)
			reaper.signal(t, unix.SIGKILL)
			guardian.signal(t, unix.SIGKILL)
			if err := r.end(t); !errors.Is(err, ErrGuardianGone) {
				t.Errorf("ended with %v", err)
			}
			leader.mustEnd(t, "the command")
			child.mustEnd(t, "its child")
			if !cgroup {
				return
			}
			if err := try(t, Config{Command: sh("exit 0")}, with(g)).end(t); err != nil {
				t.Errorf("the next run: %v", err)
			}
			away.mustEnd(t, "what had left the group")
		})
	}
}

// Signals that are meant for emitd (Ctrl-C, a service manager's SIGTERM to all) do not end the
// guardian before it.
func TestTheGuardianIsDeaf(t *testing.T) {
	t.Parallel()
	r := try(t, Config{Command: sh(forever)})
	r.after(t, "stdout: up ")
	guardian := r.guardian.process(t)
	if sid, err := unix.Getsid(guardian.pid); err != nil || sid != r.guardian.link.cmd.Process.Pid {
		t.Errorf("its session is %d (%v), not its own", sid, err)
	}
	for _, s := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		guardian.signal(t, s)
	}
	if s, err := r.guardian.link.call(t.Context(), request{Verb: verbExtend, Run: 1, Deadline: never}); err != nil || s.Status != statusOK {
		t.Errorf("extend: %v, %v", s, err)
	}
	if name, err := os.ReadFile("/proc/" + strconv.Itoa(guardian.pid) + "/comm"); err != nil || strings.TrimSpace(string(name)) != roleGuardian {
		t.Errorf("its name is %q (%v)", name, err)
	}
}

func TestCloseEndsTheGuardian(t *testing.T) {
	t.Parallel()
	g := NewGuardian(GuardianConfig{Logger: slog.New(newJournal())})
	if err := g.Close(); err != nil {
		t.Errorf("close before it was needed: %v", err)
	}
	if err := try(t, Config{Command: sh(forever)}, with(g)).end(t); err == nil || err.Error() != "start acme:ticker: guardian is closed" {
		t.Errorf("a run with a closed guardian: %v", err)
	}

	g = NewGuardian(GuardianConfig{Logger: slog.New(newJournal())})
	r := try(t, Config{Command: sh(forever)}, with(g))
	leader, guardian := r.pid(t, "stdout: up "), g.process(t)
	for range 2 {
		if err := g.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	guardian.mustEnd(t, "a closed guardian")
	leader.mustEnd(t, "a command that still ran")
	if err := r.end(t); !errors.Is(err, ErrGuardianGone) {
		t.Errorf("ended with %v", err)
	}
}

// A program that does not call GuardianMain must not start copies of itself.
func TestWithoutTheHookNothingIsStarted(t *testing.T) {
	t.Parallel()
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+roleBare)
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != "exec.GuardianMain must be the first call in main" {
		t.Errorf("said %q (%v)", out, err)
	}
}

func TestAGuardianThatTalksNonsense(t *testing.T) {
	t.Parallel()
	log := newJournal()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	cmd := osexec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &link{cmd: cmd, log: slog.New(log), conn: ours, gone: make(chan struct{}), waiting: map[uint64]*waiting{}}
	if _, err := theirs.WriteString("what?\n"); err != nil {
		t.Fatal(err)
	}
	l.listen()
	if _, err := l.call(context.Background(), request{Verb: verbExtend, Run: 2}); !errors.Is(err, ErrGuardianGone) {
		t.Errorf("ask: %v", err)
	}
	log.after(t, "guardian sent a malformed answer")
}
