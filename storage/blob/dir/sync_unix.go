//go:build !windows

package dir

import (
	"errors"
	"os"
)

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	d, err := openFile(path, os.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // removed since, with all names in it
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// mark makes a file read-only under all its names.
func mark(f *file) error { return f.Chmod(0o400) }
