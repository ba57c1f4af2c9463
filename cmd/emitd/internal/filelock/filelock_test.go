package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); !errors.Is(err, ErrHeld) {
		t.Errorf("locked twice: %v", err)
	}
	unlock()
	unlock, err = Lock(path)
	if err != nil {
		t.Fatalf("not free after unlock: %v", err)
	}
	unlock()
	if _, err := Lock(filepath.Join(path, "x")); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("a path below a file: %v", err)
	}
}

// TestTemp checks that only old, unlocked files are removed.
func TestTemp(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	old, err := Temp(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := Temp(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	if _, err := Lock(old.Name()); !errors.Is(err, ErrHeld) {
		t.Errorf("a temporary lock is not held: %v", err)
	}
	long := now.Add(-2 * leftover)
	for _, f := range []*os.File{old, fresh} {
		if err := os.Chtimes(f.Name(), long, long); err != nil {
			t.Fatal(err)
		}
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	young := filepath.Join(dir, "emitd-young.lock")
	if err := os.WriteFile(young, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	last, err := Temp(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	for path, want := range map[string]bool{old.Name(): false, fresh.Name(): true, young: true, last.Name(): true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
}
