package exec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/daemon"
)

func TestOutputAndEnvironment(t *testing.T) {
	t.Setenv("EMITD_STORE_URL", "postgres://u:secret@h/db") // hence not parallel
	dir := t.TempDir()
	r := try(t, Config{
		Command: sh(`echo "$EMITD_DAEMON $EMITD_UNIT $EMITD_GENERATION $EMITD_TERM $EMITD_NODE"; echo "$GREETING in $PWD $(pwd)" >&2; env | grep -c ^EMITD_`),
		Dir:     dir, Env: map[string]string{"GREETING": "hello"},
	})
	if err := r.end(t); err != nil {
		t.Errorf("exit 0: %v", err)
	}
	for _, want := range []string{
		"stdout: acme:ticker acme:ticker/3 77 9 n1", "stderr: hello in " + dir + " " + dir, "stdout: 5",
	} {
		if !slices.Contains(r.lines(), want) {
			t.Errorf("no line %q in:\n%s", want, strings.Join(r.lines(), "\n"))
		}
	}
	if r.a.Progressed() == 0 {
		t.Error("output is no progress")
	}
	select {
	case <-r.a.ReadyDone():
	default:
		t.Error("a command that runs is not ready")
	}
}

// Without a directory of its own a command works in emitd's, not in the guardian's.
func TestTheDirectoryIsThatOfTheProgram(t *testing.T) {
	t.Parallel()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	r := try(t, Config{Command: sh(`echo "in $PWD $(pwd -P)"`)})
	if rest := r.after(t, "stdout: in "); rest != dir+" "+dir {
		t.Errorf("works in %q, want %s", rest, dir)
	}
}

func TestHowCommandsEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := filepath.Join(dir, "noexec")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg  Config
		want string // "" = nil
		is   error
	}{
		"exit 0":               {cfg: Config{Command: sh("exit 0")}},
		"exit 3":               {cfg: Config{Command: sh("echo this; echo and that >&2; exit 3")}, want: "run acme:ticker: exit code 3: and that"},
		"exit 3, says nothing": {cfg: Config{Command: sh("exit 3")}, want: "run acme:ticker: exit code 3"},
		"exit 75":              {cfg: Config{Command: sh("echo disk is full >&2; exit 75")}, want: "run acme:ticker: release the unit: exit code 75: disk is full", is: daemon.ErrRelease},
		"signal":               {cfg: Config{Command: sh("kill -9 $$")}, want: "run acme:ticker: signal: killed"},
		"not found":            {cfg: Config{Command: []string{"no-such-program"}}, want: `start acme:ticker: exec: "no-such-program": executable file not found in $PATH`},
		"not found, path":      {cfg: Config{Command: []string{"./no-such-program"}, Dir: "/"}, want: `start acme:ticker: exec: "./no-such-program": no such file or directory`},
		"not executable":       {cfg: Config{Command: []string{script}}, want: `start acme:ticker: exec: "` + script + `": permission denied`},
		"not a program":        {cfg: Config{Command: []string{notAProgram(t)}}, want: "exec format error"},
		"no directory":         {cfg: Config{Command: sh("exit 0"), Dir: "/no/such/dir"}, want: "start acme:ticker: chdir /no/such/dir: no such file or directory"},
		"own PATH":             {cfg: Config{Command: []string{"noexec"}, Env: map[string]string{"PATH": dir}}, want: "not found in $PATH"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := try(t, c.cfg).end(t)
			switch {
			case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.HasSuffix(err.Error(), c.want)):
				t.Errorf("ended with %v, want %q", err, c.want)
			case c.is != nil && !errors.Is(err, c.is):
				t.Errorf("%v is not %v", err, c.is)
			}
		})
	}
}

func notAProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, []byte("\x00\x01\x02"), 0o700); err != nil { // it must look executable
		t.Fatal(err)
	}
	return path
}

func TestDrainLetsTheCommandFinish(t *testing.T) {
	t.Parallel()
	hold := fifo(t)
	r := try(t, command("up", "finish", hold))
	r.after(t, "stdout: up")
	r.a.BeginDrain()
	r.after(t, "stdout: busy")
	r.mustNotReturn(t)
	release(t, hold)
	if err := r.end(t); err != nil {
		t.Errorf("drained: %v", err)
	}
	r.after(t, "stdout: saved")
}

func TestDrainEndsACommandThatKnowsNoSignals(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"killed by SIGTERM": {Command: sh(forever)},
		"exit code 143":     command("up", "exit", "143"),
		"is stopped":        {Command: sh(`echo up $$; kill -STOP $$; exec sleep 1000`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := try(t, cfg)
			r.after(t, "stdout: up")
			r.a.BeginDrain()
			if err := r.end(t); err != nil {
				t.Errorf("drained: %v", err)
			}
		})
	}
}

func TestAFailedDrainIsReported(t *testing.T) {
	t.Parallel()
	r := try(t, command("up", "exit", "4"))
	r.after(t, "stdout: up")
	r.a.BeginDrain()
	if err := r.end(t); err == nil || err.Error() != "run acme:ticker: exit code 4: cannot save" {
		t.Errorf("drained: %v", err)
	}
}

func TestCancelKillsTheGroup(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	for _, drained := range []bool{false, true} { // before the deadline of a drain, and at it
		r := try(t, command("up", "deaf", "-", "child", "deaf", "-"))
		leader, child := r.pid(t, "stdout: up "), r.pid(t, "stdout: child ")
		if drained {
			r.a.BeginDrain()
			r.after(t, "stdout: deaf")
			leader.mustRun(t, "a command that is deaf to SIGTERM")
		}
		r.cancel(lost)
		if err := r.end(t); !errors.Is(err, lost) {
			t.Errorf("cancelled: %v", err)
		}
		if !leader.endsWithin(0) || !child.endsWithin(0) {
			t.Error("Run returned before the group was gone")
		}
	}
}

// A drain waits for the whole group, not only for its first process.
func TestDrainWaitsForGrandchildren(t *testing.T) {
	t.Parallel()
	hold := fifo(t)
	r := try(t, command("up", "exit", "0", "child", "finish", hold))
	leader, child := r.pid(t, "stdout: up "), r.pid(t, "stdout: child ")
	r.a.BeginDrain()
	r.after(t, "stdout: busy")
	leader.mustEnd(t, "the first process")
	child.mustRun(t, "the grandchild")
	r.mustNotReturn(t)
	release(t, hold)
	if err := r.end(t); err != nil {
		t.Errorf("drained: %v", err)
	}
	if !slices.Contains(r.lines(), "stdout: saved") {
		t.Error("the grandchild did not finish")
	}
	child.mustEnd(t, "the grandchild")
}

// If a command ends and leaves processes behind, these are asked to end, and then killed.
func TestWhatACommandLeavesBehindIsEnded(t *testing.T) {
	t.Parallel()
	hold := fifo(t)
	r := try(t, command("up", "leave", hold, "child", "deaf", "-"))
	child := r.pid(t, "stdout: child ")
	release(t, hold)
	if err := r.end(t); err == nil || err.Error() != "run acme:ticker: exit code 5" {
		t.Errorf("ended with %v", err)
	}
	if !child.endsWithin(0) {
		t.Error("Run returned before the group was gone")
	}
	if !slices.Contains(r.lines(), "stdout: deaf") {
		t.Error("it was not told before it was killed")
	}
}

// Nothing outlives its run: neither a process that has left the process group, nor one that has
// lost its parents.
func TestWhatEscapesIsEnded(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"a session of its own": `setsid sh -c 'echo away $$; exec sleep 1000' & echo up $$; wait`,
		"adopted":              `setsid sh -c 'sh -c "echo away \$\$; exec sleep 1000" & sleep 0.01' & echo up $$; wait; exec sleep 1000`,
		"deaf, no output":      `setsid sh -c 'trap "" TERM; echo away $$; exec sleep 1000 >/dev/null 2>&1' & echo up $$; wait`,
	} {
		for _, cgroup := range []bool{false, true} {
			for how, end := range map[string]func(r *trial){
				"drained":   func(r *trial) { r.a.BeginDrain() },
				"cancelled": func(r *trial) { r.cancel(nil) },
			} {
				t.Run(fmt.Sprintf("%s/cgroup=%v/%s", name, cgroup, how), func(t *testing.T) {
					t.Parallel()
					log := newJournal()
					g := NewGuardian(GuardianConfig{Logger: slog.New(log), noCgroup: !cgroup})
					defer g.Close()
					r := try(t, Config{Command: sh(script)}, with(g))
					r.after(t, "stdout: up ")
					away := r.pid(t, "stdout: away ")
					if how == "drained" && strings.HasPrefix(name, "deaf") {
						r.cancel(nil) // a drain has no end of its own
					}
					end(r)
					_ = r.end(t)
					if !away.endsWithin(0) {
						t.Error("Run returned while a process that left the group lives")
						away.signal(t, unix.SIGKILL)
					}
					r.after(t, "killed processes that had left the command's process group")
				})
			}
		}
	}
}

// The same if the first process ends by itself.
func TestWhatEscapesIsEndedWithItsRun(t *testing.T) {
	t.Parallel()
	for _, cgroup := range []bool{false, true} {
		t.Run(fmt.Sprint("cgroup=", cgroup), func(t *testing.T) {
			t.Parallel()
			hold := fifo(t)
			g := NewGuardian(GuardianConfig{Logger: slog.New(newJournal()), noCgroup: !cgroup})
			defer g.Close()
			r := try(t, Config{Command: sh(`setsid sh -c 'trap "" TERM; echo away $$; while :; do sleep 1000; done' & read x <` + hold + `; exit 5`)}, with(g))
			away := r.pid(t, "stdout: away ")
			release(t, hold)
			if err := r.end(t); err == nil || err.Error() != "run acme:ticker: exit code 5" {
				t.Errorf("ended with %v", err)
			}
			if !away.endsWithin(0) {
				t.Error("Run returned while a process that left the group lives")
				away.signal(t, unix.SIGKILL)
			}
		})
	}
}

func TestWhatIsEndedBeforeItBegan(t *testing.T) {
	t.Parallel()
	marker := filepath.Join(t.TempDir(), "ran")
	for name, end := range map[string]func(r *trial){
		"drained":   func(r *trial) { r.a.BeginDrain() },
		"cancelled": func(r *trial) { r.cancel(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuardian(t, newJournal())
			if _, err := g.reach(); err != nil {
				t.Fatal(err)
			}
			guardian := g.process(t)
			guardian.signal(t, unix.SIGSTOP) // the command cannot begin
			r := try(t, Config{Command: sh("touch " + marker)}, with(g))
			end(r)
			if err := r.end(t); name == "drained" && err != nil {
				t.Errorf("drained: %v", err)
			}
			guardian.mustEnd(t, "a guardian that does not answer")
		})
	}
	t.Cleanup(func() {
		if _, err := os.Stat(marker); err == nil {
			t.Error("the command ran")
		}
	})
}

// A command that is drained before its start was reported may run already. It gets the signal by which it can finish; the
// guardian does not start a command that has got any.
func TestADrainBeforeTheStartIsReportedKillsNothing(t *testing.T) {
	t.Parallel()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	draining := make(chan struct{})
	close(draining)
	g := &group{run: 1, started: make(chan struct{}), exited: make(chan struct{}), gone: make(chan struct{})}
	r := &run{
		link:  &link{log: slog.New(newJournal()), conn: ours, gone: make(chan struct{}), waiting: map[uint64]*waiting{}},
		group: g, draining: draining, deadline: never,
	}
	ended := make(chan struct{})
	go func() { defer close(ended); r.supervise(t.Context()) }()
	requests := bufio.NewScanner(theirs)
	if !requests.Scan() {
		t.Fatal(requests.Err())
	}
	if req, err := parseRequest(requests.Bytes()); err != nil || req.Verb != verbSignal || req.Signal != int(unix.SIGTERM) {
		t.Errorf("sent %s (%v), want a SIGTERM", requests.Text(), err)
	}
	close(g.gone)
	<-ended
}

func TestLongAndOddOutput(t *testing.T) {
	t.Parallel()
	r := try(t, Config{Command: sh(`head -c 100000 /dev/zero | tr '\0' x; echo; printf 'bad \377 byte\r\n'; printf 'no end'; head -c 3000 /dev/zero | tr '\0' é >&2; exit 1`)})
	err := r.end(t)
	if err == nil || len(err.Error()) > maxTail+100 {
		t.Errorf("error of %d bytes", len(err.Error()))
	}
	for _, want := range []string{
		"stdout: " + strings.Repeat("x", maxOutput) + " [cut=true]", "stdout: bad \uFFFD byte", "stdout: no end",
	} {
		if !slices.Contains(r.lines(), want) {
			t.Errorf("no line %.30q…", want)
		}
	}
	if n := len(r.lines()); n != 4 {
		t.Errorf("%d lines, want 4", n)
	}
}

// Run leaves neither processes nor descriptors behind.
func TestRunsLeaveNothingBehind(t *testing.T) { // not parallel: it counts the descriptors of the process
	g := newGuardian(t, newJournal())
	once := func() {
		if err := try(t, Config{Command: sh("echo hello")}, with(g)).end(t); err != nil {
			t.Fatal(err)
		}
	}
	once()
	before := descriptors(t)
	for range 10 {
		once()
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after ten runs", before, after)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.link.waiting); n != 0 {
		t.Errorf("%d requests wait for an answer", n)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	g := newGuardian(t, newJournal())
	var trials []*trial
	for range 20 {
		trials = append(trials, try(t, Config{Command: sh(forever)}, with(g), trusting(func() time.Duration { return time.Hour })))
	}
	for _, r := range trials {
		r.after(t, "stdout: up ")
	}
	for i, r := range trials {
		if i%2 == 0 {
			r.a.BeginDrain()
		} else {
			r.cancel(nil)
		}
	}
	for _, r := range trials {
		if err := r.end(t); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	}
}

// A command may have the rights of another user, if emitd runs as root.
func TestAnotherUser(t *testing.T) {
	t.Parallel()
	c := Config{Command: sh(`echo "$(id -un) $(id -gn) $(id -Gn) $HOME $USER"`), User: "nobody"}
	if os.Geteuid() != 0 {
		if err := try(t, c).end(t); err == nil || !strings.Contains(err.Error(), "user and group need emitd to run as root") {
			t.Errorf("ended with %v", err)
		}
		return
	}
	r := try(t, c)
	if err := r.end(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	r.after(t, "stdout: nobody nogroup nogroup /nonexistent nobody")
	c.Group = "daemon"
	r = try(t, c)
	r.after(t, "stdout: nobody daemon daemon nogroup /nonexistent nobody")
	c.User = "no-such-user"
	if err := try(t, c).end(t); err == nil || !strings.Contains(err.Error(), "unknown user no-such-user") {
		t.Errorf("ended with %v", err)
	}
}

// A process that changed its user cannot escape either: root can end it.
func TestACommandOfAnotherUserIsEnded(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return // TestAnotherUser covers that case
	}
	for _, cgroup := range []bool{false, true} {
		g := NewGuardian(GuardianConfig{Logger: slog.New(newJournal()), noCgroup: !cgroup})
		defer g.Close()
		r := try(t, Config{Command: sh(`setsid sh -c 'echo away $$; exec sleep 1000' & echo up $$; wait`), User: "nobody"}, with(g))
		leader, away := r.pid(t, "stdout: up "), r.pid(t, "stdout: away ")
		g.process(t).signal(t, unix.SIGKILL)
		leader.mustEnd(t, "the command")
		away.mustEnd(t, "what left its group")
		_ = r.end(t)
	}
}

// TestRecord checks that a recording gets each line of both streams and then the end, once, also of a run that never
// began.
func TestRecord(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		command []string
		lines   []string
		end     string
	}{
		"fails":        {sh("echo out; echo err >&2; exit 3"), []string{"stderr err false", "stdout out false"}, "run acme:ticker: exit code 3: err"},
		"ends":         {sh("printf 'no line end'"), []string{"stdout no line end false"}, "<nil>"},
		"a long line":  {sh("head -c 5000 /dev/zero | tr '\\0' x"), []string{"stdout " + strings.Repeat("x", maxOutput) + " true"}, "<nil>"},
		"binary":       {sh("printf 'a\\377\\033[2J\\n'"), []string{"stdout a\uFFFD\x1b[2J false"}, "<nil>"},
		"never begins": {[]string{"/no/such/program"}, nil, `start acme:ticker: exec: "/no/such/program": no such file or directory`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var lines, ends []string
			r := try(t, Config{Command: tt.command, Record: func(a *daemon.Assignment) (func(stream, text string, truncated bool), func(error)) {
				if a.Fence() != fence {
					t.Errorf("a run of %v", a.Fence())
				}
				line := func(stream, text string, truncated bool) {
					mu.Lock()
					defer mu.Unlock()
					lines = append(lines, fmt.Sprint(stream, " ", text, " ", truncated))
				}
				return line, func(err error) { ends = append(ends, fmt.Sprint(err)) }
			}})
			_ = r.end(t)
			slices.Sort(lines)
			if !slices.Equal(lines, tt.lines) || !slices.Equal(ends, []string{tt.end}) {
				t.Errorf("lines %q, ends %q", lines, ends)
			}
		})
	}
}
