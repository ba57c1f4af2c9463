package exec

import (
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A command has its three files and nothing else: neither the lock file, which it could unlock, nor
// anything that emitd was started with.
func TestCommandsInheritNoDescriptors(t *testing.T) {
	t.Parallel()
	leaked := pipe(t)
	if _, err := unix.FcntlInt(leaked.r.Fd(), unix.F_SETFD, 0); err != nil { // until the end of the test
		t.Fatal(err)
	}
	n := startNode(t, nodeConfig{
		Command: sh(`for fd in /proc/$$/fd/*; do [ -e $fd ] && echo "open ${fd##*/}"; done; echo end; exec sleep 1000`),
		Lock:    filepath.Join(t.TempDir(), "lock"),
	})
	n.after(t, "stdout: end")
	for _, l := range n.lines() {
		if fd, ok := strings.CutPrefix(l, "stdout: open "); ok && !slices.Contains([]string{"0", "1", "2", "10"}, fd) { // 10 is the shell's own
			t.Errorf("the command has descriptor %s", fd)
		}
	}
}

// A command that hangs before it executes, because the file system does not answer, is killed at
// its deadline. Here a lease on the program delays it.
func TestACommandThatHangsBeforeItBeginsIsKilled(t *testing.T) {
	t.Parallel()
	program, marker := filepath.Join(t.TempDir(), "program"), filepath.Join(t.TempDir(), "ran")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ntouch "+marker+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := try(t, Config{Command: sh("exit 0")})
	if err := r.end(t); err != nil {
		t.Fatal(err)
	}
	guardian := r.guardian
	lease, err := os.OpenFile(program, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	if _, err := unix.FcntlInt(lease.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("take a lease: %v", err)
	}
	c := &credit{window: time.Hour}
	end := c.stop(2 * time.Second)
	began := time.Now()
	r = try(t, Config{Command: []string{program}}, with(guardian), trusting(c.left))
	if err := r.end(t); !errors.Is(err, errUntrusted) {
		t.Errorf("ended with %v", err)
	}
	if took := time.Since(began); took > 20*time.Second { // the kernel revokes the lease after 45
		t.Errorf("it ended %v after it was asked for, with trust until %v after that", took, time.Until(time.Now().Add(time.Duration(end-readClock()))))
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the command ran")
	}
}

// The guardian collects the garbage of its checks of the process list. A drain may take hours.
func TestTheGuardianCollectsItsGarbage(t *testing.T) {
	t.Parallel()
	h := newGuardOfTest(t)
	w := &guardedRun{run: 1, target: noTarget(1 << 22), pid: 1 << 22, exited: true, strays: map[int]bool{}}
	h.runs[1] = w
	for range 20_000 {
		newCensus(h.guard).members(w)
		if h.collectGarbage() {
			return
		}
	}
	t.Error("the guardian collects nothing")
}

// Checks of runs that are ending happen together, because each of them reads the whole process
// list.
func TestScansAreShared(t *testing.T) {
	t.Parallel()
	h := newGuardOfTest(t)
	for run := range uint64(20) {
		cmd, _ := sleeper(t)
		h.born(t, run+1, never, cmd)
	}
	for run, w := range h.runs { // the first processes end one after the other, others go on
		w.exited, w.exitedSent, w.check, w.pause = true, true, instant(run)*instant(7*time.Millisecond), time.Millisecond
	}
	for range 300 {
		now := h.next()
		h.enforce(now)
	}
	at := map[instant]bool{}
	for _, w := range h.runs {
		at[w.check] = true
	}
	if len(at) != 1 {
		t.Errorf("%d runs are looked at in %d looks", len(h.runs), len(at))
	}
}

// A guardian that has no descriptors left sees no processes. That does not prove that there are
// none.
func TestAGuardianWithoutDescriptorsTakesNothingForGone(t *testing.T) {
	t.Parallel()
	hold := fifo(t)
	r := try(t, Config{Command: sh(`setsid sh -c 'trap "" TERM; echo away $$; while :; do sleep 1000; done' & read x <` + hold)})
	away := r.pid(t, "stdout: away ")
	guardian := r.guardian.process(t)
	var usual unix.Rlimit
	if err := unix.Prlimit(guardian.pid, unix.RLIMIT_NOFILE, nil, &usual); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: 5, Max: usual.Max} // it already has more, and waits for fewer
	if err := unix.Prlimit(guardian.pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	exited := r.guardian.link.groupOf(1).exited
	release(t, hold)
	select {
	case <-exited:
	case err := <-r.result:
		r.result <- err
		if !away.endsWithin(0) {
			t.Error("Run returned while a process that left the group lives")
			away.signal(t, unix.SIGKILL)
		}
	case <-time.After(soon):
		t.Error("the guardian says nothing")
	}
	if err := unix.Prlimit(guardian.pid, unix.RLIMIT_NOFILE, &usual, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.end(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	away.mustEnd(t, "what had left the group")
}

// groupOf returns the group of a run.
func (l *link) groupOf(run uint64) *group {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.groups[run]
}

// A process that begins to execute a command has no environment for a moment: it is read again.
func TestMarksAreSearchedAgain(t *testing.T) {
	t.Parallel()
	h := newGuardOfTest(t)
	h.runs[1] = &guardedRun{run: 1, marks: []string{"EMITD_UNIT=u", "EMITD_GENERATION=7"}}
	go1 := fifo(t)
	cmd := osexec.Command("/bin/sh", "-c", `read x <`+go1+`; echo; EMITD_UNIT=u EMITD_GENERATION=7 exec sleep 1000`)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := lookup(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if w := newCensus(h.guard).runOfMark(p); w != nil {
		t.Fatalf("a process without marks is of run %d", w.run)
	}
	release(t, go1)
	_, _ = out.Read(make([]byte, 1))
	late := time.After(soon)
	for newCensus(h.guard).runOfMark(p) == nil {
		select {
		case <-late:
			t.Fatal("the process is not known by its environment")
		default:
		}
	}
}

// A lack of processes says nothing about control groups.
func TestAShortageIsNoReasonToDoWithoutControlGroups(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]startResult{
		&os.PathError{Err: unix.EAGAIN}: {err: unix.EAGAIN},
		&os.PathError{Err: unix.ENOMEM}: {err: unix.ENOMEM},
		&os.PathError{Err: unix.EPERM}:  {pid: 7, noCgroup: true},
	} {
		got := start(&cgroup{}, func(c *cgroup) (int, error) {
			if c != nil {
				return 0, err
			}
			return 7, nil
		})
		if got.pid != want.pid || got.noCgroup != want.noCgroup || !errors.Is(got.err, want.err) {
			t.Errorf("%v: %+v", err, got)
		}
	}
}

// A first process that cannot be identified could not be ended later.
func TestACommandThatCannotBeWatchedIsKilled(t *testing.T) {
	t.Parallel()
	cmd, _ := sleeper(t)
	child := hold(t, cmd.Process.Pid)
	w := &guardedRun{run: 1, pid: cmd.Process.Pid}
	if w.target = w.identify(process{}, unix.ENOMEM); !w.killed {
		t.Error("the run goes on")
	}
	child.mustEnd(t, "a command that cannot be watched")
}

// Emitd is killed while its guardian is stopped: the reaper ends both the guardian and the
// commands.
func TestKilledNodeOfAStoppedGuardian(t *testing.T) {
	t.Parallel()
	n := startNode(t, nodeConfig{Command: sh(`setsid sh -c 'echo away $$; exec sleep 1000' & echo up $$; wait`), Trust: time.Hour})
	guardian := n.pid(t, "guardian ")
	all := []*held{n.pid(t, "stdout: up "), n.pid(t, "stdout: away "), guardian, n.pid(t, "reaper ")}
	guardian.signal(t, unix.SIGSTOP)
	n.process.signal(t, unix.SIGKILL)
	for _, p := range all {
		p.mustEnd(t, "a process of a node that was killed")
	}
}

// A command that runs as another user may open its own output.
func TestOutputOfAnotherUser(t *testing.T) {
	t.Parallel()
	c := Config{Command: sh(`echo one >/dev/stdout; echo two >/dev/stderr`)}
	if os.Geteuid() == 0 {
		c.User = "nobody"
	}
	r := try(t, c)
	if err := r.end(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	r.after(t, "stdout: one")
	r.after(t, "stderr: two")
}

// Each guardian ends what earlier guardians have left behind, in at most a second for all of it.
func TestWhatDeadGuardiansLeaveBehindTakesNoTime(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	for i := range 5 { // directories that never become empty
		dir := filepath.Join(parent, fmt.Sprint(cgroupPrefix, i))
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "cgroup.events"), []byte("populated 1\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	endLeftCgroups(parent)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
}
