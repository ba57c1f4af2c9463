package cli

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// hesitant is a terminal where somebody says yes after something else has happened.
type hesitant struct {
	*os.File
	first func()
}

func (h hesitant) Read(p []byte) (int, error) {
	h.first()
	return copy(p, "y\n"), nil
}

// TestRevokedWhileTheQuestionIsOpen checks that a change of the access file is kept that was made while another one
// waited for its confirmation.
func TestRevokedWhileTheQuestionIsOpen(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	for _, name := range []string{"leaked", "old", "kept"} {
		changeTokens(t, file, nil, "new", name)
	}
	tty := newPTY(t, unix.Winsize{}).tty
	changeTokens(t, file, hesitant{tty, func() { changeTokens(t, file, nil, "revoke", "leaked", "--yes") }}, "revoke", "old")
	if got := tokenNames(t, file); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("the file has %q, want only kept", got)
	}
}

// TestAccessFileKeepsItsOwner checks that a file still belongs to its user and group after root, or a member of several
// groups, has changed it.
func TestAccessFileKeepsItsOwner(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	changeTokens(t, file, nil, "new", "a")
	user, group := os.Geteuid(), os.Getegid()
	if user == 0 {
		user, group = 12345, 54321
	} else if all, err := os.Getgroups(); err == nil {
		for _, g := range all {
			if g != os.Getegid() {
				group = g
			}
		}
	}
	if err := os.Chown(file, user, group); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	changeTokens(t, file, nil, "new", "b")
	changeTokens(t, file, nil, "revoke", "a", "--yes")
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); int(s.Uid) != user || int(s.Gid) != group || info.Mode() != 0o640 {
		t.Errorf("the file belongs to %d:%d with mode %o, want %d:%d and 640", s.Uid, s.Gid, info.Mode(), user, group)
	}
}
