//go:build unix

package cli

import (
	"io/fs"
	"os"
	"syscall"
)

// giveTo makes a file belong to the user and the group of another one.
func giveTo(f *os.File, other fs.FileInfo) error {
	own, err := f.Stat()
	if err != nil {
		return err
	}
	have, ok := own.Sys().(*syscall.Stat_t)
	want, also := other.Sys().(*syscall.Stat_t)
	if !ok || !also || have.Uid == want.Uid && have.Gid == want.Gid {
		return nil
	}
	return f.Chown(int(want.Uid), int(want.Gid))
}
