package coordinator

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/node"
)

// This process's Host identifies it, and it is alive.
func TestThisHost(t *testing.T) {
	t.Parallel()
	h := thisHost()
	if h.BootID == "" || !strings.Contains(h.BootID, "pid:[") || h.PID != os.Getpid() || h.Start == "" {
		t.Errorf("host: %+v", h)
	}
	if newProcessProbe().ended(h) {
		t.Error("this process is declared dead")
	}
}

// A real child: alive, then a zombie, then gone.
func TestEndOfARealProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatalf("the test needs the command sleep: %v", err)
	}
	p, err := readProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	h := node.Host{BootID: thisHost().BootID, PID: cmd.Process.Pid, Start: p.start}
	if newProcessProbe().ended(h) {
		t.Error("a live process is declared dead")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var info unix.Siginfo
	// Wait until it has ended, without reaping it.
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if !newProcessProbe().ended(h) {
		t.Error("a zombie is not declared dead")
	}
	_ = cmd.Wait() // killed
	if !newProcessProbe().ended(h) {
		t.Error("a process that is gone is not declared dead")
	}
}

// Only evidence counts: what cannot be read is no proof.
func TestWhatProvesDeath(t *testing.T) {
	t.Parallel()
	alive, gone := func(int) bool { return true }, func(int) bool { return false }
	is := func(p process, err error) func(int) (process, error) {
		return func(int) (process, error) { return p, err }
	}
	free := func(string) (bool, error) { return false, nil }
	held := func(string) (bool, error) { return true, nil }
	lost := func(string) (bool, error) { return false, errors.New("no such file") }
	h := node.Host{BootID: "b", PID: 7, Start: "100"}
	locked := node.Host{BootID: "b", PID: 7, Start: "100", Lock: "/run/x"}
	for name, tc := range map[string]struct {
		host  node.Host
		level processProbe
		want  bool
	}{
		"runs":                        {h, processProbe{is(process{"100", false}, nil), alive, free}, false},
		"gone":                        {h, processProbe{is(process{}, os.ErrNotExist), gone, free}, true},
		"number was given away":       {h, processProbe{is(process{"200", false}, nil), alive, free}, true},
		"zombie":                      {h, processProbe{is(process{"100", true}, nil), alive, free}, true},
		"there, but not readable":     {h, processProbe{is(process{}, os.ErrPermission), alive, free}, false},
		"gone, guardian holds lock":   {locked, processProbe{is(process{}, os.ErrNotExist), gone, held}, false},
		"gone, lock free":             {locked, processProbe{is(process{}, os.ErrNotExist), gone, free}, true},
		"gone, lock cannot be looked": {locked, processProbe{is(process{}, os.ErrNotExist), gone, lost}, false},
		"nothing known":               {node.Host{}, processProbe{is(process{}, os.ErrNotExist), gone, free}, false},
	} {
		if got := tc.level.ended(tc.host); got != tc.want {
			t.Errorf("%s: ended is %v", name, got)
		}
	}
}

// A lock file shows whether another process holds it, and checking does not take it.
func TestLockFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	if _, err := locked(path); err == nil {
		t.Error("a missing file is no error")
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if held, err := locked(path); held || err != nil {
		t.Errorf("free: %v, %v", held, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatalf("looking left the file locked: %v", err)
	}
	if held, err := locked(path); !held || err != nil {
		t.Errorf("held: %v, %v", held, err)
	}
}

// The watcher checks other processes of this boot and namespace, and stops once the store knows.
func TestEvidenceOfAnEnd(t *testing.T) {
	t.Parallel()
	own := node.Host{BootID: "b", PID: 1, Start: "1"}
	w := newExitWatcher(node.Identity{Incarnation: "self"}, own)
	w.host = processProbe{
		read:   func(int) (process, error) { return process{}, os.ErrNotExist },
		exists: func(pid int) bool { return pid == 1 },
	}
	member := func(inc node.Incarnation, boot string, pid int) node.Member {
		return node.Member{Identity: node.Identity{Incarnation: inc}, State: node.Live, Traits: node.Traits{Host: node.Host{BootID: boot, PID: pid, Start: "9"}}}
	}
	removed, proven := member("removed", "b", 4), member("proven", "b", 5)
	removed.State, proven.ExitProven = node.Removed, true
	w.setPeers([]node.Member{
		member("self", "b", 1), member("dead", "b", 2), member("elsewhere", "other", 3), member("silent", "", 0), removed, proven,
	})
	if got := w.ended(); !slices.Equal(got, []node.Incarnation{"dead"}) {
		t.Errorf("ended: %v", got)
	}
	if got := w.ended(); len(got) != 1 {
		t.Errorf("it is reported once only: %v", got)
	}
	w.setPeers(nil)
	if got := w.ended(); len(got) != 0 {
		t.Errorf("after the list has shown it: %v", got)
	}
}
