//go:build unix

package sqlite

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Only the owner may access what a store keeps, whatever the umask is. An operator who wants others
// to use it changes the mode of the database, and the files beside it take that mode.
func TestFilesAreTheOwnersAlone(t *testing.T) { // not parallel: the umask is that of the process
	defer syscall.Umask(syscall.Umask(0))
	for name, want := range map[string]fs.FileMode{"new.db": 0o600, "shared.db": 0o660} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		if name == "shared.db" {
			if err := os.WriteFile(path, nil, want); err != nil {
				t.Fatal(err)
			}
		}
		s := mustOpen(t, Config{Path: path})
		runsCommand(t, s)
		files, err := filepath.Glob(path + "*")
		if err != nil || len(files) != 4 { // the database, -wal, -shm and .wake
			t.Errorf("%d files: %v, %v", len(files), files, err)
		}
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode().Perm(); got != want {
				t.Errorf("%s has mode %o, want %o", filepath.Base(f), got, want)
			}
		}
	}
}
