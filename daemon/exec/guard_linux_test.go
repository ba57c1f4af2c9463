package exec

import (
	"bufio"
	"errors"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The guard below is this process, driven by hand over pipes.
type hand struct {
	*guard
	in, out pair
	answers *bufio.Scanner
}

type pair struct{ r, w *os.File }

func pipe(t *testing.T) pair {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(r, w) })
	return pair{r, w}
}

func newHand(t *testing.T) *hand {
	t.Helper()
	h := &hand{in: pipe(t), out: pipe(t)}
	g, err := newGuard(int(h.in.r.Fd()), int(h.out.w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(g.alarm.timer) })
	h.guard, h.answers = g, bufio.NewScanner(h.out.r)
	return h
}

func (h *hand) says(t *testing.T, want string) {
	t.Helper()
	if !h.answers.Scan() || h.answers.Text() != want {
		t.Errorf("it says %q, want %q", h.answers.Text(), want)
	}
}

// group starts a group that sleeps, reaped at the end of the test.
func sleeper(t *testing.T, command ...string) (*osexec.Cmd, process) {
	t.Helper()
	if len(command) == 0 {
		command = []string{"sleep", "1000"}
	}
	cmd := osexec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL); _ = cmd.Wait() })
	p, err := lookup(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, p
}

func TestAConversation(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	cmd, p := sleeper(t)
	child := hold(t, cmd.Process.Pid)
	id := strconv.Itoa(child.pid)
	h.take([]byte("extend 1 " + id + " - 99\nforget 2 " + id + " - 0\nwat"))
	h.says(t, "1 unknown")
	h.says(t, "2 ok")
	h.take([]byte("ch 3 " + id + " 1 9223372036854775807\n")) // start 1 is another process's
	h.says(t, "3 other")
	h.take([]byte(request{verb: watch, id: 4, pgid: child.pid, start: p.start, deadline: readClock() + instant(time.Hour)}.line()))
	h.says(t, "4 ok")
	h.take([]byte(request{verb: watch, id: 5, pgid: child.pid, start: p.start, deadline: never}.line())) // again
	h.says(t, "5 ok")
	if h.next() != never {
		t.Errorf("next is %d", h.next())
	}
	h.expire(never - 1)
	child.mustRun(t, "a group before its deadline")
	now := readClock()
	h.take([]byte(request{verb: extend, id: 6, pgid: child.pid, deadline: now + instant(time.Hour)}.line()))
	h.says(t, "6 ok")
	if h.next() != now+instant(time.Hour) {
		t.Errorf("next is %d", h.next())
	}
	h.take([]byte(request{verb: extend, id: 7, pgid: child.pid, deadline: now}.line())) // taken back
	h.says(t, "0 killed "+id)
	h.says(t, "7 late")
	child.mustEnd(t, "a group whose deadline was taken back")
	h.take([]byte(request{verb: extend, id: 8, pgid: child.pid, deadline: never}.line())) // too late
	h.says(t, "8 late")
	h.take([]byte(request{verb: forget, id: 9, pgid: child.pid}.line()))
	h.says(t, "9 ok")
	if len(h.groups) != 0 {
		t.Error("a forgotten group is kept")
	}
}

// Whoever cannot speak is not emitd, or not this one: better no groups than unwatched ones.
func TestNonsenseIsTheEnd(t *testing.T) {
	t.Parallel()
	for name, input := range map[string]string{"malformed": "watch me\n", "endless": strings.Repeat("x", maxLine+1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHand(t)
			cmd, p := sleeper(t)
			child := hold(t, cmd.Process.Pid)
			h.take([]byte(request{verb: watch, id: 1, pgid: child.pid, start: p.start, deadline: never}.line()))
			h.take([]byte(input))
			child.mustEnd(t, "a group of nonsense")
			if !h.orphaned {
				t.Error("the guardian goes on listening")
			}
		})
	}
}

// An emitd that is stopped does not read; the guardian must not wait for it.
func TestNobodyReadsTheAnswers(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	for i := range 100_000 {
		h.take([]byte(request{verb: forget, id: uint64(i) + 1, pgid: 2}.line())) //nolint:gosec // small
	}
	if !h.deaf {
		t.Error("a full pipe was not noticed")
	}
}

// The handle of a dead first process still reaches its group, and no other.
func TestAGroupWhoseFirstProcessIsGone(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := osexec.Command("/bin/sh", "-c", `sh -c 'echo $$; exec sleep 1000' & read x`)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(line))
	child := hold(t, pid)
	p, err := lookup(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	byHandle, err := aim(cmd.Process.Pid, p.start)
	if err != nil {
		t.Fatal(err)
	}
	defer byHandle.close()
	_ = in.Close()
	_ = cmd.Wait() // reaped: the number is held by the group alone
	if !byHandle.runs() {
		t.Error("a group without its first process is taken for gone")
	}
	child.mustRun(t, "the rest of the group")
	byHandle.kill()
	child.mustEnd(t, "the rest of the group")
	if byHandle.reused() {
		t.Error("the number is another's")
	}
}

// Before Linux 6.9 there is no handle: the start time tells ours from others.
func TestKillWithoutAHandle(t *testing.T) {
	t.Parallel()
	cmd := osexec.Command("/bin/sh", "-c", "read x; exit 7")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stranger := &target{pgid: cmd.Process.Pid, start: "1", pidfd: -1}
	stranger.kill()
	if !stranger.reused() || stranger.runs() {
		t.Error("a stranger is taken for ours")
	}
	_ = in.Close() // it ends by itself, unless it was killed
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("a stranger's group: %v", cmd.ProcessState)
	}

	ours, p := sleeper(t)
	child := hold(t, ours.Process.Pid)
	(&target{pgid: child.pid, start: p.start, pidfd: -1}).kill()
	child.mustEnd(t, "our group")
}

func TestAim(t *testing.T) {
	t.Parallel()
	cmd, p := sleeper(t)
	if _, err := aim(cmd.Process.Pid, "1"); !errors.Is(err, errOther) {
		t.Errorf("aim at another start: %v", err)
	}
	if _, err := aim(os.Getpid(), p.start); err == nil {
		t.Error("aim at another process was accepted")
	}
	if _, err := aim(1<<22+1, p.start); err == nil {
		t.Error("aim at no process was accepted")
	}
}
