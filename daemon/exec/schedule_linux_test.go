package exec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/memory"
)

// scheduled begins a run of a command that is due each second.
func scheduled(t *testing.T, store *memory.Store, command []string) *trial {
	t.Helper()
	if err := store.StampFence(t.Context(), fence); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Command: command, Schedule: &daemon.Periodic{Interval: time.Second, Missed: daemon.MissedSkip, Attempts: 1}}
	return try(t, cfg, func(r *trial) { r.states = store })
}

// last returns the unit's newest event of a periodic daemon.
func last(t *testing.T, store *memory.Store) daemon.Event {
	t.Helper()
	page, err := store.Events(t.Context(), 0, 1000)
	if err != nil || len(page.Events) == 0 {
		t.Fatalf("%d events, %v", len(page.Events), err)
	}
	return page.Events[len(page.Events)-1]
}

// A command with a schedule gets its due time. A drain waits for it and sends no signal: it would end it, and it would
// count as if it had done its work.
func TestDrainWaitsForAScheduledCommand(t *testing.T) {
	t.Parallel()
	store, file := memory.Open(memory.Config{}), filepath.Join(t.TempDir(), "go")
	r := scheduled(t, store, sh(`trap 'echo signalled' TERM; echo "due $EMITD_DUE"; for i in 1 2 3 4 5; do sleep 0.05; echo "round $i"; done; while [ ! -e `+file+` ]; do sleep 0.05; done; echo done`))
	due, err := time.Parse(time.RFC3339, r.after(t, "stdout: due "))
	if err != nil || time.Since(due).Abs() > time.Minute {
		t.Errorf("due %v, %v", due, err)
	}
	r.after(t, "stdout: round 1")
	r.a.BeginDrain()
	r.after(t, "stdout: round 5") // time for a signal to arrive, if one was sent
	r.mustNotReturn(t)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.end(t); err != nil {
		t.Error(err)
	}
	r.after(t, "stdout: done")
	for _, line := range r.lines() {
		if strings.Contains(line, "signalled") {
			t.Error("the command was signalled")
		}
	}
	if e := last(t, store); e.Kind != daemon.PeriodicEnded {
		t.Errorf("the newest event is %+v", e)
	}
}

// Any other end than exit code 0 is a failure of this call, and the unit stays.
func TestScheduledCommandFails(t *testing.T) {
	t.Parallel()
	store := memory.Open(memory.Config{})
	r := scheduled(t, store, sh("echo begins; echo no disk >&2; exit 3"))
	r.after(t, "stdout: begins")
	r.a.BeginDrain()
	if err := r.end(t); err != nil {
		t.Error(err)
	}
	if e := last(t, store); e.Kind != daemon.PeriodicFailed || !strings.Contains(e.Reason, "exit code 3: no disk") {
		t.Errorf("the newest event is %+v", e)
	}
}
