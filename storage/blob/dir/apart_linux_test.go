package dir

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTmpIsApart: on an ext4 that is not small, .tmp is not where the files of other programs are. On any file system, the
// bucket's directory keeps its attributes, and nothing is left over.
func TestTmpIsApart(t *testing.T) {
	t.Parallel()
	const block = 8192 // inodes that lie together
	parent := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(parent, &fs); err != nil {
		t.Fatal(err)
	}
	ext4 := fs.Type == unix.EXT4_SUPER_MAGIC && fs.Files >= 100*block
	apart := 0
	const buckets = 8
	for i := range buckets {
		root := filepath.Join(parent, string(rune('a'+i)))
		b := mustOpen(t, root)
		if here, tmp := inode(t, root), inode(t, b.tmp()); max(here, tmp)-min(here, tmp) > block {
			apart++
		}
		if attributes(t, root)&topDir != 0 {
			t.Errorf("%s still has the attribute T", root)
		}
		if left, err := filepath.Glob(root + "/.tmp-*"); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	if ext4 && apart < buckets/2 {
		t.Errorf("%d of %d .tmp are apart", apart, buckets)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func attributes(t *testing.T, path string) uint32 {
	t.Helper()
	d, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	flags, err := unix.IoctlGetUint32(int(d.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return 0 // a file system without attributes
	}
	return flags
}
