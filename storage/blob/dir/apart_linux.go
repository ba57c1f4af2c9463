package dir

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// topDir is FS_TOPDIR_FL, the attribute T of chattr: directories in such a directory have nothing to do with each other.
const topDir = 0x20000

// mkdirApart makes a directory, on ext4 away from its parent. ext4 looks for the inode of a new file near the file's
// directory, and without a journal it passes over those that were freed in the last minutes, one by one: also those of
// other programs, as in /tmp. That took up to a millisecond for a file.
func mkdirApart(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	fd := int(parent.Fd())
	// Other file systems refuse the attribute. It is only needed for a moment.
	if was, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err == nil && was&topDir == 0 &&
		unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(was|topDir)) == nil {
		defer func() { _ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(was)) }()
	}
	// The place depends on the name that a directory is made with.
	first := path + "-" + newNonce().String()
	if err := os.Mkdir(first, 0o700); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, first, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if err == nil {
		return nil
	}
	_ = os.Remove(first)
	return os.Mkdir(path, 0o700) // it exists, or the file system knows only the plain rename
}
