//go:build unix

package sqlite

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReadOnlyFile runs as a user who may not write, because root always may.
func TestReadOnlyFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file, dir os.FileMode
		exists    bool
		message   string
	}{
		"file":               {0o444, 0o755, true, "cannot be written"},
		"file and directory": {0o444, 0o555, true, "cannot be written"},
		"directory":          {0o666, 0o555, true, "cannot be"},
		"unreadable file":    {0o000, 0o755, true, "cannot be opened"},
		"nothing to create":  {0, 0o555, false, "cannot be opened or created"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The directory is not below t.TempDir, whose parents other users may not enter.
			dir, err := os.MkdirTemp("", "emitd-sqlite-*")
			ok(t, err)
			t.Cleanup(func() { ok(t, os.RemoveAll(dir)) })
			path := filepath.Join(dir, "store.db")
			if c.exists {
				s, err := Open(context.Background(), path)
				ok(t, err)
				ok(t, s.Close())
				ok(t, os.Chmod(path, c.file))
			}
			ok(t, os.Chmod(dir, c.dir))
			printed := asNobody(t, path)
			if !strings.Contains(printed, c.message) || !strings.Contains(printed, "writable for this user") {
				t.Errorf("%q does not say %q and what to do", printed, c.message)
			}
		})
	}
}

// asNobody opens the file as a user without rights and returns the error.
func asNobody(t *testing.T, path string) string {
	t.Helper()
	binary := os.Args[0]
	cmd := exec.Command(binary, path)
	if os.Geteuid() == 0 {
		binary = filepath.Join(filepath.Dir(path), "..", filepath.Base(filepath.Dir(path))+"-test")
		// Another process makes the copy. Otherwise a child that is forked while this process has
		// the copy open for writing would prevent its execution.
		if out, err := exec.Command("cp", os.Args[0], binary).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		ok(t, os.Chmod(binary, 0o755))
		t.Cleanup(func() { ok(t, os.Remove(binary)) })
		cmd = exec.Command(binary, path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	cmd.Dir = "/"
	cmd.Env = []string{childVar + "=open"}
	out, err := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); !exited {
		t.Fatalf("the child did not end with an error of its own: %v", err)
	}
	return string(out)
}
