package sqlite

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/bootclock"
)

// thisHost uses the kernel's boot ID and the clock that counts from the boot. A time namespace
// shifts that clock for the processes in it. The shift is subtracted, so that a container agrees
// with its host.
func thisHost() (*host, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot id of the host: %w", err)
	}
	offsets, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		offsets = nil // the kernel has no time namespaces
	}
	shift, err := bootShift(string(offsets))
	if err != nil {
		return nil, err
	}
	return &host{
		bootID:    strings.TrimSpace(string(id)),
		wall:      time.Now,
		sinceBoot: func() time.Duration { return bootclock.Now() - shift },
	}, nil
}

// bootShift reads the line of the boot clock: its name, seconds, nanoseconds.
func bootShift(offsets string) (time.Duration, error) {
	for line := range strings.Lines(offsets) {
		var sec, nsec int64
		if !strings.HasPrefix(line, "boottime") {
			continue
		}
		if _, err := fmt.Sscanf(line, "boottime %d %d", &sec, &nsec); err != nil {
			return 0, fmt.Errorf("offsets of the time namespace: line %q: %w", strings.TrimSpace(line), err)
		}
		return time.Duration(sec)*time.Second + time.Duration(nsec), nil
	}
	return 0, nil
}
