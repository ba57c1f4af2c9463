//go:build unix

package pgtest

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// credential is the user that servers run as: nil for the current one.
func credential() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
		if uerr == nil && gerr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return nil
}

// giveAway makes that user the owner of a file or folder.
func giveAway(path string) error {
	c := credential()
	if c == nil {
		return nil
	}
	if err := os.Chown(path, int(c.Uid), int(c.Gid)); err != nil {
		return fmt.Errorf("pgtest: give %s to the server's user: %w", path, err)
	}
	return nil
}
