package dir

import "os"

// syncDir does nothing: Windows cannot sync a directory.
func syncDir(string) error { return nil }

// mark makes a file read-only under all its names. It uses the name, because on Windows a file
// opened for reading cannot be changed by its handle.
func mark(f *file) error { return os.Chmod(f.File.Name(), 0o400) }
