package sqlite

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A change is reported when it happens, not at the next check.
func TestWatchIsNotifiedAtOnce(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "store.db"), WatchInterval: time.Hour}
	s, other := mustOpen(t, cfg), mustOpen(t, cfg)
	wakeUps := watch(t, s)
	timeout := time.After(30 * time.Second)
	for heard := false; !heard; { // a change before the first check does not count
		runsCommand(t, other)
		select {
		case <-wakeUps:
			heard = true
		case <-time.After(5 * time.Millisecond):
		case <-timeout:
			t.Fatal("no wake-up came")
		}
	}
}

// If the file was replaced, the kernel reports nothing, and the checks find the change.
func TestWatchReadsAReplacedFile(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "store.db"), WatchInterval: 2 * time.Millisecond}
	s, other := mustOpen(t, cfg), mustOpen(t, cfg)
	wakeUps := watch(t, s)
	timeout := time.After(30 * time.Second)
	for heard := 0; heard < 2; {
		if heard == 1 {
			_ = os.Remove(s.wakes.path)
		}
		runsCommand(t, other)
		select {
		case <-wakeUps:
			heard++
		case <-time.After(5 * time.Millisecond):
		case <-timeout:
			t.Fatal("no wake-up came")
		}
	}
}
