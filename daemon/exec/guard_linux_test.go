package exec

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// guardOfTest is a guard in this process that a test drives step by step over a socket. It starts nothing:
// the test reports started processes too.
type guardOfTest struct {
	*guard
	conn    *net.UnixConn
	answers *bufio.Scanner
}

func newGuardOfTest(t *testing.T) *guardOfTest {
	t.Helper()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close(); _ = theirs.Close() })
	g, err := newGuard(int(theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(g.alarm.timer); _ = unix.Close(g.wake[0]); _ = unix.Close(g.wake[1]) })
	g.starter = starter{jobs: make(chan *guardedRun, 1), done: make(chan startResult, 1)}
	return &guardOfTest{guard: g, conn: ours, answers: bufio.NewScanner(ours)}
}

func (h *guardOfTest) mustAnswer(t *testing.T, want answer) {
	t.Helper()
	h.flush()
	var got answer
	if !h.answers.Scan() {
		t.Fatalf("it says nothing, want %+v", want)
	}
	if err := json.Unmarshal(h.answers.Bytes(), &got); err != nil || got != want {
		t.Errorf("it says %s, want %+v", h.answers.Text(), want)
	}
}

// told passes a request to the guard.
func (h *guardOfTest) receive(t *testing.T, r request) {
	t.Helper()
	text, err := line(r)
	if err != nil {
		t.Fatal(err)
	}
	h.take(text)
}

// born makes the guard believe that its starter has started a process for the run.
func (h *guardOfTest) born(t *testing.T, run uint64, deadline instant, cmd *osexec.Cmd) process {
	t.Helper()
	h.receive(t, request{Verb: verbStart, ID: run, Deadline: deadline, Command: &program{Path: []byte("x"), Args: [][]byte{[]byte("x")}}})
	h.mustAnswer(t, answer{ID: run, Status: statusOK})
	h.launch()
	<-h.starter.jobs
	h.starter.done <- startResult{pid: cmd.Process.Pid}
	h.started()
	p, err := lookup(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	h.mustAnswer(t, answer{Run: run, Status: statusStarted, PID: p.pid, Begin: p.start})
	return p
}

// sleeper starts a group that sleeps, and is reaped at the end of the test.
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
	h := newGuardOfTest(t)
	h.receive(t, request{Verb: verbExtend, ID: 1, Run: 9, Deadline: 99})
	h.mustAnswer(t, answer{ID: 1, Status: statusUnknown})
	cmd, _ := sleeper(t)
	child := hold(t, cmd.Process.Pid)
	h.born(t, 2, never, cmd)
	if h.next() != never {
		t.Errorf("next is %d", h.next())
	}
	h.enforce(never - 1)
	child.mustRun(t, "a group before its deadline")
	now := readClock()
	text, _ := line(request{Verb: verbExtend, ID: 3, Run: 2, Deadline: now + instant(time.Hour)})
	h.take(text[:7])
	h.take(text[7:]) // in pieces
	h.mustAnswer(t, answer{ID: 3, Status: statusOK})
	if h.next() != now+instant(time.Hour) {
		t.Errorf("next is %d", h.next())
	}
	h.receive(t, request{Verb: verbExtend, ID: 4, Run: 2, Deadline: now}) // taken back
	h.enforce(readClock())
	h.mustAnswer(t, answer{ID: 4, Status: statusOK})
	h.mustAnswer(t, answer{Run: 2, Status: statusKilled})
	child.mustEnd(t, "a group whose deadline was taken back")
	h.receive(t, request{Verb: verbExtend, ID: 5, Run: 2, Deadline: never}) // too late
	h.mustAnswer(t, answer{ID: 5, Status: statusLate})
	_ = cmd.Wait()
	h.runs[2].end(9)
	for len(h.runs) > 0 {
		h.enforce(h.next())
	}
	h.mustAnswer(t, answer{Run: 2, Status: statusGone, Wait: 9})
}

// A peer that breaks the protocol is not emitd, or another version of it. The guardian then kills
// all groups, because it must not leave any unguarded.
func TestNonsenseIsTheEnd(t *testing.T) {
	t.Parallel()
	for name, input := range map[string]string{"malformed": "watch me\n", "endless": strings.Repeat("x", maxLine+1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newGuardOfTest(t)
			cmd, _ := sleeper(t)
			child := hold(t, cmd.Process.Pid)
			h.born(t, 1, never, cmd)
			h.take([]byte(input))
			child.mustEnd(t, "a group of nonsense")
			if !h.orphaned {
				t.Error("the guardian goes on listening")
			}
		})
	}
}

// An emitd that is stopped does not read. The guardian must not wait for it, and sends the answers
// later.
func TestNobodyReadsTheAnswers(t *testing.T) {
	t.Parallel()
	h := newGuardOfTest(t)
	const n = 20_000
	for i := range n {
		h.receive(t, request{Verb: verbExtend, ID: uint64(i) + 1, Run: 2})
		if i%100 == 0 {
			h.flush()
		}
	}
	if h.dropAnswers || len(h.out) == 0 {
		t.Errorf("deaf is %v, %d bytes wait", h.dropAnswers, len(h.out))
	}
	for i := range n {
		h.mustAnswer(t, answer{ID: uint64(i) + 1, Status: statusUnknown})
	}
	h.out = make([]byte, 2*maxOut)
	h.flush()
	if !h.dropAnswers {
		t.Error("a full socket was not noticed")
	}
}

// A command that does not begin to execute (its directory is on a file system that does not answer)
// delays no deadline of others. It is killed at its own deadline, and begins nothing later.
func TestACommandThatIsSlowToStart(t *testing.T) {
	t.Parallel()
	h := newGuardOfTest(t)
	cmd, _ := sleeper(t)
	child := hold(t, cmd.Process.Pid)
	h.born(t, 1, readClock()+instant(time.Hour), cmd)
	begin := func(run uint64, deadline instant) {
		h.receive(t, request{Verb: verbStart, ID: run, Deadline: deadline, Command: &program{Path: []byte("x"), Args: [][]byte{[]byte("x")}}})
		h.launch()
		h.mustAnswer(t, answer{ID: run, Status: statusOK})
	}
	begin(2, 5) // hangs
	begin(3, 6) // waits behind the one that hangs
	if h.busy == nil || h.busy.run != 2 || len(h.queue) != 1 {
		t.Fatalf("busy is %+v, queue is %v", h.busy, h.queue)
	}
	h.enforce(7)
	h.launch()
	h.mustAnswer(t, answer{Run: 3, Status: statusLate})
	h.receive(t, request{Verb: verbExtend, ID: 4, Run: 1, Deadline: 8})
	h.mustAnswer(t, answer{ID: 4, Status: statusOK})
	h.enforce(8)
	h.mustAnswer(t, answer{Run: 1, Status: statusKilled})
	child.mustEnd(t, "another group at its deadline")
	h.starter.done <- startResult{err: errors.New("killed")}
	h.started()
	h.mustAnswer(t, answer{Run: 2, Status: statusLate})
}

// A command that starts only outside its control group costs no other run its own, and does not end the guardian. If no
// command could ever be started in one, none are made any more.
func TestAStartOutsideItsControlGroup(t *testing.T) {
	t.Parallel()
	for _, worked := range []bool{true, false} {
		h := newGuardOfTest(t)
		h.cgroups = &cgroups{dir: t.TempDir()}
		if worked {
			inside, _ := sleeper(t)
			h.born(t, 1, never, inside)
		}
		outside, _ := sleeper(t)
		h.receive(t, request{Verb: verbStart, ID: 2, Deadline: never, Command: &program{Path: []byte("x"), Args: [][]byte{[]byte("x")}}})
		h.mustAnswer(t, answer{ID: 2, Status: statusOK})
		h.launch()
		<-h.starter.jobs
		h.starter.done <- startResult{pid: outside.Process.Pid, noCgroup: true}
		h.started()
		if w := h.runs[2]; w == nil || w.cgroup != nil || w.pid != outside.Process.Pid {
			t.Fatalf("the run outside is %+v", w)
		}
		h.mustAnswer(t, answer{Run: 2, Status: statusStarted, PID: outside.Process.Pid, Begin: h.runs[2].target.start})
		next, _ := sleeper(t)
		h.born(t, 3, never, next)
		if got := h.runs[3].cgroup != nil; got != worked {
			t.Errorf("the next run has a control group: %v, want %v", got, worked)
		}
		for run := range h.runs {
			h.drop(h.runs[run], answer{Status: statusGone})
		}
	}
}

// The handle of a first process that has ended still reaches its group, and no other.
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
	byHandle, err := openTarget(cmd.Process.Pid, p.start)
	if err != nil {
		t.Fatal(err)
	}
	defer byHandle.close()
	_ = in.Close()
	_ = cmd.Wait() // reaped: only the group still holds the number
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

// Before Linux 6.9 there is no such handle: the start time distinguishes our process from others.
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
	other := &target{pgid: cmd.Process.Pid, start: "1", pidfd: -1}
	other.kill()
	if !other.reused() || other.runs() {
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
	if _, err := openTarget(cmd.Process.Pid, "1"); !errors.Is(err, errOther) {
		t.Errorf("aim at another start: %v", err)
	}
	if _, err := openTarget(os.Getpid(), p.start); err == nil {
		t.Error("aim at another process was accepted")
	}
	if _, err := openTarget(1<<22+1, p.start); err == nil {
		t.Error("aim at no process was accepted")
	}
}
