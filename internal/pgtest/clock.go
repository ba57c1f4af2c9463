package pgtest

import (
	_ "embed" // the source of the preloaded clock
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// The project has a clock of its own because libfaketime, the usual one, allocates memory in every
// call that reads the time. Postgres reads it in signal handlers, and would crash.
//
//go:embed preload/clock.c
var clockSource []byte

// preload builds the clock into the server's folder and returns the environment that loads it.
func (s *Server) preload() ([]string, error) {
	source, library := filepath.Join(s.dir, "clock.c"), filepath.Join(s.dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o644); err != nil {
		return nil, fmt.Errorf("pgtest: build the stepping clock: %w", err)
	}
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, errMissing("gcc", "make deps, or apt-get install gcc libc6-dev")
	case err != nil:
		return nil, fmt.Errorf("pgtest: build the stepping clock: %w\n%s", err, out)
	}
	return []string{"LD_PRELOAD=" + library, "EMITD_CLOCK_OFFSET=" + s.clockFile()}, nil
}

// StepClock sets the clock of a server with FakeTime ahead of the machine's by offset (behind if it
// is negative), at once and for all its processes. Timeouts inside the server do not change.
func (s *Server) StepClock(offset time.Duration) error {
	file, err := os.OpenFile(s.clockFile(), os.O_WRONLY|os.O_CREATE, 0o644)
	if err == nil {
		// The file is overwritten in place, because the processes have it mapped.
		_, err = file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(offset)), 0)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("pgtest: step the clock: %w", err)
	}
	return nil
}

func (s *Server) clockFile() string { return filepath.Join(s.dir, "clock") }
