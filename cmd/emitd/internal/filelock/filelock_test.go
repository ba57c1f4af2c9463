package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
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

// TestWhile checks that only one has the lock at a time, although each removes the file, and that waiting ends with ctx.
func TestWhile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	var all sync.WaitGroup
	var inside sync.Mutex
	for range 8 {
		all.Go(func() {
			for range 50 {
				err := While(t.Context(), path, func() error {
					if !inside.TryLock() {
						t.Error("two have the lock")
						return nil
					}
					defer inside.Unlock()
					runtime.Gosched()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if _, err := os.Stat(path); err == nil && runtime.GOOS != "windows" {
		t.Error("the file was left behind")
	}
	failed := errors.New("failed")
	err := While(t.Context(), path, func() error {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := While(ended, path, func() error { return nil }); !errors.Is(err, ErrHeld) {
			t.Errorf("after the end of ctx: %v", err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Errorf("got %v, want the error of do", err)
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
